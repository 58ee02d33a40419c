"""docs/gallery.md from the rows of `families.py`: what `isograd check` says of transformers' model types.

    python benchmarks/gallery.py [--rows docs/results/families.csv]

A placement is right where the kinds of sublayers, their placements and, where the expectation gives them, their
numbers are those that `expected_placements.csv` has from the source.
"""

import argparse
import csv
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from families import EXPECTED, expected

from isograd.lab.statistics import median, wilson

DOCS = Path(__file__).parents[1] / "docs"
AGAIN = 114  # rows measured once more after the last mending
PACKAGES = DOCS / "results" / "packages.csv"
LATER = DOCS / "results" / "families-again.csv"
SOURCE = "transformers/models/"
RENAMED = {"embedding-std": "initial-loss"}  # since the rows were measured
Row = dict[str, str]

_SMALL = "the configuration's initializer_range is 1e-10"
NOTES = {  # alarms that are true of what transformers ships, and what they are about
    ("gpt_neo", "attention-scale"): "its scores are not divided by the root of the head's width, as in its release",
    ("mt5", "initial-loss"): "the head is tied though `tie_word_embeddings=False`, and what it reads is not scaled",
    ("nystromformer", "padding-leaks"): "a convolution over the values reads padded positions",
    ("yoso", "padding-leaks"): "its mask is 1 + mask / 10,000, made for masks of -10,000",
    ("cpmant", "future-leaks"): "a causal head on a stack that reads its context both ways",
    ("cpmant", "init-large"): "the configuration's init_std is 1",
    ("funnel", "initial-loss"): "token vectors of standard deviation 1 under a tied head",
    ("funnel", "padding-leaks"): "it pools pairs of positions, padded ones too",
    ("imagegpt", "padding-leaks"): "its classifier takes the mean over all positions, whatever the mask says",
    ("dia", "attention-scale"): "its scores are not divided by the root of the head's width, as in its release",
    ("donut-swin", "final-norm-missing"): "Swin's final norm is left out, and the classifier reads the sum",
    ("hrm_text", "gradient-cut"): "all but the last of its rounds run without gradients, on purpose",
    ("mobilenet_v1", "dropout-high"): "its default classifier_dropout_prob is 0.999",
    (
        "muse_glimmer",
        "norm-weights",
    ): "the base class sets weights of norms to 1, and this norm multiplies by 1 + weight",
    ("muse_glimmer_text", "norm-weights"): "the same",
    ("cvt", "gradient-zero"): "the class token alone is read, so the last layer's queries of patches go nowhere",
    ("maskformer", "gradient-zero"): "the first layer's values are made of object queries that begin at 0",
    ("pop2piano", "embedding-untied"): "the configuration always ties the head, and the class does not",
    ("encodec", "gradient-zero"): "its codebooks are zeros until a checkpoint is loaded: the decoder reads 0",
    ("grounding-dino", "shortcut-after-norm"): "its fusion of text and image starts after its norms, as in its release",
    ("mm-grounding-dino", "shortcut-after-norm"): "the same",
    ("hunyuan_vl_vision", "parameter-unused"): "image_sep is made and initialized, and no code reads it",
    ("lightglue", "gradient-cut"): "it detaches what its keypoint detector gives, on purpose",
    ("xclip", "init-large"): "its prompt generator is drawn with initializer_factor, 1, as standard deviation",
    ("mra", "gradient-cut"): "without its CUDA kernel its attention returns zeros",
    ("mra", "gradient-zero"): "the same",
    ("mra", "shortcut-after-norm"): "the same: what is left is its feed-forward",
    ("pp_doclayout_v3", "gradient-zero"): "of each layer's reading order only the last one's is returned",
    ("pp_ocrv5_mobile_rec", "parameter-unused"): "blocks of stride 2 leave their activation and its scale out",
    ("timesfm", "final-norm-missing"): "as in its release",
    ("timesfm2_5", "final-norm-missing"): "as in its release",
    ("videoprism", "final-norm-missing"): "its pooling head reads the sum of layers that end in no norm",
    ("vits", "parameter-unused"): "one flow of its duration predictor is used in training only",
    ("xlstm", "weights-zero"): "its init zeroes all that is called gate, the feed-forward's proj_up_gate too",
    ("sam_vision_model", "init-small"): _SMALL,
    ("sam_hq_vision_model", "init-small"): _SMALL,
}


