"""Rules about what reaches what: the future, the padding, the source."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isograd.lint.checked_model import Subject
from isograd.lint.findings import Finding

LOPSIDED = 0.75  # of what is seen behind: more ahead is a view to both sides
BOTH_WAYS = ("xlnet", "xlm", "flaubert")  # language models that are not causal by design
SEEN = 1e-5  # of the largest output: what another order of rounding does not do


def future(subject: Subject) -> Iterator[Finding]:
    """A model that reads to the left, but not only; or one that is meant to and does not."""
    place = _sequence(subject)
    if place is None:
        return
    reach = _reach(subject, place)
    if reach is None:
        return
    length = len(reach)
    ahead = torch.triu(reach, diagonal=1)
    back = torch.tril(reach, diagonal=-1)
    behind, possible = int(ahead.sum()), length * (length - 1) // 2
    partly = 0 < behind < min(0.5 * possible, LOPSIDED * int(back.sum()))  # a window sees as much ahead as behind
    if not partly and not (behind and _is_causal(subject)):
        return
    reader, source = (int(i) for i in ahead.nonzero()[0])
    yield Finding(
        code="future-leaks",
        severity="error",
        address=_called(subject, place),
        measured=behind / possible,
        message=f"the output at position {reader} changes with the input at position {source}: it sees"
        f" {behind} of {possible} places ahead",
        remedy="mask scores where the key stands behind the query (triu with diagonal=1), and tell the attention"
        " is_causal=True or the mask",
    )


def padding(subject: Subject) -> Iterator[Finding]:
    """Outputs at real positions that change with what stands where the mask says padding."""
    inputs = subject.inputs
    if not isinstance(inputs, dict) or "future-leaks" in subject.said:
        return  # padding is the future of what stands before it
    for mask_name, name in _masked_inputs(inputs):
        mask, ids = inputs[mask_name].clone(), inputs[name].clone()
        time = ids.shape[1]
        pad = max(time // 4, 1)
        ones_are_real = not (mask.dtype == torch.bool and "padding" in mask_name)
        mask[:] = ones_are_real
        mask[:, -pad:] = not ones_are_real
        other = ids.clone()
        other[:, -pad:] = _others(subject, ids)[:, -pad:]
        a, b = (subject.run(inputs | {mask_name: mask, name: x}) for x in (ids, other))
        pools = a is not None and a.ndim < 3 and "SequenceClassification" in type(subject.model).__name__
        if a is None or b is None or a.ndim < 2 or pools:  # some pool at the last id that is no padding's
            continue
        aligned = (a.ndim >= 3 and a.shape[1] == time and not name.startswith("input")) or not _decodes(inputs)
        real = slice(None, -pad) if aligned and a.ndim >= 3 and a.shape[1] == time else slice(None)
        gap = ((a[:, real] - b[:, real]).abs().max() / a.abs().max()).item()
        if gap > SEEN:
            yield Finding(
                code="padding-leaks",
                severity="error",
                address=mask_name,
                measured=gap,
                message=f"outputs at real positions change by {gap:.2g} of the largest with what stands in the padding",
                remedy=f"let the attention read {mask_name}: scores of padded keys must be masked",
            )


def source(subject: Subject) -> Iterator[Finding]:
    """An input that neither output nor loss depends on: an encoder that the decoder ignores."""
    named = _arguments(subject)
    sequences = [n for n, v in named.items() if isinstance(v, Tensor) and v.ndim >= 2 and "mask" not in n]
    sequences = [n for n in sequences if not n.startswith(("labels", "position", "token_type"))]
    if len(sequences) < 2:
        return
    base = subject.run_whole(subject.inputs)
    for name in sequences:
        moved = subject.run_whole(_with(subject, name, _others(subject, named[name])))
        if not base or [t.shape for t in moved] != [t.shape for t in base]:
            continue
        gap = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(moved, base, strict=True))
        if gap <= SEEN:
            called = _called(subject, name)
            yield Finding(
                code="encoder-unread",
                severity="error",
                address=called,
                measured=gap,
                message=f"the output stays the same whatever {called} holds",
                remedy="give the decoder's cross-attention the encoder's output as keys and values",
            )


def _reach(subject: Subject, name: str) -> Tensor | None:
    """(output position, input position) -> whether the one changes with the other."""
    named = _arguments(subject)
    x = named[name][:1]
    time = x.shape[1]
    rows = x.repeat(time + 1, *[1] * (x.ndim - 1))
    other = _others(subject, x)
    for t in range(time):
        rows[t + 1, t] = other[0, t]
    fixed = {key: _repeated(value, named[name], time + 1) for key, value in named.items()}
    out = _run(subject, _with(subject, name, rows, fixed))
    if out is None or out.ndim < 3 or out.shape[:2] != (time + 1, time):
        return None
    gaps = (out[1:] - out[:1]).abs().flatten(2).amax(-1)  # (input position, output position)
    return (gaps > SEEN * out.abs().max()).T


def _sequence(subject: Subject) -> str | None:
    """The input whose positions are the output's: the decoder's, else the first sequence where there is one tower."""
    out = _run(subject, subject.inputs)
    if out is None or out.ndim < 3:
        return None
    named = _arguments(subject)
    found = [n for n, v in named.items() if isinstance(v, Tensor) and v.ndim >= 2 and v.shape[:2] == out.shape[:2]]
    found = [n for n in found if "mask" not in n]
    both = getattr(subject.config, "is_encoder_decoder", False)  # without decoder ids it makes them of the encoder's
    first = found[0] if found and not both else None
    return next((n for n in found if n.startswith(("decoder", "tgt"))), first)


def _is_causal(subject: Subject) -> bool:
    """Whether the model says that it reads to the left only."""
    name = type(subject.model).__name__
    said = name.endswith(("CausalLM", "LMHeadModel", "Seq2SeqLM", "ForConditionalGeneration"))
    config = subject.config
    if config is None or getattr(config, "model_type", "") in BOTH_WAYS:
        return False
    return bool(said or getattr(config, "is_decoder", False))


def _decodes(inputs: dict[str, Any]) -> bool:
    return any(name.startswith("decoder") for name in inputs)


def _masked_inputs(inputs: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(mask, the sequence that it belongs to)."""
    for name, sequence in (
        ("attention_mask", "input_ids"),
        ("attention_mask", "inputs_embeds"),
        ("src_key_padding_mask", "src"),
        ("padding_mask", "input_ids"),
        ("mask", "x"),
    ):
        mask, x = inputs.get(name), inputs.get(sequence)
        if isinstance(mask, Tensor) and isinstance(x, Tensor) and mask.ndim == 2 and mask.shape == x.shape[:2]:
            yield name, sequence


