"""What ADMIN's paper measures of stacks: gradients and output changes at initialization, dependency maps, skips."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from isograd.hub import from_pretrained
from isograd.papers.reproduce.context import Context, Trained
from isograd.papers.reproduce.item import Row, Rows

SEEDS = (1, 2, 3)
PLACEMENTS = {"post-ln": "Post-LN", "pre-ln": "Pre-LN", "admin": "ADMIN"}
PAIRS = {  # of encoder and decoder
    "Post-LN": ("post-ln", "post-ln"),
    "Post-LN encoder, Pre-LN decoder": ("post-ln", "pre-ln"),
    "Pre-LN encoder, Post-LN decoder": ("pre-ln", "post-ln"),
    "Pre-LN": ("pre-ln", "pre-ln"),
}
DEPTHS = (6, 18)


def output_changes(context: Context) -> Rows:
    """A row per depth: mean |F(x, W + d) - F(x, W)|^2 / e^2 of the last hidden state, d = e sign(noise or gradient)."""
    from isograd.papers.theory import amplification

    ways = {"random": amplification.output_changes, "gradient": amplification.gradient_changes}
    rows: list[Row] = []
    for seed, direction, placement in product(context.seeds or range(41, 57), ways, PLACEMENTS):
        measure = partial(ways[direction], placement, amplification.DEPTHS, seed)
        changes = context.once(f"output change, {direction}, {placement}, seed {seed}", measure)
        first = {"direction": direction, "placement": placement, "arm": PLACEMENTS[placement], "seed": seed}
        pairs = zip(amplification.SUBLAYERS, changes, strict=True)
        rows += [{**first, "sublayers": n, "change": c, "relative": c / changes[0]} for n, c in pairs]
    return rows


def gradients_at_init(context: Context) -> Rows:
    """A row per layer: |dL/dW_2| over that of the stack's last layer, 8 x 32 random tokens, width 256."""
    from isograd.papers.theory.gradients import of_stacks

    rows: list[Row] = []
    for seed, layers, (arm, pair) in product(context.seeds or SEEDS, DEPTHS, PAIRS.items()):
        encoder, decoder = pair
        measure = partial(of_stacks, decoder, layers, seed, encoder)
        found = context.once(f"gradients at initialization, {arm}, {layers}+{layers}, seed {seed}", measure)
        for stack, norms in found.items():
            first = {"arm": arm, "layers": layers, "seed": seed, "stack": stack}
            rows += [{**first, "layer": i, "gradient": n, "relative": n / norms[-1]} for i, n in enumerate(norms, 1)]
    return rows


def gradients_of_runs(context: Context) -> Rows:
    """A row per run, with `encoder_factor` and `decoder_factor`: see `factor`; and `source_use`."""
    return [
        one.row(
            **{f"{stack}_factor": factor(one.read("quantities.jsonl"), stack) for stack in ("encoder", "decoder")},
            source_use=context.once(f"use of the source, {one.arm}, seed {one.seed}", partial(_source_use, one)),
        )
        for one in context.trained
    ]


