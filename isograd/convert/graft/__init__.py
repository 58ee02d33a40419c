"""A model changed in its structure: exact changes with a parity report, others with the loss before and after.

    grafted = graft(AutoModelForCausalLM.from_pretrained("gpt2"), "layers=24")
    grafted.model.save_pretrained("deeper")           # the same stock class; computes what it did

A change is a row of `CHANGES`, NAME=VALUE. What a model is made of is found by computation (`isograd.trace`).
"""

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from isograd.convert.checkpoints.folder import copy_companions, must_have_weights
from isograd.convert.checkpoints.vocabulary import load_tokenizer
from isograd.convert.graft.fitted import placement, qk_norm
from isograd.convert.graft.folding import norm_weights
from isograd.convert.graft.found import GraftSubject
from isograd.convert.graft.heads import kv_heads, vocabulary
from isograd.convert.graft.layers import layers
from isograd.convert.graft.moves import How, Moved
from isograd.convert.graft.residuals import norm, scale, streams
from isograd.convert.graft.text import Text, healed, loss_on, text_of
from isograd.convert.parity import (
    ParityError,
    ParityReport,
    Precision,
    Remembered,
    Runner,
    hashes,
    is_large,
    measure,
    runner_of,
)
from isograd.convert.sample import random_sample
from isograd.errors import GraftError, ModelError, hint
from isograd.files import new_folder, refuse_existing
from isograd.hub import from_pretrained, model_place
from isograd.trace.load import load_model

NAME = "graft.json"
Said = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A row of `CHANGES`.

    Attributes:
        value: what may stand after the sign.
        move: a subject, the value and what the call says -> the new model.
    """

    value: str
    move: Callable[[GraftSubject, str, How], Moved]

    @property
    def about(self) -> str:
        """The first line of the move's docstring."""
        return (self.move.__doc__ or "").strip().partition("\n")[0]


