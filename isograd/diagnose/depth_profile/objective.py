"""A loss for any model: cross-entropy where its output is logits, else a mean square against random targets."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Kind = Literal["next token", "given labels", "random labels", "random targets"]
IGNORED = -100


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """What is asked of a model.

    Attributes:
        kind: "next token" of the ids that it reads, "given labels", "random labels" of all classes, or, where there are
            no logits, "random targets": the mean square of the output's distance to numbers drawn from N(0, 1).
        own: whether the loss that the model itself gives comes first, if it gives one.
        targets: of the shape of the logits without their last axis; of the output's shape for "random targets".
        classes: None where there are no logits.
        shift: whether the target of a position stands one place further on.
    """

    kind: Kind
    own: bool = False
    targets: Tensor
    classes: int | None = None
    shift: bool = False

    def loss(self, output: Any) -> Tensor:
        """Of what the model gave, in nats where there are logits."""
        if self.own and (own := _field(output, "loss")) is not None:
            return own.mean()
        made = answer(output)
        if self.classes is None:
            return (made - self.targets.to(made)).square().mean()
        logits = made[:, :-1] if self.shift else made
        targets = (self.targets[:, 1:] if self.shift else self.targets).to(made.device)
        return functional.cross_entropy(logits.reshape(-1, self.classes), targets.reshape(-1), ignore_index=IGNORED)

    @property
    def even(self) -> float | None:
        """ln of the number of classes: the loss of a model that finds all alike."""
        return None if self.classes is None else math.log(self.classes)


def objective(
    output: Any, inputs: Mapping[str, Any], labels: Tensor | None, *, classes: int | None, decodes: bool, seed: int
) -> Objective:
    """What to ask of a model that gave `output`.

    Args:
        inputs: by the names of forward's arguments. With `labels` among them the model's own loss is asked for.
        labels: ids or classes; of a model that reads its own labels' past they are its inputs, and are shifted.
        classes: rows of logits, None where the output is none.
        decodes: whether what is asked for is the next token.
    """
    made = answer(output)
    own = labels is None and isinstance(inputs.get("labels"), Tensor)
    given = inputs["labels"] if own else labels
    draw = torch.Generator().manual_seed(seed)
    if classes is None:
        targets = torch.randn(made.shape, generator=draw)
        return Objective(kind="given labels" if own else "random targets", own=own, targets=targets)
    rows = made.shape[:-1]
    ids = next((i for i in _ids(inputs) if i.shape == rows), None) if decodes else None
    if given is not None:
        if given.shape != rows and not own:
            raise ValueError(f"labels of shape {tuple(given.shape)} for logits of {tuple(made.shape)}")
        shift = ids is not None and "decoder_input_ids" not in inputs and made.ndim == 3
        return Objective(kind="given labels", own=own, targets=given, classes=classes, shift=shift)
    if ids is not None and rows[1] > 1:
        return Objective(kind="next token", targets=_unpadded(ids, inputs), classes=classes, shift=True)
    return Objective(kind="random labels", targets=torch.randint(classes, rows, generator=draw), classes=classes)


def answer(output: Any) -> Tensor:
    """The logits, or the first tensor of numbers in an output.

    Raises:
        ValueError: there is none.
    """
    logits = _field(output, "logits")
    if logits is not None:
        return logits
    found = next((t for t in _tensors(output) if t.is_floating_point() and t.ndim), None)
    if found is None:
        raise ValueError(f"no numbers in the model's output, {type(output).__name__}")
    return found


def _field(output: Any, name: str) -> Tensor | None:
    part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return part if isinstance(part, Tensor) else None


def _unpadded(ids: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
    fits = isinstance(mask, Tensor) and mask.shape == ids.shape
    return ids.masked_fill(mask == 0, IGNORED) if fits and mask is not None else ids


def _ids(inputs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Tensors of whole numbers, those that a decoder reads first."""
    named = sorted(inputs.items(), key=lambda item: "decoder" not in item[0])
    for name, part in named:
        whole = isinstance(part, Tensor) and not part.is_floating_point() and part.dtype != torch.bool
        if whole and "mask" not in name and name != "labels":
            yield part


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping | tuple | list):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensors(part)