def parsed(placement: str) -> dict[tuple[str, str], int | None]:
    """(kind, placement) -> how many, None where it is not said."""
    words = [part.split(" ") for part in placement.split("; ") if part]
    return {(w[0], w[1]): int(w[2]) if len(w) > 2 else None for w in words}


def is_right(said: str, wanted: str) -> bool:
    """
    >>> is_right("attn pre-ln 3; ffn pre-ln 3", "attn pre-ln 3; ffn pre-ln")
    True
    """
    found, wants = parsed(said), parsed(wanted)
    return found.keys() == wants.keys() and all(n is None or found[key] == n for key, n in wants.items())


def verdict(row: Row, wanted: dict[str, Row]) -> str:
    """ "right", "wrong", "no answer", or nothing where the source was not read or the model is not built."""
    if row["model_type"] not in wanted or row["status"] == "not built":
        return ""
    if row["status"] != "ok":
        return row["status"]
    if not row["placement"]:
        return "no answer"
    return "right" if is_right(row["placement"], wanted[row["model_type"]]["expected"]) else "wrong"


def errors(row: Row) -> list[str]:
    """Codes of severity error, without those that `NOTES` explains."""
    codes = [f.partition(":")[2] for f in row["findings"].split() if f.startswith("error:")]
    codes = [RENAMED.get(code, code) for code in codes]
    return [code for code in dict.fromkeys(codes) if (row["model_type"], code) not in NOTES]


def summary(rows: list[Row], wanted: dict[str, Row]) -> str:
    lines = ["| | all | development | held out |", "|---|---|---|---|"]
    parts = [rows, *([r for r in rows if r["part"] == part] for part in ("development", "held-out"))]

    def line(name: str, cell: Callable[[list[Row]], str]) -> None:
        lines.append(f"| {name} | {' | '.join(cell(part) for part in parts)} |")

    def of(part: list[Row], *said: str) -> str:
        judged = [verdict(r, wanted) for r in part]
        judged = [v for v in judged if v]
        hits = sum(v in said for v in judged)
        share = wilson(hits, len(judged))
        return f"{hits} of {len(judged)} ({share.low:.2f} to {share.high:.2f})"

    built = [[r for r in part if r["status"] != "not built"] for part in parts]
    lines.append(
        "| model types, built | " + " | ".join(f"{len(p)}, {len(b)}" for p, b in zip(parts, built, strict=True)) + " |"
    )
    line("crash", lambda p: str(sum(r["status"] in ("crash", "died") for r in p)))
    line("no inputs found, or out of time", lambda p: str(sum(r["status"] in ("no inputs", "time-out") for r in p)))
    line("placement right (95 % interval)", lambda p: of(p, "right"))
    line("placement wrong", lambda p: of(p, "wrong"))
    line("no answer", lambda p: of(p, "no answer", "no inputs", "crash", "died", "time-out"))
    line("models with an error that no fault upstream explains", lambda p: f"{sum(bool(errors(r)) for r in p)}")
    line("seconds of one core, median and worst", _seconds)
    return "\n".join(lines)


def _seconds(rows: list[Row]) -> str:
    spent = sorted(float(r["seconds"]) for r in rows if r["status"] == "ok" and r["seconds"])
    return f"{median(spent):.1f}, {spent[-1]:.1f}" if spent else ""