def _others(subject: Subject, x: Tensor) -> Tensor:
    """Something else of the same kind everywhere; special ids stay, since models look for them."""
    draw = torch.Generator().manual_seed(7)
    if x.is_floating_point():
        return x + torch.randn(x.shape, generator=draw).to(x)
    ids = (getattr(subject.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls"))
    special = torch.tensor([i for i in ids if isinstance(i, int)], dtype=x.dtype)
    used = torch.unique(x)
    used = used[~torch.isin(used, special)]
    if len(used) < 2:
        return x + 1
    next_one = used[(torch.searchsorted(used, x.contiguous()) + 1) % len(used)]
    return torch.where(torch.isin(x, special), x, next_one)


def _repeated(value: Any, like: Tensor, times: int) -> Any:
    """The first of a batch, as often as asked; what has no batch stays."""
    if not isinstance(value, Tensor) or value.ndim < 1 or value.shape[0] != like.shape[0]:
        return value
    return value[:1].repeat(times, *[1] * (value.ndim - 1))  # in memory of its own: models take views of it


def _arguments(subject: Subject) -> dict[str, Any]:
    """Inputs by name or place, the batch in front."""
    inputs = subject.inputs
    named = inputs if isinstance(inputs, dict) else {str(i): part for i, part in enumerate(_listed(inputs))}
    return {name: _turned(subject, part) for name, part in named.items()}


def _called(subject: Subject, name: str) -> str:
    """The name that forward has for an input that was given by its place."""
    if not name.isdecimal():
        return name
    names = list(inspect.signature(subject.model.forward).parameters)
    return names[int(name)] if int(name) < len(names) else name


def _with(subject: Subject, name: str, value: Tensor, others: dict[str, Any] | None = None) -> Any:
    """The inputs with another value, as the model takes them."""
    named = (others or _arguments(subject)) | {name: value}
    named = {key: _turned(subject, part) for key, part in named.items()}
    return named if isinstance(subject.inputs, dict) else tuple(named.values())


def _run(subject: Subject, inputs: Any) -> Tensor | None:
    out = subject.run(inputs)
    return None if out is None else _turned(subject, out)


def _turned(subject: Subject, part: Any) -> Any:
    """Vectors of a model that has time in front, with the batch there, and the other way round."""
    vectors = isinstance(part, Tensor) and part.ndim == 3 and part.is_floating_point()
    return part.transpose(0, 1) if vectors and subject.time_first else part


def _listed(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