CHANGES: Mapping[str, Change] = {
    "layers": Change(value="N", move=layers),
    "kv-heads": Change(value="N", move=kv_heads),
    "vocabulary": Change(value="N", move=vocabulary),
    "norm-weights": Change(value="folded", move=norm_weights),
    "norm": Change(value="rmsnorm|dyt", move=norm),
    "scale": Change(value="layerscale", move=scale),
    "streams": Change(value="N", move=streams),
    "placement": Change(value="sandwich|peri-ln|pre-ln", move=placement),
    "qk-norm": Change(value="removed", move=qk_norm),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change that was made.

    Attributes:
        change, said: as it was written; one line on it.
        parity: of an exact change.
        losses: on held-out text before and after a measured one, nats per token.
        found: what was measured on the way, a row per layer.
        warnings: of the watch, while a model was trained on.
    """

    change: str
    said: str
    parity: ParityReport | None = None
    losses: tuple[float, float] | None = None
    found: Sequence[dict[str, Any]] = ()
    warnings: Sequence[dict[str, Any]] = ()

    def __str__(self) -> str:
        lines = [f"{self.change}: {self.said}"]
        lines += [" ".join(f"{name} {_short(value)}" for name, value in row.items()) for row in self.found]
        lines += [f"warning: {row['message']}" for row in self.warnings]
        if self.losses is not None:
            before, after = self.losses
            lines.append(f"loss {before:.4f} before, {after:.4f} after ({after - before:+.4f} nats per token)")
        return "\n".join([*lines, *([str(self.parity)] if self.parity else [])])


@dataclass(frozen=True, kw_only=True)
class Grafted:
    """The changed model, in eval mode, and what was done, step by step."""

    model: PreTrainedModel
    steps: tuple[Step, ...]

    @property
    def exact(self) -> bool:
        """The function is what it was, as far as the parity reports go."""
        return all(step.parity is not None for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the parity of each step is whether it passed."""
        rows = [asdict(replace(step, parity=None)) for step in self.steps]
        passed = [None if step.parity is None else step.parity.passed for step in self.steps]
        return {"class": type(self.model).__name__, "exact": self.exact} | {
            "steps": [row | {"parity": one} for row, one in zip(rows, passed, strict=True)]
        }

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def graft(
    model: PreTrainedModel,
    *changes: str,
    text: Text | None = None,
    tokenizer: Any = None,
    documents: Iterable[str] = (),
    heal: int = 0,
    rate: float = 1e-4,
    **how: Any,
) -> Grafted:
    """The model with these changes, in order; `model` stays as it is.

    Args:
        changes: rows of `CHANGES`, as "layers=24".
        text: batches that measured changes are fitted and measured on; or a tokenizer and
        documents: to make them of.
        heal: steps of training after the changes, at this `rate`.
        how: fields of `How`: insert, new, drop.

    Raises:
        GraftError: a change that this model cannot take, with the reason.
        ParityError: a change that should leave the function as it is, and did not.
    """
    text = text_of(model, tokenizer, documents) if text is None and tokenizer is not None else text
    given = How(source=None if text is None else lambda: text, **how)
    made, _ = _grafted(model, changes, given, lambda said: None)
    own = copy.deepcopy(made.model)  # what was not changed shares the memory of `model`
    steps = [*made.steps, *([_healed(own, given, heal, rate, lambda said: None)] if heal else [])]
    return Grafted(model=own.eval(), steps=tuple(steps))


def graft_folder(
    name: str | Path,
    out: str | Path,
    *changes: str,
    documents: Iterable[str] = (),
    heal: int = 0,
    rate: float = 1e-4,
    date: str | None = None,
    progress: Said = lambda said: None,
    **how: Any,
) -> Grafted:
    """The model in `name` with these changes into the new folder `out`: model, tokenizer, graft.json, and parity.json
    where all changes are exact.

    Args:
        name: a folder, or a name on the hub.
        documents: the text of measured changes and of healing; read only for these.
        date: stands in the parity report if it is given.
        progress: called with what is being done.

    Raises:
        ModelError, GraftError: no model there, or one that cannot take a change.
        ParityError: a change that should leave the function as it is, and did not; nothing is written.
    """
    refuse_existing(Path(out))
    if (folder := model_place(str(name), ModelError)) is not None:
        must_have_weights(folder)
    model = load_model(str(name)).eval()
    if not isinstance(model, PreTrainedModel):
        raise GraftError(f"{name}: a {type(model).__name__}, expected a model of transformers' own or of isograd's")
    given = How(source=cache(lambda: text_of(model, load_tokenizer(_folder(name)), documents)), **how)
    made, wide = _grafted(model, changes, given, progress)
    if heal:
        own = copy.deepcopy(made.model)
        step = _healed(own, given, heal, rate, progress)
        made = Grafted(model=own, steps=(*made.steps, step))
    first, steps, kind = model if made.exact else made.model, made.steps, type(made.model)
    facts: dict[str, Any] = {
        "about": f"{kind.__name__}: {'; '.join(changes)}" if made.exact else "written and read again",
        "notes": [f"{step.change}: {step.said}" for step in steps],
        "source": hashes(name) if Path(name).is_dir() else {},
        "date": date,
    }
    with new_folder(out) as part:
        progress("writing")
        made.model.save_pretrained(part)
        _keep_tokenizer(name, part)
        (part / NAME).write_text(json.dumps(made.as_dict(), indent=2) + "\n", encoding="utf-8")
        dtype, exact = made.model.dtype, made.exact
        kept, rows = Remembered.of(first) if is_large(first) else None, token_rows(first)
        doubles = (_doubled(model), wide) if made.exact else None
        if kept is not None:  # one at a time
            del model, made, first
        progress("comparing what was written")
        written = from_pretrained(kind, part, dtype=dtype)
        facts["files"] = hashes(part)
        if kept is None:
            report = proven(first, written, wide=doubles, **facts)
        else:
            report = proven_of(kept, rows, written, **facts)
        if not report.passed:
            raise ParityError(report)
        if exact:
            report.write(part)
    return Grafted(model=written, steps=steps)


def _grafted(
    model: PreTrainedModel, changes: Sequence[str], how: How, progress: Said
) -> tuple[Grafted, PreTrainedModel | None]:
    """The new model, and as long as every change was exact the same of its copy in float64."""
    if not changes:
        raise GraftError("no change: expected NAME=VALUE, as layers=24")
    _must_read_tokens(model)
    rows = [(change, *_row(change)) for change in changes]
    steps: list[Step] = []
    wide = _doubled(model)
    for change, row, value in rows:
        progress(change)
        moved = row.move(GraftSubject(model), value, how)
        wider = None
        if moved.exact:
            wider = None if wide is None else row.move(GraftSubject(wide), value, how).model
            report = proven(model, moved.model, wide=(wide, wider), about=change)
            if not report.passed:
                raise ParityError(report)
            steps.append(Step(change=change, said=moved.said, parity=report))
        else:
            held = how.needed(change).held
            losses = loss_on(model, held), loss_on(moved.model, held)
            steps.append(Step(change=change, said=moved.said, losses=losses, found=moved.found))
            wider = None if wide is None else _doubled(moved.model)
        model, wide = moved.model, wider
    return Grafted(model=model, steps=tuple(steps)), wide


def _must_read_tokens(model: PreTrainedModel) -> None:
    """Parity and losses are of token ids: a model of pixels or of sound has no table of them."""
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:  # of several inputs, or of one that is no embedding
        table = None
    if not isinstance(getattr(table, "weight", None), Tensor):
        reads = getattr(model, "main_input_name", "something else")
        raise GraftError(
            f"{type(model).__name__} has no table of token ids (it reads {reads}); graft changes causal and masked"
            " language models and classifiers of text"
        )


def _healed(model: PreTrainedModel, how: How, steps: int, rate: float, progress: Said) -> Step:
    text = how.needed("healing")
    before = loss_on(model, text.held)
    warnings = healed(model, text, steps, rate, progress)
    said = f"{steps} steps of AdamW at {rate:g}"
    return Step(change="heal", said=said, losses=(before, loss_on(model, text.held)), warnings=warnings)


def _doubled(model: PreTrainedModel) -> PreTrainedModel | None:
    """A copy in float64, so that the rounding of new weights is not taken for the change; None of a large model."""
    return None if is_large(model) else copy.deepcopy(model).to(torch.float64)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(change: str) -> tuple[Change, str]:
    name, sign, value = change.partition("=")
    if not (sign and value):
        raise GraftError(f"{change!r}: expected NAME=VALUE, as layers=24")
    if name not in CHANGES:
        raise GraftError(f"unknown change {name!r}: {hint(name, CHANGES)}")
    return CHANGES[name], value


def _folder(name: str | Path) -> str | Path:
    """Where the files of a model lie: in the folder, or in model/ of a run."""
    if not Path(name).is_dir():
        return name
    return next(f for f in (Path(name), Path(name) / "model") if (f / "config.json").is_file())


def _keep_tokenizer(name: str | Path, folder: Path) -> None:
    if Path(name).is_dir():
        copy_companions(Path(_folder(name)), folder)
    elif (tokenizer := load_tokenizer(name)) is not None:
        tokenizer.save_pretrained(folder)


# Parity, in float64 throughout: transformers casts to float32 in norms, softmax and rotary tables even where weights
# are float64; while models run here these casts go to float64, so that what differs is the change, not its rounding.

LIMITS: Mapping[Precision, float | None] = {"fp64": 1e-10, "fp32": 1e-5, "bf16": None}
_OTHER_CLASS = {**LIMITS, "fp64": 1e-7}  # classes of transformers keep constants, as Gemma's sqrt(d), in float32


def proven_of(kept: Remembered, rows: int, after: PreTrainedModel, *, about: str, **facts: Any) -> ParityReport:
    """As `proven`, in float32 alone, of a model that is no longer there and had so many rows of tokens."""
    own: dict[Precision, Runner] = {"fp32": _cut(runner_of(after.eval(), "fp32"), rows)}
    return measure(kept.side, own, kept.sample, about=about, limits=LIMITS, beams=(1,), **facts)


def proven(
    before: PreTrainedModel,
    after: PreTrainedModel,
    *,
    about: str,
    wide: tuple[PreTrainedModel | None, PreTrainedModel | None] | None = None,
    **facts: Any,
) -> ParityReport:
    """The parity report of an exact change. What the second model knows of further tokens is not compared.

    A large model is compared in float32 alone, without copies.

    Args:
        wide: both in float64, changed there: what the rounding of new weights does is then in the float32 row alone.
            None takes copies of `before` and `after`.
    """
    rows = token_rows(before)
    doubles = wide if wide and wide[0] is not None and wide[1] is not None else (before, after)
    first, second = (_sides(model, double, rows) for model, double in zip((before, after), doubles, strict=True))
    wider = token_rows(after) > rows
    beams = (1,) if wider or is_large(before) else (1, 5)  # a beam adds up probabilities, which new tokens share
    sample, limits = random_sample(before, batches=1), LIMITS if type(before) is type(after) else _OTHER_CLASS
    return measure(first, second, sample, about=about, limits=limits, beams=beams, **facts)


def _sides(model: PreTrainedModel, double: PreTrainedModel, rows: int) -> dict[Precision, Runner]:
    if is_large(model):
        return {"fp32": _cut(runner_of(model.eval(), "fp32"), rows)}
    of: dict[Precision, PreTrainedModel] = {"fp64": double, "fp32": model, "bf16": model}
    return {p: _cut(runner_of(one, p, promoted=p == "fp64"), rows) for p, one in of.items()}


def token_rows(model: PreTrainedModel) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _cut(runner: Runner, rows: int) -> Runner:
    return replace(runner, logits=lambda batch: runner.logits(batch)[..., :rows])