def table(rows: list[Row], wanted: dict[str, Row]) -> str:
    """Those that are wrong, have no answer, or have an error or a note; the others' rows are in the CSV file."""
    lines = ["| model type | class | placement | source | errors |", "|---|---|---|---|---|"]
    noted = {kind for kind, _ in NOTES}
    for row in rows:
        told = errors(row) or row["model_type"] in noted or verdict(row, wanted) in ("wrong", "no answer")
        if row["status"] == "not built" or not told:
            continue
        known = wanted.get(row["model_type"])
        judged = verdict(row, wanted)
        where = f"{judged}: `{known['source']}`" if known else ""
        if judged == "wrong" and known:
            where += f" has {known['expected']}"
        said = row["placement"] if row["status"] == "ok" else row["status"]
        notes = [f"{code}: {why}" for (kind, code), why in NOTES.items() if kind == row["model_type"]]
        held = " (held out)" if row["part"] == "held-out" else ""
        lines.append(f"| {row['model_type']}{held} | {row['class']} | {said} | {where} | "
                     f"{'; '.join([*errors(row), *notes])} |")  # fmt: skip
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    wanted = expected()
    codes = Counter(code for row in rows for code in errors(row))
    told = ", ".join(f"{code} {n}" for code, n in codes.most_common()) or "none"
    return f"""# The gallery

What `isograd check` says of model types of transformers 5.23, each built small from its own configuration by one set
of rules (`benchmarks/small_configs.py`), run on inputs that it finds itself (`benchmarks/families.py`).

For {len(wanted)} of them the placement was read from the source beforehand, with file, line and reason
(`benchmarks/{EXPECTED.name}`). One model type in three, by the hash of its name, was held out:
nothing was mended by looking at them, but for one crash. All {len(rows)} were run at one version; the {AGAIN} with an
error or without an answer once more after the last mending, with inputs that are then guessed for some of them.
What was read there stays as it was written, also where the answer below shows
that a norm inside a branch, or the class that was built, was overlooked (diffllama, whisper, blenderbot).

{summary(rows, wanted)}

Errors that no fault upstream explains: {told}.

`attn pre-ln 3` is three attentions that read the norm of the stream; `mix` mixes positions without weights that sum to
one (recurrences, linear attention, convolutions). Below are the types whose placement is wrong or not found where the
source was read, and those with an error; all rows: [families.csv](results/families.csv), and what was read of the
sources, `benchmarks/{EXPECTED.name}`.

{table(rows, wanted)}

{later()}

{packages()}

## Not built

Messages are in [families.csv](results/families.csv).

{unbuilt(rows)}
"""


ALARMS = {  # (model type, code) of the later sweep: whether it is true of what transformers ships, and why
    ("convbert", "padding-leaks"): (True, "a convolution over positions reads padded ones"),
    ("mobilebert", "padding-leaks"): (True, "a token's vector is made of its neighbours' too, padded ones included"),
    ("roc_bert", "gradient-zero"): (False, "without ids of pronunciations it reads the padding row: another call"),
    ("beam", "rotary-wrong"): (
        False,
        "queries are multiplied by a number that grows with the position, not turned",
    ),
    ("flava", "parameter-unused"): (False, "its parameters for pictures with text, given text alone: another call"),
    ("fsmt", "future-leaks"): (False, "what it names is the encoder, which may see all"),
    ("llava_onevision", "parameter-unused"): (
        False,
        "a mark for pictures, given text alone: another call",
    ),
    ("luke", "embedding-untied"): (True, "the configuration ties the head, and the class's list of ties lacks it"),
    ("luke", "parameter-unused"): (False, "its queries for entities, given words alone: another call"),
    ("mimi", "gradient-zero"): (True, "its codebooks are zeros until a checkpoint is loaded: the decoder reads 0"),
    ("paligemma", "future-leaks"): (
        False,
        "a prefix is read both ways, and without labels all is prefix: another call",
    ),
    ("pe_audio", "gradient-cut"): (True, "its codec runs under no_grad, on purpose"),
    ("pe_audio_encoder", "gradient-cut"): (True, "the same"),
    ("reformer", "mask-blocks-self"): (False, "hashed attention leaves a position itself out, on purpose"),
    ("reformer", "parameter-unused"): (True, "the bias of its head is made, and its decoder has none"),
}
ALARMS |= {(kind, code): (True, NOTES[kind, code]) for kind, code in (
    ("cpmant", "future-leaks"), ("cvt", "gradient-zero"), ("funnel", "padding-leaks"),
    ("imagegpt", "padding-leaks"), ("pop2piano", "embedding-untied"),
    ("nystromformer", "padding-leaks"), ("yoso", "padding-leaks"),
)}  # fmt: skip
UPSTREAM = "; every new "


