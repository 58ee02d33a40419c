"""The model card: README.md beside an exported model, as the Hugging Face hub shows it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from isograd.interop.certificate import NAME, Certificate
from isograd.interop.native_targets import KINDS, Kind
from isograd.interop.origin import Origin
from isograd.models import IsogradConfig
from isograd.placement.text import final_formula, formulas, legend

CARD = "README.md"
_HERE = 'FOLDER = "."  # where this card lies, or the name on the hub\n'
_TAGS: Mapping[Kind, str] = {
    "causal": "text-generation",
    "masked": "fill-mask",
    "classifier": "text-classification",
    "pair": "translation",
}
_OUTCOME = {  # of outcome.json, where they are numbers
    "final_loss": "training loss",
    "validation_loss": "validation loss",
    "perplexity": "perplexity",
    "bleu": "BLEU",
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card says.

    Args:
        config: of the model that was exported, before anything was folded.
        kind: what it is.
        form: what it was exported as, a class or a format.
        library: that runs it, in the hub's words.
        use: lines of Python that load and run it.
        notes: what its user should know, a sentence each.
        languages: of a translation, source and target.
    """

    config: IsogradConfig
    kind: Kind
    form: str
    library: str
    use: str
    origin: Origin
    certificate: Certificate
    notes: Sequence[str] = ()
    languages: Sequence[str] = ()

    def __str__(self) -> str:
        parts = [
            _front(self),
            f"# {_title(self)}",
            f"{KINDS[self.kind][0].upper()}{KINDS[self.kind][1:]}, trained with isograd, as `{self.form}`.",
            f"```python\n{_HERE * ('FOLDER' in self.use)}{self.use.strip()}\n```",
            "\n".join(f"- {note}" for note in self.notes),
            "## Model",
            _table(_model(self)),
            "## Training",
            _table(_training(self.origin)) or "The folder that the model came from does not say how it was trained.",
            "## Certificate",
            f"What was measured between the trained model and this one, with the hashes of all files in `{NAME}`:",
            f"```text\n{self.certificate}\n```",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, folder: Path) -> Path:
        path = folder / CARD
        path.write_text(str(self), encoding="utf-8")
        return path


def _front(card: Card) -> str:
    """What the hub reads of a card."""
    content: dict[str, Any] = {
        "library_name": card.library,
        "pipeline_tag": _TAGS[card.kind],
        "tags": ["isograd", card.config.placement],
    }
    if card.languages:
        content["language"] = list(card.languages)
    return f"---\n{yaml.safe_dump(content, sort_keys=False)}---"


def _title(card: Card) -> str:
    name = card.origin.run.get("name")
    return str(name) if name else f"{card.config.placement}, {_depth(card.config)}"


def _depth(config: IsogradConfig) -> str:
    if config.is_encoder_decoder:
        return f"{config.encoder_layers} and {config.num_hidden_layers} layers"
    return f"{config.num_hidden_layers} layers"


def _model(card: Card) -> list[tuple[str, str]]:
    config = card.config
    placement = config.entry()
    rows = [("placement", f"{config.placement}: {placement.about}" if placement.about else config.placement)]
    rows += [
        (kind, f"`{line}`")
        for kind, line in formulas(placement, cross=config.is_encoder_decoder, layers=config.num_hidden_layers).items()
    ]
    if final := final_formula(placement):
        rows.append(("after the last layer", f"`{final}`"))
    if symbols := legend(placement, config.num_hidden_layers):
        rows.append(("where", "; ".join(symbols)))
    if config.encoder_options:
        rows.append(("its encoder", ", ".join(f"{k}={v}" for k, v in config.encoder_options.items())))
    if placement.paper:
        rows.append(("paper", placement.paper))
    sizes = (
        f"{_depth(config)}, width {config.hidden_size}, {config.num_attention_heads} heads, feed-forward"
        f" {config.intermediate_size} ({config.hidden_act}), {config.norm} with eps {config.norm_eps:g},"
        f" {config.position_embedding_type} positions, {config.vocab_size} tokens"
    )
    return [*rows, ("shape", sizes)]


def _training(origin: Origin) -> list[tuple[str, str]]:
    run, data, outcome = origin.run, origin.resolved.get("data", {}), origin.outcome
    if not run:
        return []
    training = run.get("training", {})
    rows = [("task", run.get("task")), ("seed", run.get("seed")), ("data", _source(data.get("source")))]
    rows += [("sha256 of the data", data.get("sha256")), ("tokens", _count(data.get("tokens")))]
    rows += [("parameters", _count(origin.resolved.get("parameters")))]
    rate = training.get("lr")
    if rate is not None:
        rows.append(("optimizer", f"{training.get('optimizer')}, peak rate {rate:g}, warm-up {training.get('warmup')}"))
    rows += [("steps", outcome.get("steps")), ("outcome", outcome.get("outcome"))]
    rows += [(said, _number(outcome.get(name))) for name, said in _OUTCOME.items()]
    rows += [("weights", outcome.get("kept_weights"))]
    rows += [(name, _number(value)) for name, value in _scores(outcome)]
    versions = outcome.get("provenance", {})
    if versions:
        rows.append(("with", ", ".join(f"{n} {versions[n]}" for n in ("isograd", "torch", "device") if n in versions)))
    return [(name, str(value)) for name, value in rows if value is not None]


def _scores(outcome: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    scores = outcome.get("scores")
    return scores.items() if isinstance(scores, dict) else ()


def _source(source: Any) -> str | None:
    """Names of files without the folders of somebody's machine."""
    if source is None:
        return None
    names = source if isinstance(source, list | tuple) else str(source).split(", ")
    return ", ".join(Path(str(name)).name for name in names)


def _count(value: Any) -> str | None:
    return f"{value:,}" if isinstance(value, int) else None


def _number(value: Any) -> str | None:
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else None


def _table(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    lines = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines])
