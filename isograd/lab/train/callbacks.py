"""What happens beside the training: the log of every step, the watch for divergence, the observed steps."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from isograd.diagnose import Probe
from isograd.diagnose.watch.baseline import Baseline
from isograd.diagnose.watch.collapse import CollapseWatch
from isograd.diagnose.watch.layers import WHOLE, by_layer, find_layers, sublayers_of
from isograd.diagnose.watch.loops.callback import announce
from isograd.diagnose.watch.loops.recover import Recovery
from isograd.diagnose.watch.writers import WARNINGS
from isograd.files import append_rows, keep_until, read_json, read_rows, write_json, write_rows
from isograd.lab.train.trainer import IsogradTrainer
from isograd.outcome import Onset

STATE = "watch.json"  # in a checkpoint
STATES = "recover.pt"  # likewise
METRICS, SKIPPED = "metrics.jsonl", "skipped.jsonl"


class EarlyWarning:
    """Follows a trainer's losses and gradients, and writes warnings.jsonl.

    Args:
        baseline: what the loss is compared with; None where that is not known.
        checkpoint: where the run goes on from.
    """

    def __init__(
        self, trainer: IsogradTrainer, folder: Path, baseline: Baseline | None, checkpoint: Path | None = None
    ) -> None:
        self.trainer = trainer
        self.folder = folder
        layers_of = by_layer(find_layers(trainer.model))
        self.collapse = CollapseWatch(layers_of.addresses, layers_of.stacks)
        self.collapse.baseline = baseline
        self._members: Tensor | None = None  # (layers, gradients): 1 where a gradient is of a layer
        state = checkpoint / STATE if checkpoint else None
        if state is not None and state.exists():
            self.collapse.restore(read_json(state))

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
            announce(self.trainer, new)

    def save(self, checkpoint: Path) -> None:
        write_json(checkpoint / STATE, self.collapse.state())

    def _who_is_where(self) -> Tensor:
        """Only in the first step are the parameters what FSDP2 made of them."""
        place = {id(p): i for i, p in enumerate(self.trainer.graded)}
        layers = find_layers(self.trainer.model)
        layers_of = by_layer(layers)
        members = torch.zeros(len(layers_of.parts), len(place))
        for row, parts in enumerate(layers_of.parts):
            own = [place[id(p)] for part in parts for p in layers[part].parameters if id(p) in place]
            members[row, own] = 1.0
        return members


def first_warning(folder: Path) -> dict[str, Any] | None:
    """What outcome.json says of a run that was warned of: step, signal, layer, message of the first time."""
    rows = read_rows(folder / WARNINGS)
    return {name: rows[0][name] for name in ("step", "signal", "layer", "message")} if rows else None


Progress = Callable[[int, float], None]
Diverged = Callable[[Sequence[Mapping[str, Any]]], bool]  # rows of metrics.jsonl that come next


class Log(TrainerCallback):
    """Keeps loss and gradient norm of every step on the device, and writes them in batches of `every`.

    Stops the run at the first batch with a loss that is not finite, or at which `diverged` says so. In a distributed
    run the losses are averaged over processes, once per batch of steps, so all processes stop together.
    """

    def __init__(
        self,
        trainer: IsogradTrainer,
        folder: Path,
        every: int = 10,
        progress: Progress | None = None,
        diverged: Diverged | None = None,
        warning: EarlyWarning | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self.trainer = trainer
        self.folder = folder
        self.every = every
        self.recovery = recovery
        self.progress = progress
        self.diverged = diverged
        self.warning = warning
        self._steps: list[tuple[int, float, Tensor]] = []  # step, rate; loss, norm, and norms of layers
        self._clock = (0, time.perf_counter(), time.process_time())
        self._rates: list[float] = []  # steps per second, one per batch of steps
        self._work: list[float] = []  # seconds of this process in a step, likewise
        self._onset = Onset()

    @property
    def broke_from(self) -> int | None:
        """The step from which on the run is no longer what it was; None where nothing of the kind is seen."""
        return left_course(self._onset, self.warning.collapse.warnings if self.warning else ())

    def follow(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of metrics.jsonl that come next."""
        for row in rows:
            if self.recovery is not None:
                self.recovery.follow(row["step"], row["loss"])
            self._follow(row["step"], row["loss"])

    def _follow(self, step: int, loss: float) -> None:
        """In units of the baseline, which is not a number where none is known."""
        level = self.warning.collapse.baseline if self.warning else None
        unit = level.unit if level else 1.0
        self._onset.follow(step, loss / unit, level.value / unit if level else math.nan)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        loss = torch.stack(self.trainer.losses).float().mean()
        self.trainer.losses.clear()
        assert self.trainer.norm is not None
        numbers = torch.stack([loss, self.trainer.norm.float()])
        if self.warning is not None:
            numbers = torch.cat([numbers, self.warning.norms()])
        self._steps.append((state.global_step, self.trainer.rate, numbers))
        last = state.global_step >= (self.trainer.recipe.training.stop_at or state.max_steps)
        control.should_training_stop |= last
        due = state.global_step % self.every == 0 or last or control.should_save
        fine = self._flush() if due else True
        if due and self.recovery is not None:
            fine |= self._recovered(self.recovery, state.global_step)
        if not fine:
            control.should_training_stop = True
            control.should_save = False  # a run that goes on after a kill would go on from here
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.warning is not None and self.trainer.is_world_process_zero():
            self.warning.save(checkpoint)
        if self.recovery is not None and self.trainer.is_world_process_zero():
            torch.save(self.recovery.state_dict(), checkpoint / STATES)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._flush()  # what another callback's stop has left

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock = (state.global_step, time.perf_counter(), time.process_time())
        if self.recovery is not None:
            model = self.trainer.accelerator.unwrap_model(self.trainer.model)
            self.recovery.attach(model, self.trainer.optimizer, self.trainer.lr_scheduler, state.global_step)

    def cpu_seconds_per_step(self) -> float | None:
        """Median over batches of steps of what this process worked, whatever else the machine did."""
        return statistics.median(self._work) if self._work else None

    def tokens_per_second(self, tokens: float) -> float | None:
        """Median over batches of steps, with `tokens` of them in a step; None before the first batch has gone by."""
        return statistics.median(self._rates) * tokens if self._rates else None

    def _flush(self) -> bool:
        """Write what has gathered; False if the run is to stop."""
        if not self._steps:
            return True
        taken = torch.stack([numbers for *_, numbers in self._steps])
        numbers = self.trainer.accelerator.reduce(taken, reduction="mean").tolist()
        rows = [
            {"step": step, "loss": loss, "lr": rate, "grad_norm": norm}
            for (step, rate, _), (loss, norm, *_) in zip(self._steps, numbers, strict=True)
        ]
        self._steps.clear()
        self._time(rows[-1]["step"])
        self.follow(rows)
        if self.trainer.is_world_process_zero():
            append_rows(self.folder / METRICS, rows)
        if self.warning is not None:
            for row, (_, _, *layers) in zip(rows, numbers, strict=True):
                self.warning.follow(row["step"], row["loss"], layers)
        if self.progress:
            self.progress(rows[-1]["step"], rows[-1]["loss"])
        diverged = self.diverged is not None and self.diverged(rows)
        return all(math.isfinite(row["loss"]) for row in rows) and not diverged

    def _recovered(self, recovery: Recovery, step: int) -> bool:
        """Whether the run has gone back to a good state: the rows of the steps since are no longer of the run."""
        row = recovery.act(step)
        if row is None:
            return False
        back = row["signal"] == "recovered"
        if self.trainer.is_world_process_zero():
            append_rows(self.folder / WARNINGS, [row])
            if back:
                set_aside(self.folder, row["went_back"], step)
        if back:
            self._onset = Onset()
            for s, loss in recovery.history():
                self._follow(s, loss)
        return back

    def _time(self, step: int) -> None:
        now, worked = time.perf_counter(), time.process_time()
        before, began, at_work = self._clock
        self._rates.append((step - before) / (now - began))
        self._work.append((worked - at_work) / (step - before))
        self._clock = (step, now, worked)