def later() -> str:
    """The section about the types that were run again, without trials, on a later version."""
    with LATER.open() as file:
        rows = list(csv.DictReader(file))
    parts = [[r for r in rows if r["part"] == part] for part in ("development", "held-out")]
    alarms = [
        (row, severity, code, address, message)
        for row in rows
        for told, (code, address, message) in zip(
            row["findings"].split(), json.loads(row["messages"] or "[]"), strict=True
        )
        if (severity := told.partition(":")[0]) != "info"
    ]
    lines = ["| | development | held out |", "|---|---|---|"]

    def line(name: str, cell: Callable[[list[Row]], object]) -> None:
        lines.append(f"| {name} | {' | '.join(str(cell(part)) for part in parts)} |")

    def having(own: bool, *severities: str) -> Callable[[list[Row]], int]:
        return lambda part: sum(
            any(r is row and s in severities and (UPSTREAM not in m) == own for r, s, _, _, m in alarms) for row in part
        )

    line("model types, looked at", lambda p: f"{len(p)}, {_looked(p)}")
    line("crash", lambda p: sum(r["status"] in ("crash", "died", "memory") for r in p))
    line("no inputs found", lambda p: sum(r["status"] == "no inputs" for r in p))
    line("no answer in time", lambda p: sum(r["status"] == "time-out" for r in p))
    line("not built", lambda p: sum(r["status"] == "not built" for r in p))
    line("types with an error", having(True, "error"))
    line("types with a warning", having(True, "warning"))
    line("types with an error that every new model of the class has, reported as a warning", having(False, "warning"))
    line("types with a warning that every new model of the class has, reported as an info", _lowered)
    line("seconds of one core, median, 99th percentile", _percentiles)
    table = ["| model type | alarm | |", "|---|---|---|"]
    for row, severity, code, _, message in alarms:
        judged = ALARMS.get((row["model_type"], code))
        verdict_ = f"{str(judged[0]).lower()}: {judged[1]}" if judged else "not judged"
        held = " (held out)" if row["part"] == "held-out" else ""
        lowered = ", upstream" if UPSTREAM in message else ""
        table.append(f"| {row['model_type']}{held} | {severity}{lowered}: {code} | {verdict_} |")
    return "\n".join(
        [
            "## Again, later",
            "",
            f"{len(rows)} types were run once more after facts and suspicions were parted: all held-out ones,",
            "and 18 others that had an alarm before or stand for a family, so they are no sample. Half of the",
            "held-out ones ran without trials (`benchmarks/families.py --no-prove`: an error is then a fact, and a",
            "suspicion is a warning), the other half with eight seconds of them, as a user has it. Nothing was",
            "mended by looking. What every new model of a class has",
            "is lowered to a warning, so that no error is left says little by",
            f"itself: of {_looked(parts[1])} held-out types, {_false(parts[1])} have such a warning that is false"
            f" ({_share(parts[1])}).",
            f"All rows: [{LATER.name}](results/{LATER.name}).",
            "",
            *lines,
            "",
            *table,
        ]
    )


def _looked(rows: list[Row]) -> int:
    return sum(r["status"] == "ok" for r in rows)


def _false(rows: list[Row]) -> int:
    wrong = {kind for (kind, _), (true, _) in ALARMS.items() if not true}
    return sum(r["model_type"] in wrong for r in rows)


def _share(rows: list[Row]) -> str:
    share = wilson(_false(rows), _looked(rows))
    return f"95 % interval {share.low:.3f} to {share.high:.3f}"