def _source_use(one: Trained) -> float:
    """How far the loss of a batch rises where each translation is given the source of another, in nats per token: 0
    where nothing of the source comes through."""
    import torch

    from isograd.lab.train.train import load_task
    from isograd.models import IsogradForSeq2SeqLM

    batch = dict(load_task(one.run).first_batch())
    model = from_pretrained(IsogradForSeq2SeqLM, one.folder / "model").eval()
    turned = {name: batch[name].roll(1, 0) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return float(model(**{**batch, **turned}).loss - model(**batch).loss)


def factor(quantities: Rows, stack: str) -> float | None:
    """(first / last)^(1 / (L - 1)) of |dL/dW_2| at the first update, one number per layer going down."""
    norms = [row["gradient_norm"] for row in _ffn(quantities, stack) if row["step"] == 1]
    return (norms[0] / norms[-1]) ** (1 / (len(norms) - 1)) if len(norms) > 1 and norms[-1] else None


def updates_of_runs(context: Context) -> Rows:
    """A row per run, and one per layer: |dL/dW_2| and |change of W_2| / |W_2|, each over the last layer's."""
    rows: list[Row] = []
    for one in context.trained:
        found = _ffn(one.read("quantities.jsonl"), "decoder")
        steps: dict[int, list[Row]] = {}
        for row in found:
            steps.setdefault(row["step"], []).append(row)
        own = one.row(gradient_factor=factor(found, "decoder"))
        last = steps[max(steps)]
        own |= {f"{name}_ratio": _ratio(steps[1], column) for name, column in _SIZES.items()}
        own |= {f"{name}_ratio_end": _ratio(last, column) for name, column in _SIZES.items()}
        rows.append(own)
        rows += [
            {
                **{key: own[key] for key in ("group", "arm", "placement", "seed", "optimizer")},
                "when": when,
                "layer": row["layer"],
                "size": name,
                "relative": row[column] / at[-1][column],
            }
            for when, at in (("first update", steps[1]), ("last probe", last))
            for name, column in _SIZES.items()
            for row in at
            if row[column] and at[-1][column]
        ]
    return rows


_SIZES = {"gradient": "gradient_norm", "update": "update_ratio"}


def _ratio(rows: Rows, column: str) -> float | None:
    """The first layer's over the last one's."""
    first, last = rows[0][column], rows[-1][column]
    return first / last if first is not None and last else None


def _ffn(quantities: Rows, stack: str) -> Rows:
    return [row for row in quantities if row["kind"] == "ffn" and row.get("stack", stack) == stack]


def dependencies(context: Context) -> Rows:
    """A row per pair of sublayers: beta_ij^2 before the first update, and of the trained model."""
    rows: list[Row] = []
    for one in context.trained:
        maps = context.once(f"dependency map, {one.arm}, seed {one.seed}", partial(_maps, one))
        rows.append(one.row(**{name: of["own"] for name, of in maps.items()}))
        for name, found in maps.items():
            stack, when = name.split(" ")
            first = {"arm": one.arm, "placement": one.placement, "seed": one.seed, "stack": stack, "when": when}
            first["panel"] = f"{one.arm}, {when}"
            rows += [
                {**first, "sublayer": i, "part": j, "beta2": value}
                for i, row in enumerate(found["rows"], start=1)
                for j, value in enumerate(row)
            ]
    return sorted(rows, key=lambda row: row.get("when", ""))  # the runs, then the maps before training, then after


def _maps(one: Trained) -> dict[str, Any]:
    """ "encoder trained" and so on: the rows of the map, and the mean beta_ii^2 of the stack's upper half."""
    from isograd.lab.train.train import initial_model
    from isograd.models import IsogradForSeq2SeqLM
    from isograd.papers.reproduce.measures.dependency import dependency_map

    task, model = initial_model(one.run)
    batch = {name: value for name, value in task.first_batch().items() if name != "labels"}
    labels = task.first_batch()["labels"]
    batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    batch["decoder_attention_mask"] = (labels != -100).long()
    trained = from_pretrained(IsogradForSeq2SeqLM, one.folder / "model")
    found = {}
    for when, network in (("init", model), ("trained", trained)):
        for stack in ("encoder", "decoder"):
            of = dependency_map(network, batch, stack)
            upper = of.own[len(of.own) // 2 :]
            found[f"{stack} {when}"] = {"rows": of.rows, "own": sum(upper) / len(upper)}
    return found


def skips(context: Context) -> Rows:
    """A row per sublayer: ADMIN's skip as profiled, and at each probed step (its mean over the width)."""
    rows: list[Row] = []
    for one in context.trained:
        resolved = json.loads((one.folder / "resolved.json").read_text(encoding="utf-8"))
        steps = {0: {stack: resolved["calibration"][stack] for stack in ("encoder", "decoder")}}
        for row in one.read("quantities.jsonl"):
            steps.setdefault(row["step"], {}).setdefault(row["stack"], []).append(row["skip"])
        last = max(steps)
        grown = {f"{stack}_{name}": v for stack in steps[0] for name, v in _growth(steps, stack, last)}
        rows.append(one.row(**grown, moved=max(value for name, value in grown.items() if name.endswith("_moved"))))
        for step in (0, last):
            for stack, values in steps[step].items():
                first = {"arm": one.arm, "placement": one.placement, "seed": one.seed, "stack": stack}
                first |= {"when": f"after {step} updates" if step else "profile", "layers": one.run.layers}
                rows += [{**first, "sublayer": i, "skip": skip} for i, skip in enumerate(values, start=1)]
    return rows


def _growth(steps: dict[int, dict[str, list[float]]], stack: str, last: int) -> Iterator[tuple[str, float]]:
    """p of skip_i ~ i^p from the sixth sublayer on, as profiled; the largest change by training, relative."""
    from isograd.lab.statistics import exponent

    profiled, trained = steps[0][stack], steps[last][stack]
    yield "exponent", exponent(range(6, len(profiled) + 1), profiled[5:])
    yield "moved", max(abs(b / a - 1) for a, b in zip(profiled, trained, strict=True))
