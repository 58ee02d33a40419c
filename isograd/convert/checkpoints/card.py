"""The model card: README.md beside a trained or exported model, as the Hugging Face hub shows it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import AutoConfig

from isograd.convert.checkpoints.folder import Source, Written
from isograd.convert.checkpoints.subwords import PairTokenizer
from isograd.convert.kinds import KINDS, ModelKind
from isograd.errors import many
from isograd.files import read_json, write_text
from isograd.hub import from_pretrained
from isograd.models import IsogradConfig
from isograd.placement.text import final_formula, formulas, legend

_TEMPLATE = """\
---
{{ card_data }}
---

# {{ title }}

{{ about[0]|upper }}{{ about[1:] }}{{ ", trained with isograd" if training }}, as `{{ form }}`.

```python
{{ 'FOLDER = "."  # where this card lies, or its name on the hub\n' if "FOLDER" in use }}{{ use }}
```
{% for note in notes %}{{ "\n" if loop.first }}- {{ note }}
{% endfor %}
## Model
{{ model }}

## Training
{{ training or "\\nThe folder that the model came from does not say how it was trained." }}
{% if report %}
## Parity report

Measured between the model that was exported and this one; the hashes of all files are in `parity.json`:

```text
{{ report }}
```
{% endif %}"""
_OUTCOME = {  # of outcome.json, where they are numbers
    "final_loss": "training loss",
    "validation_loss": "validation loss",
    "perplexity": "perplexity",
    "bleu": "BLEU",
}
_MEASURED = {  # of outcome.json: the hub's name of the metric, on the validation data
    "validation_loss": "loss",
    "perplexity": "perplexity",
    "bleu": "bleu",
}


def model_card(source: Source, written: Written, license: str | None = None) -> ModelCard:  # noqa: A002  (the hub's word)
    """The card of what was written: how to load it, its placement and shape, how it was trained, its parity report."""
    said = {"form": written.form, "use": written.use, "notes": written.notes, "report": written.report}
    languages = source.tokenizer.languages if isinstance(source.tokenizer, PairTokenizer) else None
    known = {"language": list(languages) if languages else None, "library_name": written.library, "license": license}
    return _card(source.folder, source.model.config, source.kind, known, said)


def write_run_card(run: Path) -> Path | None:
    """README.md beside the model of a run that has ended; None where it has none, or its model has no head."""
    folder = run / "model"
    if not (folder / "config.json").is_file():
        return None
    config: Any = from_pretrained(AutoConfig, folder)
    names: list[str] = config.architectures or []
    kind = next((one for one in KINDS if one.cls.__name__ in names), None)
    if kind is None:
        return None
    use = f"import isograd.models  # registers the class\nfrom transformers import {kind.auto}, AutoTokenizer\n\n"
    use += f"model = {kind.auto}.from_pretrained(FOLDER)\ntokenizer = AutoTokenizer.from_pretrained(FOLDER)"
    note = (
        "Its class is isograd's (`pip install isograd`); `isograd export` writes one of transformers', with a report."
    )
    said = {"form": names[0], "use": use, "notes": (note,), "report": None}
    text = str(_card(folder, config, kind, {"library_name": "transformers"}, said))
    write_text(folder / "README.md", text)
    return folder / "README.md"


def _card(
    folder: Path, config: IsogradConfig, kind: ModelKind, known: Mapping[str, Any], said: Mapping[str, Any]
) -> ModelCard:
    run, resolved, outcome = (_read(folder, name) for name in ("run", "resolved", "outcome"))
    title = run.get("name") or f"{config.placement}, {_depth(config)}"
    results = _results(kind, resolved, outcome)
    data = ModelCardData(
        **known,
        pipeline_tag=kind.tag,
        tags=["isograd", config.placement],
        model_name=title if results else None,
        eval_results=results or None,
    )
    return ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        title=title,
        about=kind.about,
        model=_table(_model(config)),
        training=_table(_training(run, resolved, outcome)),
        **said,
    )


def _results(kind: ModelKind, resolved: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[EvalResult]:
    """What was measured on held-out data, in the hub's form."""
    source = _names(resolved.get("data", {}).get("source")) or "unknown"
    named = {metric: outcome.get(name) for name, metric in _MEASURED.items()}
    if outcome.get("metric"):
        named[str(outcome["metric"])] = outcome.get("score")
    if isinstance(outcome.get("scores"), dict):
        named |= outcome["scores"]
    numbers = {name: value for name, value in named.items() if isinstance(value, float) and math.isfinite(value)}
    return [
        EvalResult(
            task_type=kind.tag,
            dataset_type=source,
            dataset_name=source,
            dataset_split="validation",
            metric_type=name,
            metric_value=round(value, 6),
        )
        for name, value in numbers.items()
    ]


def _read(folder: Path, name: str) -> Mapping[str, Any]:
    """A file of the run that the model's folder is, or lies in; what cannot be read is left out."""
    home = next((f for f in (folder, folder.resolve().parent) if (f / "run.json").is_file()), folder)
    try:
        content = read_json(home / f"{name}.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _depth(config: IsogradConfig) -> str:
    if config.is_encoder_decoder:
        return f"{config.encoder_layers} and {many(config.num_hidden_layers, 'layer')}"
    return many(config.num_hidden_layers, "layer")


def _model(config: IsogradConfig) -> list[tuple[str, Any]]:
    placement, layers = config.entry(), config.num_hidden_layers
    lines = formulas(placement, cross=config.is_encoder_decoder, layers=layers)
    rows = [("placement", f"{config.placement}: {placement.about}" if placement.about else config.placement)]
    rows += [(kind, f"`{line}`") for kind, line in lines.items()]
    if final := final_formula(placement):
        rows.append(("after the last layer", f"`{final}`"))
    if symbols := legend(placement, layers):
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


def _training(run: Mapping[str, Any], resolved: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not run:
        return []
    training, data = run.get("training", {}), resolved.get("data", {})
    versions, scores = outcome.get("provenance", {}), outcome.get("scores")
    rows = [
        ("task", run.get("task")),
        ("seed", run.get("seed")),
        ("data", _names(data.get("source"))),
        ("sha256 of the data", data.get("sha256")),
        ("trained further from", _names(run.get("model", {}).get("from"))),
        ("tokens", data.get("tokens")),
        ("parameters", resolved.get("parameters")),
    ]
    if (rate := training.get("lr")) is not None:
        optimizer = f"{training.get('optimizer')}, peak learning rate {rate:g}, warmup {training.get('warmup')}"
        rows.append(("optimizer", optimizer))
    rows += [("steps", outcome.get("steps")), ("outcome", outcome.get("outcome"))]
    rows += [(label, outcome.get(name)) for name, label in _OUTCOME.items()]
    rows += [("weights", outcome.get("kept_weights")), *(scores.items() if isinstance(scores, dict) else ())]
    if versions:
        rows.append(("with", ", ".join(f"{n} {versions[n]}" for n in ("isograd", "torch", "device") if n in versions)))
    return rows


def _names(source: Any) -> str | None:
    """Names of files without the folders of somebody's machine."""
    if source is None:
        return None
    names = source if isinstance(source, list | tuple) else str(source).split(", ")
    return ", ".join(Path(str(name)).name for name in names)


def _table(rows: Sequence[tuple[str, Any]]) -> str:
    """In Markdown, without what is not known; numbers with four digits, counts with commas."""
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows if value is not None]
    return "\n".join(["", "| | |", "| --- | --- |", *lines]) if rows else ""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
