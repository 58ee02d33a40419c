"""One page of folders of several kinds, before and after: runs, watched loops, models, transformers' Trainer.

Each folder is a `Side`: what its files and a look at its model say. What one of them does not have is "not recorded".
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from isograd.errors import UserError, many
from isograd.files import read_object, read_rows
from isograd.hub import SETUP, is_watched
from isograd.lab.report.page import Page, Section, Table, write_page
from isograd.lab.report.pages.watch import curves, without_step
from isograd.lab.report.style import (
    Drawing,
    Look,
    Output,
    drawing,
    heading,
    is_first,
    known,
    label,
    log,
    look,
    steps,
)
from isograd.lab.study.labels import flat, shown

Row = dict[str, Any]
MISSING = "not recorded"
TRAINER = "trainer_state.json"  # what transformers' Trainer writes beside a checkpoint
_ASKED = (  # rows of "What differs" that stand there, too, where only some sides know them
    "layers",
    "width",
    "heads",
    "parameters",
    "placement",
    "training.optimizer",
    "training.lr",
    "training.warmup",
    "training.batch",
    "training.weight_decay",
    "data.source",
)
_CALLED = {  # other names of these settings: of config.json, of trainer_state.json, of a run
    "layers": ("model.layers", "num_hidden_layers", "n_layer", "num_layers"),
    "width": ("model.width", "hidden_size", "n_embd", "d_model"),
    "heads": ("model.heads", "num_attention_heads", "n_head", "num_heads"),
    "vocabulary": ("vocab_size",),
    "placement": ("model.placement", "config.placement"),
    "training.batch": ("train_batch_size",),
    "training.steps": ("max_steps",),
}
_NO_SETTINGS = ("_name_or_path", "transformers_version", "name", "architectures", "formula", "use_cache")


@dataclass(frozen=True, kw_only=True)
class Side:
    """What is known of one folder.

    Attributes:
        settings: dotted keys -> values, under one name where runs, config.json and Trainer have several.
        rows: by step: loss, grad_norm, and tokens where they are known.
        layers: by step and layer: gradient_mean_abs.
        warned: the rows of warnings; None where nothing watched it.
        model: what `look` in `isograd.lab.cli.report` says: findings, placements, formulas, weights; or why not.
        data: the hash of the training data; None where it is not known.
    """

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    layers: Sequence[Row] = ()
    warned: Sequence[Row] | None = None
    model: Row = field(default_factory=dict)
    outcome: str = ""
    data: str | None = None

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.rows if row.get("loss") is not None]

    @property
    def tokens(self) -> int | None:
        return next((row["tokens"] for row in reversed(self.rows) if row.get("tokens")), None)


def is_side(folder: Path) -> bool:
    """Whether a folder is no run's, and yet has something to say: a loop's rows, a model, a Trainer's state."""
    if any((folder / name).exists() for name in ("run.json", "resolved.json", "outcome.json")):
        return False
    return is_watched(folder) or model_of(folder) is not None or logged_of(folder)


def logged_of(folder: Path) -> bool:
    """Whether transformers' Trainer has left its log there."""
    return _state(folder) is not None


def model_of(folder: Path) -> Path | None:
    """The folder of the model: this one, that of a run, or the newest checkpoint of a Trainer; None where none is."""
    places = (folder, folder / "model", *_checkpoints(folder))
    return next((place for place in places if (place / "config.json").is_file()), None)


def sides_of(folders: Sequence[Path], models: Mapping[Path, Row], called: Mapping[str, str]) -> list[Side]:
    """A side per folder.

    Args:
        models: what a look at the model of a folder gave.
        called: other names, by the folder's name or path.

    Raises:
        UserError: there is no folder of a name in `called`.
    """
    bare = [folder.parent if folder.name == "model" else folder for folder in map(Path.resolve, folders)]
    short = [folder.name for folder in bare]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    for one in called:
        if one not in (*names, *map(str, folders)):
            raise UserError(f"no folder has the name {one!r}; there are {'; '.join(names)}")
    named = [
        next((called[one] for one in (name, str(folder)) if one in called), name)
        for name, folder in zip(names, folders, strict=True)
    ]
    return [_side(folder, name, models.get(folder, {})) for folder, name in zip(folders, named, strict=True)]


