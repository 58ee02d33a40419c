"""What the page says in words: what was compared on what, and every setting."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from isograd.lab.report.runs import ArmFiles, Row
from isograd.lab.study.labels import ALWAYS, differences, flat, shown


def subtitle(arms: Sequence[ArmFiles], text: Row | None) -> str:
    """Shape, data and training in a sentence; of what differs between the arms each value.

    Args:
        text: the facts of the data, where they are known.
    """
    seeds = sorted({r.run["seed"] for a in arms for r in a.runs})
    run = arms[0].first.run
    own = _OWN_TEXT if "source" in (run.get("data") or {}) else _OWN
    said = (
        _filled(own, arms)
        if "build" in run["model"]
        else _translation(arms, text)
        if "pairs" in run
        else _filled(_TUNED, arms)
        if "glue" in run
        else _language(arms)
    )
    return (
        f"{said}; seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}."
        " The same data order and initialization seed for all arms."
    )


def settings(arms: Sequence[ArmFiles], text: Row | None) -> Iterator[tuple[str, str]]:
    """Names and values: the data, each section of the recipe, versions and hardware."""
    yield from _data(text) if text else ()
    sections = [name for name, content in arms[0].first.run.items() if isinstance(content, dict)]
    for section in sections:
        keys = [key for key, _ in flat({section: arms[0].first.run.get(section, {})}) if key not in ALWAYS]
        if keys:
            yield section, ", ".join(f"{key.partition('.')[2]} {_each(arms, key)}" for key in keys)
    made = [found for arm in arms for run in arm.runs if (found := run.outcome.get("provenance"))]
    for name in made[0] if made else ():
        yield name, "; ".join(dict.fromkeys(str(one[name]) for one in made if name in one))


def differing(arms: Sequence[ArmFiles]) -> list[str]:
    """The dotted keys in which these arms differ."""
    return differences([arm.first.run for arm in arms])


_LANGUAGE = (
    "{model.layers} layers, width {model.width}, {model.heads} heads; sequences of {data.length} ({level}), batch"
    " {training.batch}, {training.optimizer} at LR {training.lr}, {training.steps} steps"
)
_OWN = "{model.build}; {training.optimizer} at LR {training.lr}, {training.steps} steps"
_OWN_TEXT = (
    "{model.build}; sequences of {data.length} ({data.level} level), batch {training.batch}, {training.optimizer} at LR"
    " {training.lr}, {training.steps} steps"
)
_TUNED = (
    "{glue.task}, fine-tuned from {glue.model}; at most {glue.length} tokens, batch {training.batch},"
    " {training.optimizer} at LR {training.lr}, {training.epochs} epochs"
)
_TRANSLATION = (
    "{pairs} {pairs.source} → {pairs.target}, vocabulary {vocabulary}; {depth} layers (encoder + decoder), width"
    " {model.width}, {model.heads} heads; batches of {training.tokens} tokens, {training.optimizer} at LR"
    " {training.lr}, {steps} steps"
)
_MASKED = {
    "data.mask": "masked {data.mask}",
    "data.mask_random": "of these random {data.mask_random}",
    "data.mask_kept": "kept {data.mask_kept}",
    "data.packing": "packing {data.packing}",
}


def _filled(template: str, arms: Sequence[ArmFiles], **facts: str) -> str:
    """With what each dotted key stands for, or a fact of this name."""
    return re.sub(r"\{([\w.]+)\}", lambda key: facts.get(key[1]) or _each(arms, key[1]), template)


def _language(arms: Sequence[ArmFiles]) -> str:
    """The shape and the data, with what is masked and how sequences are cut as far as the runs say it."""
    level = "tokenizer and weights of {model.from}" if _known(arms, "model.from") else "{data.level} level"
    masked = [said for key, said in _MASKED.items() if _known(arms, key)]
    template = _LANGUAGE.replace("{level}", level) + ("; " if masked else "") + ", ".join(masked)
    return _filled(template, arms)


def _known(arms: Sequence[ArmFiles], key: str) -> bool:
    return all(dict(flat(arm.first.run)).get(key) is not None for arm in arms)


def _translation(arms: Sequence[ArmFiles], text: Row | None) -> str:
    sizes = dict.fromkeys((text["source_vocab_size"], text["vocab_size"])) if text else {}
    known = f"{' and '.join(f'{size:,}' for size in sizes)} ({_each(arms, 'pairs.vocabulary')})"
    steps = " / ".join(dict.fromkeys(f"{arm.first.resolved['steps']:,}" for arm in arms if arm.first.resolved))
    return _filled(
        _TRANSLATION,
        arms,
        pairs=f"{text['pairs']['kept']:,} pairs" if text else "pairs",
        vocabulary=known if text else "unknown",
        depth=" / ".join(dict.fromkeys(map(_depth, arms))),
        steps=steps or _each(arms, "training.steps"),
    )


def _depth(arm: ArmFiles) -> str:
    model = arm.first.run["model"]
    encoder = model["layers"] if model["encoder_layers"] is None else model["encoder_layers"]
    return f"{encoder}+{model['layers']}"


def _data(text: Row) -> Iterator[tuple[str, str]]:
    sizes = {"tokens": "{:,} training tokens", "vocab_size": "vocabulary {:,}"}
    known = ", ".join(form.format(text[name]) for name, form in sizes.items() if text.get(name) is not None)
    yield (
        "data" if "held_out_batches" in text else "text",
        f"{text.get('source', 'unknown')}: {known}" if known else str(text.get("source", "unknown")),
    )
    if isinstance(text.get("pairs"), dict):
        left_out = ", ".join(f"{name} {count:,}" for name, count in text["pairs"].items())
        yield "pairs", f"{left_out}; held out {text['valid_pairs']:,}"
        yield "updates per epoch", f"{text['updates_per_epoch']:,}, batches filled to {text['fill']:.2f}"
    if "sha256" in text:
        yield "sha256 of the data", text["sha256"]
    if text.get("unigram_entropy") is not None:
        name = f"baseline: {text['baseline']}" if "baseline" in text else "unigram entropy"
        yield name, f"{text['unigram_entropy']:.4g}" if "baseline" in text else f"{text['unigram_entropy']:.4f} nats"


def _value(arm: ArmFiles, key: str) -> Any:
    """A setting; where the recipe leaves it to a rule, what came of it."""
    run = dict(flat(arm.first.run))
    if (value := run.get(key)) is not None:
        return value
    if key == "model.ffn" and run.get("model.width") is not None:
        return 4 * run["model.width"]
    if key == "model.init":
        return arm.first.resolved.get("init")
    return "that of the run" if key == "data.seed" else None


def _each(arms: Sequence[ArmFiles], key: str) -> str:
    """A setting; where arms differ in it, each of its values."""
    values: dict[str, Any] = dict.fromkeys(shown(_value(arm, key)) for arm in arms)
    return " / ".join(values)
