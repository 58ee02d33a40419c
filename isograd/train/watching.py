"""The early warning of a run: which gradients it is told of, and where what it knows is kept."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isograd.diagnose.watch.collapse import CollapseWatch
from isograd.diagnose.watch.layers import find_layers, whole_layers
from isograd.diagnose.watch.writers import WARNINGS
from isograd.files import append_rows, read_rows, write_json
from isograd.train.trainer import IsogradTrainer

STATE = "watch.json"  # in a checkpoint


class EarlyWarning:
    """Follows a trainer's losses and gradients, and writes warnings.jsonl.

    Args:
        unigram_entropy: of the predicted tokens, nats; None where the loss is not one of tokens.
        checkpoint: where the training goes on from.
    """

    def __init__(
        self, trainer: IsogradTrainer, folder: Path, unigram_entropy: float | None, checkpoint: Path | None = None
    ) -> None:
        self.trainer = trainer
        self.folder = folder
        whole = whole_layers(find_layers(trainer.model))
        self.collapse = CollapseWatch(whole.addresses, whole.stacks, unigram_entropy)
        self._members: Tensor | None = None  # (layers, gradients): 1 where a gradient is of a layer
        state = checkpoint / STATE if checkpoint else None
        if state is not None and state.exists():
            self.collapse.restore(json.loads(state.read_text(encoding="utf-8")))

    def norms(self) -> Tensor:
        """Gradient norm of each layer in this step, on the device; none where an engine keeps the gradients."""
        norms = self.trainer.norms
        if norms is None:
            return torch.zeros(0, device=self.trainer.args.device)
        if self._members is None or self._members.shape[1] != len(norms):
            self._members = self._who_is_where().to(norms)
        return (self._members @ norms.square()).sqrt()

    def follow(self, step: int, loss: float, norms: list[float]) -> None:
        new = self.collapse.follow(step, loss, norms)
        if new and self.trainer.is_world_process_zero():
            append_rows(self.folder / WARNINGS, new)

    def save(self, checkpoint: Path) -> None:
        write_json(checkpoint / STATE, self.collapse.state())

    def _who_is_where(self) -> Tensor:
        """Only in the first step are the parameters what FSDP2 made of them."""
        place = {id(p): i for i, p in enumerate(self.trainer.graded)}
        layers = find_layers(self.trainer.model)
        whole = whole_layers(layers)
        members = torch.zeros(len(whole.parts), len(place))
        for row, parts in enumerate(whole.parts):
            own = [place[id(p)] for part in parts for p in layers[part].parameters if id(p) in place]
            members[row, own] = 1.0
        return members


def first_warning(folder: Path) -> dict[str, Any] | None:
    """What outcome.json says of a run that was warned of: step, signal, layer, message of the first time."""
    rows = read_rows(folder / WARNINGS)
    return {name: rows[0][name] for name in ("step", "signal", "layer", "message")} if rows else None