def _lowered(rows: list[Row]) -> int:
    """How many have an info that would be a warning in a class of the user's own."""
    return sum(
        any(
            told.startswith("info:") and UPSTREAM in one[2]
            for told, one in zip(r["findings"].split(), said, strict=True)
        )
        for r in rows
        if (said := json.loads(r["messages"] or "[]"))
    )


def _percentiles(rows: list[Row]) -> str:
    spent = sorted(float(r["seconds"]) for r in rows if r["status"] == "ok")
    return f"{median(spent):.2f}, {spent[int(0.99 * (len(spent) - 1))]:.2f}" if spent else ""


PACKAGE_NOTES = {
    ("timm", "davit_tiny"): "attention over channels sums over all positions, and is divided by the root of a head's"
    " width, as in its release; timm's dynamic_scale corrects it",
}


def packages() -> str:
    """The section about other packages, of the rows of `packages.py`."""
    with PACKAGES.open() as file:
        rows = list(csv.DictReader(file))
    lines = ["| package | models | run | placement right | held out: right | models with a false error (held out) |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for name in dict.fromkeys(row["package"] for row in rows):
        own = [r for r in rows if r["package"] == name]
        held = [r for r in own if r["part"] == "held-out"]
        false, unseen = ([r for r in part if r["errors"] and (name, r["model"]) not in PACKAGE_NOTES]
                         for part in (own, held))  # fmt: skip
        ran = sum(r["status"] == "ok" for r in own)
        lines.append(f"| {name} | {len(own)} | {ran} | {_right(own)} | {_right(held)} | {len(false)} ({len(unseen)}) |")
    table = ["| package | model | placement | source | errors |", "|---|---|---|---|---|"]
    for row in rows:
        if row["status"] == "ok" and not row["errors"] and row["verdict"] in ("", "right"):
            continue
        held_out = " (held out)" if row["part"] == "held-out" else ""
        said = row["placement"] if row["status"] == "ok" else row["status"].partition(":")[0]
        wanted = f"{row['verdict']}, has {row['expected']}" if row["verdict"] == "wrong" else row["verdict"]
        note = PACKAGE_NOTES.get((row["package"], row["model"]))
        errors_ = f"{row['errors']}: {note}" if note else row["errors"]
        table.append(f"| {row['package']} | {row['model']}{held_out} | {said} | {wanted} | {errors_} |")
    return "\n".join(
        [
            "## Other packages",
            "",
            "timm 1.0.31, vit-pytorch 1.26.11, x-transformers 2.31.10 (options of its Decoder) and torch.nn, without"
            " pretrained weights,",
            "by `python benchmarks/packages.py`, which says how they are installed. Expected placements are in its"
            " tables, from the source; where",
            "the catalogue has no name for a design it is left open, and only errors count. One model in three is held"
            " out by the hash of its name. Rows that are right are in [packages.csv](results/packages.csv) alone.",
            "Measured once with facts and trials; the two false errors have been an info and a warning since.",
            "",
            *lines,
            "",
            *table,
        ]
    )


def _right(rows: list[Row]) -> str:
    judged = [r for r in rows if r["verdict"]]
    return f"{sum(r['verdict'] == 'right' for r in judged)} of {len(judged)}"


def unbuilt(rows: list[Row]) -> str:
    """The model types that no small configuration builds, by the error of the first that was tried."""
    types: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] == "not built":
            why = row["detail"].partition(" | ")[0]
            needs = re.search(r"requires the (\w+) library", why)
            reason = f"needs {needs[1]}" if needs else why.partition(":")[0]
            reason = "more than 60M parameters" if why.endswith(" parameters") else reason
            types.setdefault(reason, []).append(row["model_type"])
    ordered = sorted(types.items(), key=lambda item: (-len(item[1]), item[0]))
    return "\n".join(["| why | model types |", "|---|---|", *(f"| {why} | {', '.join(who)} |" for why, who in ordered)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=DOCS / "results" / "families.csv")
    with parser.parse_args().rows.open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["model_type"])
    (DOCS / "gallery.md").write_text(page(rows))


if __name__ == "__main__":
    main()