def left_course(onset: Onset, warned: Iterable[Mapping[str, Any]]) -> int | None:
    """The step from which on a run is no longer what it was, by its losses and its warnings; None: there is none."""
    return min(filter(None, [onset.since, *(row.get("left_at") or row["step"] for row in warned)]), default=None)


def set_aside(folder: Path, kept: int, step: int) -> None:
    """Move the rows after step `kept`, which a recovery at `step` has undone, from metrics.jsonl to skipped.jsonl."""
    rows = read_rows(folder / METRICS)
    append_rows(folder / SKIPPED, [{**row, "skipped_at": step} for row in rows if row["step"] > kept])
    keep_until(folder / METRICS, kept)


def take_back(folder: Path, step: int) -> None:
    """What was set aside after `step`, in a run that goes on from there: rows until then are of the run again."""
    aside = read_rows(folder / SKIPPED)
    if not aside:
        return
    again = [row for row in aside if row["skipped_at"] > step >= row["step"]]
    rows = read_rows(folder / METRICS) + [{k: v for k, v in row.items() if k != "skipped_at"} for row in again]
    write_rows(folder / METRICS, sorted({row["step"]: row for row in rows}.values(), key=lambda row: int(row["step"])))
    write_rows(folder / SKIPPED, [row for row in aside if row["skipped_at"] <= step])


class Observe(TrainerCallback):
    """Opens the probe around step 1, every `every`-th step and the last, and writes its rows.

    Gradients and updates are those of the whole batch; activations those of the first process' last micro-batch.
    """

    def __init__(self, trainer: IsogradTrainer, folder: Path, every: int) -> None:
        self.trainer = trainer
        self.folder = folder
        self.every = every
        self._open = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.model  # only now are the parameters what FSDP2 made of them
        own = [] if sublayers_of(model) else [layer for layer in find_layers(model) if layer.address != WHOLE]
        self.facts = {layer.address: {"kind": "layer", **layer.facts} for layer in own}
        self.probe = Probe(model, [*self.facts] or None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step + 1
        if step == 1 or step % self.every == 0 or step == state.max_steps:
            self._open.enter_context(self.probe.step(step))
            self.trainer.probe = self.probe

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.probe is None:
            return
        self.trainer.probe = None
        self._open.close()
        if self.trainer.is_world_process_zero():
            rows = [self.facts.get(row["address"], {}) | row for row in self.probe.rows]
            append_rows(self.folder / "quantities.jsonl", rows)
        self.probe.rows.clear()