def _side(folder: Path, name: str, model: Row) -> Side:
    run, resolved = (read_object(folder / f"{one}.json") for one in ("run", "resolved"))
    state = read_object(path) if (path := _state(folder)) is not None and not run else {}
    own = model_of(folder)
    config = read_object(own / "config.json") if own is not None else {}
    rows = read_rows(folder / "metrics.jsonl")
    watched = bool(run) or (folder / "metrics.jsonl").is_file()
    kind = "run" if run else "watched loop" if watched else "Trainer" if state else "model"
    kind += " and model" if kind == "watched loop" and own is not None else ""
    update = _tokens_per_update(run)
    rows = [row | ({"tokens": update * row["step"]} if update else {}) for row in rows] or _logged(state)
    settings = dict(_settings(run, resolved, config, state, read_object(folder / SETUP), model))
    rates = [row["lr"] for row in rows if row.get("lr") is not None]
    if rates and not run:
        settings["training.lr"] = f"{max(rates):g} (highest logged)"
    return Side(
        name=name,
        kind=kind,
        settings=settings,
        rows=rows,
        layers=[row for row in read_rows(folder / "quantities.jsonl") if row.get("kind") in (None, "ffn")],
        warned=read_rows(folder / "warnings.jsonl") if watched else None,
        model=model or ({"formulas_of_run": resolved["formulas"]} if resolved.get("formulas") else {}),
        outcome=str(read_object(folder / "outcome.json").get("outcome", "")),
        data=(resolved.get("data") or {}).get("sha256"),
    )


def _settings(run: Row, resolved: Row, config: Row, state: Row, setup: Row, model: Row) -> Iterator[tuple[str, Any]]:
    others = {other: name for name, every in _CALLED.items() for other in every}
    stated = {key: state[key] for key in ("train_batch_size", "max_steps", "num_train_epochs") if state.get(key)}
    found: dict[str, Any] = {"parameters": resolved.get("parameters")}
    found |= {"model class": next(iter(config.get("architectures") or ()), None)}
    for content, prefix in ((config, "config."), (stated, ""), (setup, ""), (run, "")):  # a run's is the last word
        for key, value in flat(content):
            if key.partition(".")[0] not in _NO_SETTINGS:
                found[others.get(key) or others.get(f"{prefix}{key}", f"{prefix}{key}")] = value
    if model.get("placements"):
        found["placement"] = ", ".join(dict.fromkeys(model["placements"].values()))
    found |= {key: value for key, value in model.get("shape", {}).items() if value is not None}
    yield from ((key, value) for key, value in found.items() if value is not None)


def _tokens_per_update(run: Row) -> int:
    """0 where it is not known: the batches of a translation are filled."""
    training, length = run.get("training", {}), run.get("data", {}).get("length")
    if run.get("task", "language") not in ("language", "masked") or not length or not training.get("batch"):
        return 0
    return int(training["batch"] * (training.get("accumulation") or 1) * length)


def _checkpoints(folder: Path) -> list[Path]:
    """Those of a Trainer in its folder, the newest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]
    return sorted(found, key=lambda path: -int(path.name.rpartition("-")[2]))


def _state(folder: Path) -> Path | None:
    return next((one for f in (folder, *_checkpoints(folder)) if (one := f / TRAINER).is_file()), None)


def _logged(state: Row) -> list[Row]:
    """The log of transformers' Trainer as rows of steps."""
    names = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate", "tokens": "num_input_tokens_seen"}
    rows = [row for row in state.get("log_history") or () if row.get("step") is not None and "loss" in row]
    return [{"step": row["step"], **{name: _number(row.get(key)) for name, key in names.items()}} for row in rows]


