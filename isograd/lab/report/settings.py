"""What the page says in words: what was compared on what, and every setting."""

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
    said = _translation(arms, text) if "pairs" in run else _tuned(arms) if "glue" in run else _language(arms)
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


def _language(arms: Sequence[ArmFiles]) -> str:
    """The shape and the data, with what is masked and how sequences are cut as far as the runs say it."""

    def of(key: str) -> str:
        return _each(arms, key)

    said = [
        f"{of('model.layers')} layers, width {of('model.width')}, {of('model.heads')} heads; sequences of"
        f" {of('data.length')} ({_level(arms)}), batch {of('training.batch')}, {of('training.optimizer')}"
        f" at LR {of('training.lr')}, {of('training.steps')} steps"
    ]
    names = {"data.mask": "masked {}", "data.mask_random": "of these random {}", "data.mask_kept": "kept {}"}
    values = {key: _each(arms, key) for key in (*names, "data.packing") if _known(arms, key)}
    masked = [names[key].format(values[key]) for key in names if key in values]
    masked += [f"packing {values['data.packing']}"] if "data.packing" in values else []
    return "; ".join([*said, *([", ".join(masked)] if masked else [])])


def _level(arms: Sequence[ArmFiles]) -> str:
    if _known(arms, "model.from"):
        return f"tokenizer and weights of {_each(arms, 'model.from')}"
    return f"{_each(arms, 'data.level')} level"


def _known(arms: Sequence[ArmFiles], key: str) -> bool:
    return all(dict(flat(arm.first.run)).get(key) is not None for arm in arms)


def _tuned(arms: Sequence[ArmFiles]) -> str:
    def of(key: str) -> str:
        return _each(arms, key)

    epochs = "1 epoch" if of("training.epochs") == "1" else f"{of('training.epochs')} epochs"
    return (
        f"{of('glue.task')}, fine-tuned from {of('glue.model')}; at most {of('glue.length')} tokens, batch"
        f" {of('training.batch')}, {of('training.optimizer')} at LR {of('training.lr')}, {epochs}"
    )


def _translation(arms: Sequence[ArmFiles], text: Row | None) -> str:
    def of(key: str) -> str:
        return _each(arms, key)

    pairs = f"{text['pairs']['kept']:,} pairs" if text else "pairs"
    sizes = dict.fromkeys((text["source_vocab_size"], text["vocab_size"])) if text else {}
    vocabulary = f"{' and '.join(f'{size:,}' for size in sizes)} ({of('pairs.vocabulary')})" if text else "unknown"
    steps = " / ".join(dict.fromkeys(f"{arm.first.resolved['steps']:,}" for arm in arms if arm.first.resolved))
    return (
        f"{pairs} {of('pairs.source')} → {of('pairs.target')}, vocabulary {vocabulary};"
        f" {' / '.join(dict.fromkeys(map(_depth, arms)))} layers (encoder + decoder), width {of('model.width')},"
        f" {of('model.heads')} heads; batches of {of('training.tokens')} tokens, {of('training.optimizer')}"
        f" at LR {of('training.lr')}, {steps or of('training.steps')} steps"
    )


def _depth(arm: ArmFiles) -> str:
    model = arm.first.run["model"]
    encoder = model["layers"] if model["encoder_layers"] is None else model["encoder_layers"]
    return f"{encoder}+{model['layers']}"


def _data(text: Row) -> Iterator[tuple[str, str]]:
    sizes = {"tokens": "{:,} training tokens", "vocab_size": "vocabulary {:,}"}
    known = ", ".join(form.format(text[name]) for name, form in sizes.items() if text.get(name) is not None)
    yield "text", f"{text.get('source', 'unknown')}: {known}" if known else str(text.get("source", "unknown"))
    if isinstance(text.get("pairs"), dict):
        left_out = ", ".join(f"{name} {count:,}" for name, count in text["pairs"].items())
        yield "pairs", f"{left_out}; held out {text['valid_pairs']:,}"
        yield "updates per epoch", f"{text['updates_per_epoch']:,}, batches filled to {text['fill']:.2f}"
    if "sha256" in text:
        yield "sha256 of the data", text["sha256"]
    if text.get("unigram_entropy") is not None:
        yield "unigram entropy", f"{text['unigram_entropy']:.4f} nats"


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