def _number(value: Any) -> float | None:
    """Trainer logs numbers, or their texts."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if abs(found) != float("inf") and found == found else None


# ------------------------------------------------------------------------------------------------------------ the page


def write_sides(
    sides: Sequence[Side], out: Path, title: str | None = None, output: Output | None = None
) -> tuple[Path, Table]:
    """Write report.html of several folders: its path, and the table of what they say alike."""
    looks = [look(i) for i in range(len(sides))]
    table = Table.of(sides, _COLUMNS, looks=looks, left=len(_COLUMNS))
    page = Page(
        title=title or (" and ".join(s.name for s in sides) if len(sides) == 2 else f"{len(sides)} folders compared"),
        headline=headline(sides),
        warnings=[line for line in (_other_data(sides),) if line],
        sections=[
            Section(name="sides", title="In short", sentence=_LAST, table=table),
            Section(name="differences", title="What differs", sentence=_DIFFERS, table=differences(sides)),
            Section(
                name="loss",
                title="Loss and gradient norm",
                sentence=_without(sides),
                figure=lambda: curves({side.name: side.rows for side in sides}, looks),
            ),
            Section(
                name="tokens",
                title="Loss by tokens",
                sentence=_with_missing("", [s.name for s in sides if not s.tokens]),
                figure=partial(_by_tokens, sides, looks),
            ),
            Section(
                name="gradients",
                title="Gradients by layer",
                sentence=_with_missing(_LEVEL, [s.name for s in sides if not profile(s)]),
                figure=partial(_level, sides, looks),
            ),
            Section(name="placements", title="Placement", table=_placements(sides), verdicts=[*_moved(sides)]),
            Section(name="findings", title="Found", sentence=_FOUND, table=_findings(sides), verdicts=[*_new(sides)]),
            Section(
                name="weights",
                title="Sizes of weights",
                sentence=_with_missing(_WEIGHTS, [s.name for s in sides if not s.model.get("weights")]),
                figure=partial(_weights, sides, looks),
                table=_weights_table(sides),
            ),
            Section(name="settings", title="All settings", table=_all_settings(sides), folded=True),
        ],
        made="Made by isograd from the files in these folders"
        + (
            " and one forward and backward pass of each model."
            if any(s.model.get("placements") for s in sides)
            else "."
        )
        + " Each alone has a page that says more: `isograd report`, `isograd explain`.",
    )
    return write_page(page, out / "report.html", output), table


_LAST = "The last loss is the mean of the last 20 steps, as far as they are logged; the lowest that of any 20 in a row."
_DIFFERS = "Settings that are not the same in all, the chief ones also where some files do not have them."
_LEVEL = (
    "Mean |gradient| of a matrix of each layer (W_2 of a run) at the last measured steps, over that of the last layer."
    " Flat lines are better."
)
_FOUND = "What `isograd check` says of the model, without trials, and what `isograd.watch` reported during the run."
_WEIGHTS = (
    "RMS of the entries of each matrix, by what it does in its layer. The table has the first and the last layer."
)


def headline(sides: Sequence[Side]) -> str:
    """How the losses end, and where something was found."""
    losses = [f"{_last(side)} ({side.name})" for side in sides if side.losses]
    first = f"Last loss: {', '.join(losses)}. " if 0 < len(losses) <= 3 else ""
    found = [side for side in sides if side.warned or _errors(side)]
    if found:
        said = f"{len(found)} of {len(sides)} have a warning or an error: {', '.join(side.name for side in found[:3])}"
        return f"{first}{said}{', ...' if len(found) > 3 else ''}."
    looked = [side for side in sides if side.warned is not None or side.model.get("findings") is not None]
    if not looked:
        return f"{first}None was watched or checked."
    return f"{first}Nothing was reported{'' if len(looked) == len(sides) else ' of those that were looked at'}."


def _errors(side: Side) -> list[Row]:
    return [one for one in side.model.get("findings") or () if one["severity"] == "error"]


def _other_data(sides: Sequence[Side]) -> str:
    with_loss = [side for side in sides if side.losses]
    hashes = {side.data for side in with_loss}
    if len(with_loss) < 2 or (len(hashes) == 1 and None not in hashes):
        return ""
    why = (
        "they were trained on different data" if None not in hashes else "whether the data are the same is not recorded"
    )
    return f"Losses compare on the same data and tokens only; {why}."


def _means(side: Side) -> list[float]:
    """The loss over every 20 steps in a row, as far as they are logged; over all, where there are fewer."""
    rows, found, start = [row for row in side.rows if row.get("loss") is not None], [], 0
    for end, row in enumerate(rows):
        while rows[start]["step"] <= row["step"] - 20:
            start += 1
        if row["step"] >= min(rows[0]["step"] + 19, rows[-1]["step"]):
            found.append(fmean(one["loss"] for one in rows[start : end + 1]))
    return found


def _lowest(side: Side) -> str:
    return f"{min(_means(side)):.3f}" if side.losses else MISSING


def _last(side: Side) -> str:
    if not side.rows or not side.losses:
        return MISSING
    return "not finite" if side.rows[-1].get("loss") is None else f"{_means(side)[-1]:.3f}"


def _first_warning(side: Side) -> str:
    if side.warned is None:
        return MISSING
    return f"step {side.warned[0]['step']:,}: {without_step(side.warned[0])['message']}" if side.warned else "none"


def _checked(side: Side) -> str:
    if side.model.get("error"):
        return f"not checked: {side.model['error']}"
    if (findings := side.model.get("findings")) is None:
        return MISSING
    counts = [(name, sum(one["severity"] == name for one in findings)) for name in ("error", "warning", "info")]
    said = [f"{n} {name}{'s' if n > 1 and name != 'info' else ''}" for name, n in counts if n]
    return ", ".join(said) or "nothing found"


_COLUMNS: Mapping[str, Callable[[Side], str]] = {
    "folder": lambda side: side.name,
    "kind": lambda side: f"{side.kind}, {side.outcome}" if side.outcome else side.kind,
    "steps": lambda side: f"{side.rows[-1]['step']:,}" if side.rows else MISSING,
    "tokens": lambda side: f"{side.tokens:,.0f}" if side.tokens else MISSING,
    "lowest loss": _lowest,
    "last loss": _last,
    "first warning": _first_warning,
    "check": _checked,
}


def _without(sides: Sequence[Side]) -> str:
    """Which sides a figure of curves lacks."""
    said = []
    for what, key in (("loss", "loss"), ("gradient norm", "grad_norm")):
        lacking = [side.name for side in sides if all(row.get(key) is None for row in side.rows)]
        said += [f"{what} of {', '.join(lacking)}"] if lacking and len(lacking) < len(sides) else []
    return f"Not recorded: {'; '.join(said)}." if said else ""


def _with_missing(sentence: str, names: Sequence[str]) -> str:
    return f"{sentence} Not recorded of {', '.join(names)}.".strip() if names else sentence


def _text(side: Side, key: str) -> str:
    value = side.settings.get(key)
    return MISSING if value is None else f"{value:,}" if key == "parameters" else shown(value)


def differences(sides: Sequence[Side]) -> Table:
    """A line per setting that two sides have otherwise; of the chief ones also where some do not say it. Those of
    config.json compare within one type of model."""
    one_type = len({side.settings.get("config.model_type") for side in sides} - {None}) < 2
    keys = dict.fromkeys([*_ASKED, *(key for side in sides for key in side.settings)])
    lines = []
    for key in (key for key in keys if one_type or not key.startswith("config.") or key == "config.model_type"):
        values = [_text(side, key) for side in sides]
        said = {value for value in values if value != MISSING}
        if len(said) > 1 or (key in _ASKED and said and MISSING in values):
            lines.append((key, *values))
    return _by_side(lines, sides)


def _all_settings(sides: Sequence[Side]) -> Table:
    keys = dict.fromkeys(key for side in sides for key in side.settings)
    return _by_side([(key, *(_text(side, key) for side in sides)) for key in keys], sides)


def _by_side(lines: Sequence[Sequence[str]], sides: Sequence[Side]) -> Table:
    return Table(header=("setting", *(side.name for side in sides)), lines=lines, left=1 + len(sides))


def _by_tokens(sides: Sequence[Side], looks: Sequence[Look]) -> Drawing | None:
    having = [(side, own) for side, own in zip(sides, looks, strict=True) if side.tokens and side.losses]
    if len(having) < 2:
        return None
    drawn = drawing(1, height=3.2)
    for side, own in having:
        rows = [row for row in side.rows if row.get("tokens")]
        known(drawn.panels[0], rows, "tokens", "loss", label=side.name, **(own | {"linewidth": 1.0}))
    label(drawn.panels[0], "tokens", "loss")
    return drawn


def _level(sides: Sequence[Side], looks: Sequence[Look]) -> Drawing | None:
    drawn, lines = None, [(side, own, profile(side)) for side, own in zip(sides, looks, strict=True)]
    for side, own, values in lines:
        if values and values[max(values)]:
            drawn = drawn or drawing(1, height=3.2)
            rows = [{"layer": layer, "y": value / values[max(values)]} for layer, value in sorted(values.items())]
            known(drawn.panels[0], rows, "layer", "y", label=side.name, marker="o", markersize=3, **own)
    if drawn:
        label(drawn.panels[0], "layer", "mean |gradient| over the last layer's")
        steps(drawn.panels[0])
        log(drawn.panels[0])
    return drawn


def profile(side: Side) -> dict[int, float]:
    """Layer -> mean |gradient| over the last fifty steps, of the last stack."""
    rows = [row for row in side.layers if row.get("gradient_mean_abs") is not None]
    stack = rows[-1].get("stack") if rows else None
    last = max((row["step"] for row in rows), default=0)
    late = [row for row in rows if row["step"] > last - 50 and row.get("stack") == stack]
    by_layer: dict[int, list[float]] = {}
    for row in late:
        by_layer.setdefault(row["layer"], []).append(row["gradient_mean_abs"])
    return {layer: fmean(values) for layer, values in by_layer.items()}


# ---------------------------------------------------------------------------------------------------------- the models


def _placements(sides: Sequence[Side]) -> Table:
    """Sublayers of one kind and placement, side by side; () where no model is known."""
    lines: list[tuple[str, ...]] = []
    for side in sides:
        of = side.model
        if of.get("placements"):
            groups = Counter(
                (
                    ".".join("*" if part.isdecimal() else part for part in address.split(".")),
                    name,
                    of["formulas"].get(address, ""),
                )
                for address, name in of["placements"].items()
            )
            lines += [(side.name, f"{address} ({n})", name, text) for (address, name, text), n in groups.items()]
        elif of.get("formulas_of_run"):
            placement = str(side.settings.get("placement", ""))
            lines += [(side.name, kind, placement, text) for kind, text in of["formulas_of_run"].items() if text]
        else:
            lines.append((side.name, MISSING, MISSING, ""))
    if all(line[1] == MISSING for line in lines):
        lines = []
    return Table(header=("folder", "sublayers", "placement", "formula"), lines=lines, left=4)


def _moved(sides: Sequence[Side]) -> Iterator[str]:
    """Where sublayers of the others have another placement than those of the first."""
    known_sides = [side for side in sides if side.model.get("placements")]
    for side in known_sides[1:]:
        before, after = ([*one.model["placements"].values()] for one in (known_sides[0], side))
        who = f"{known_sides[0].name} and {side.name}"
        if len(before) != len(after):
            yield f"{who}: {many(len(before), 'sublayer')} and {many(len(after), 'sublayer')}."
        elif before == after:
            yield f"{who}: the same placement in all {many(len(before), 'sublayer')}."
        else:
            pairs = [(i, pair) for i, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]]
            parts = [(pair, [i for i, _ in of]) for pair, of in groupby(pairs, key=lambda one: one[1])]
            said = [f"{_range(at)}: {old} → {new}" for (old, new), at in parts[:6]]
            yield f"{who} differ in sublayers {'; '.join(said)}{'; ...' if len(parts) > 6 else ''}."


def _range(at: Sequence[int]) -> str:
    return str(at[0]) if len(at) == 1 else f"{at[0]} to {at[-1]}"


def _findings(sides: Sequence[Side]) -> Table:
    lines: list[tuple[str, ...]] = []
    for side in sides:
        own = [
            (side.name, f"check, {one['severity']}", one["code"], one["address"], one["message"], one["remedy"])
            for one in side.model.get("findings") or ()
        ]
        own += [
            (side.name, "watch", row["signal"], f"step {row['step']:,}", without_step(row)["message"], _cure(row))
            for row in side.warned or ()
        ]
        looked = [
            name for name, said in (("check", _checked(side)), ("watch", _first_warning(side))) if said != MISSING
        ]
        if not own:
            said = "nothing found" if looked and not side.model.get("error") else MISSING
            own = [(side.name, ", ".join(looked) or "–", "–", "–", _unchecked(side) or said, "–")]
        lines += own
    return Table(header=("folder", "by", "code", "where", "what", "what to do"), lines=lines, left=6)


def _unchecked(side: Side) -> str:
    return f"not checked: {side.model['error']}" if side.model.get("error") else ""


def _cure(row: Row) -> str:
    return str(row.get("remedy") or "–")


def _new(sides: Sequence[Side]) -> Iterator[str]:
    """What `check` finds of one of two models and not of the other."""
    checked = [side for side in sides if side.model.get("findings") is not None]
    if len(checked) != 2:
        return
    before, after = ({one["code"]: None for one in side.model["findings"]} for side in checked)
    for side, own, other in ((checked[0], before, after), (checked[1], after, before)):
        if alone := [code for code in own if code not in other]:
            yield f"In {side.name} alone: {', '.join(alone)}."
    if both := [code for code in before if code in after]:
        yield f"In both: {', '.join(both)}."


_ROLES = {  # of a matrix in a layer, one matrix may have several: what a page calls it
    "query": "query",
    "key": "key",
    "value": "value",
    "query+key+value": "query, key, value",
    "attn_out": "attention output",
    "ffn_in": "feed-forward input",
    "ffn_out": "feed-forward output",
}


def _roles(sides: Sequence[Side]) -> list[tuple[str, str]]:
    """(stack, role) of all matrices in layers, in the order in which a layer runs."""
    found = {(row["stack"], row["role"]) for side in sides for row in side.model.get("weights") or ()}
    order = {role: place for place, role in enumerate(_ROLES)}
    return sorted(found, key=lambda one: (one[0], order.get(one[1], len(order)), one[1]))


def _sizes(side: Side, stack: str, role: str) -> dict[int, float]:
    """Layer -> RMS over all matrices of this role in it."""
    found: dict[int, list[float]] = {}
    for row in side.model.get("weights") or ():
        if (row["stack"], row["role"]) == (stack, role):
            found.setdefault(row["layer"], []).append(row["rms"])
    return {layer: fmean(of) for layer, of in sorted(found.items())}


def _role_names(sides: Sequence[Side]) -> dict[tuple[str, str], str]:
    """What a page calls them; the stack is named where there are several."""
    roles = _roles(sides)
    several = len({stack for stack, _ in roles}) > 1
    names = {(stack, role): _ROLES.get(role, role.replace("_", " ")) for stack, role in roles}
    return {place: f"{name}, {place[0]}" if several else name for place, name in names.items()}


def _weights(sides: Sequence[Side], looks: Sequence[Look]) -> Drawing | None:
    names = _role_names(sides)
    drawn = drawing(len(names), height=2.3, beside=3, least=2.4) if names else None
    for axes, ((stack, role), name) in zip(drawn.panels if drawn else (), names.items(), strict=True):
        for side, own in zip(sides, looks, strict=True):
            rows = [{"layer": layer, "rms": rms} for layer, rms in _sizes(side, stack, role).items()]
            known(axes, rows, "layer", "rms", label=side.name, marker="o", markersize=3, **own)
        heading(axes, name)
        label(axes, "layer", "RMS" if is_first(axes) else "")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        steps(axes)
    return drawn


def _weights_table(sides: Sequence[Side]) -> Table:
    shown_sides = [side for side in sides if side.model.get("weights")]
    lines = [
        (name, *(_ends(_sizes(side, stack, role)) for side in shown_sides))
        for (stack, role), name in _role_names(sides).items()
    ]
    return Table(header=("matrix", *(side.name for side in shown_sides)), lines=lines)


def _ends(sizes: Mapping[int, float]) -> str:
    if not sizes:
        return "–"
    values = [f"{value:.3g}" for value in (sizes[min(sizes)], sizes[max(sizes)])]
    return values[0] if len(sizes) == 1 else " → ".join(values)
