"""Watching a run: rows of gradients and losses, an early warning, and what is kept when a number is not finite.

    watch = isograd.watch(model, folder="runs/mine")
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()                   # all micro-batches of the step
        watch.step(loss, batch=batch)     # after scaler.unscale_, before clipping
        optimizer.step()
        optimizer.zero_grad()
    watch.close()

It reads gradients where they lie and changes nothing: no hooks, no random numbers. Between watched steps it does
nothing at all.
"""

import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from isograd.diagnose.watch.baseline import TRIES, Baseline, Targets
from isograd.diagnose.watch.batches import Batches, is_probe
from isograd.diagnose.watch.collapse import ASK, CollapseWatch
from isograd.diagnose.watch.drift import FIRST, Continued, Mode, Ranks, Rates, Rounded, still_rising
from isograd.diagnose.watch.gradients import TOGETHER, Gradients, layers_of, row_of
from isograd.diagnose.watch.layers import by_layer, find_layers
from isograd.diagnose.watch.loops.replay import OwnLoop, Replays
from isograd.diagnose.watch.losses import Losses
from isograd.diagnose.watch.overflow import IN_FLOAT32, origin, out_of_range
from isograd.diagnose.watch.steps import Steps, TrainedBy, WeightsMoved
from isograd.diagnose.watch.trained import FirstBatch
from isograd.diagnose.watch.updates import Updates
from isograd.diagnose.watch.writers import (
    JsonLines,
    Logging,
    LogNumbers,
    Nonfinite,
    Row,
    TensorBoard,
    Writer,
    alarm,
    rank,
)
from isograd.errors import command
from isograd.files import write_json
from isograd.hub import SETUP

REPLAYED = "replayed.json"
_log = logging.getLogger("isograd")
_FOLLOWS_FROM = {  # a signal that says no more than one that is known
    "updates": ("schedule",),
    "stall": (
        "probabilities",
        "updates",
        "frozen",
        "gradient",
        "labels",
        "zero-grad",
        "gradients",
        "unigram",
        "decay",
        "loss-sum",
    ),
    "gradients": ("decay",),
    "unigram": ("updates", "frozen", "gradient", "labels", "zero-grad"),
    "low": ("leak", "same-batch", "labels"),
    "rise": ("zero-grad", "nonfinite", "loss-sum", "decay"),
    "nonfinite": ("loss-sum",),
}
_WIRING = ("gradients", "unigram")  # signals that the wiring of a model can explain
HARDER = 0.5  # of a rise, that other targets have to explain
COPIED = 300_000_000  # parameters of a model that is looked at while it trains
SIGNALS = (
    frozenset(_FOLLOWS_FROM)
    | {"base", "ids", "eval-mode", "probabilities", "rounded", "resume", "ranks", "schedule", "state"}
    | {signal for known in _FOLLOWS_FROM.values() for signal in known}
)
_BY_TARGETS = {"low", "stall", "unigram"}  # signals of a loss that is measured against its targets
_SHORT = ("gradients", "unigram", "nonfinite")  # whose messages do not say the remedy


def watch(
    model: nn.Module,
    *,
    folder: str | Path | None = None,
    every: int = 1,
    optimizer: Optimizer | None = None,
    addresses: Sequence[str] | None = None,
    unigram_entropy: float | None = None,
    updates: bool = False,
    overflows: bool = False,
    tensorboard: bool = False,
    log: LogNumbers | None = None,
    replay: OwnLoop | None = None,
) -> "Watch":
    """Watch a run of any model, from `Watch.step` in its loop.

    Args:
        model: as it is trained: wrapped, compiled, sharded.
        folder: for metrics.jsonl, quantities.jsonl, warnings.jsonl and the steps before a number that is not finite;
            None keeps nothing on disk.
        every: steps from one row to the next.
        optimizer: the one that trains it: what it holds and is set to tells causes apart that look alike.
        addresses: the modules to watch, in the order of their depth; None finds the layers.
        unigram_entropy: of the labels, nats; None computes it from the labels in the batches.
        updates: also measure how far each layer's matrix moves from row to row, for a copy of it.
        overflows: a gradient scaler (fp16) leaves out steps whose gradients are not finite: they are no alarm.
        tensorboard: also write TensorBoard's event files, into `folder`/tensorboard.
        log: called with numbers by name and the step, such as `wandb.log`.
        replay: how the loop can be taken back, for `Watch.replay`.

    Raises:
        ValueError: `every` below 1; `tensorboard` without a folder.
        AttributeError: an address that the model does not have.
        ImportError: tensorboard is not installed.
    """
    if every < 1:
        raise ValueError(f"every={every} must be at least 1; it is the number of steps from one row to the next")
    if tensorboard and folder is None:
        raise ValueError("tensorboard=True needs a folder")
    where = None if folder is None else Path(folder)
    writers: list[Writer] = []
    if rank() == 0:
        writers += [] if where is None else [JsonLines(where)]
        writers += [TensorBoard(where / "tensorboard")] if tensorboard and where else []
        writers += [] if log is None else [Logging(log)]
    kept = Nonfinite(where, overflows=overflows)
    made = Watch(model, addresses, writers, kept, every=every, unigram_entropy=unigram_entropy, updates=updates)
    made.trained_by.optimizer = optimizer
    made.continued = Continued.of(where)
    made.replays = None if replay is None else Replays(loop=replay, model=model)
    return made


class Watch:
    """Takes the numbers of every watched step, hands rows to its writers, and warns.

    Attributes:
        row, layers: the row of the last step that was read, and the rows of its layers.
        warnings: what was reported, as the rows of warnings.jsonl: step, signal, layer, message, cause, remedy.
    """

    def __init__(
        self,
        model: nn.Module,
        addresses: Sequence[str] | None,
        writers: Sequence[Writer],
        nonfinite: Nonfinite,
        *,
        every: int,
        unigram_entropy: float | None,
        updates: bool,
    ) -> None:
        self.row: Row = {}
        self.layers: list[Row] = []
        self.warnings: list[Row] = []
        self.replays: Replays | None = None
        self.continued = Continued([])
        self.ranks: Ranks | None = None  # set where every process watches
        self.trained_by = TrainedBy(model)
        self.on_reading: Callable[[int, float], None] | None = None  # called with the step and the loss of each
        self._model = model
        self._addresses = addresses
        self._writers = writers
        self._nonfinite = nonfinite
        self._every = every
        self._updates = updates
        self._targets = Targets(unigram_entropy)
        self._watched = [] if addresses is None else find_layers(model, addresses)
        self._by_layer = by_layer(self._watched)
        self._collapse = CollapseWatch([], [], unigram_entropy)
        self._losses, self._batches = Losses(self.trained_by), Batches(model)
        self._first = FirstBatch(model, self._targets)
        self._steps: Steps | None = None
        self._gradients: Gradients | None = None
        self._updates_of: Updates | None = None
        self._waiting: list[tuple[int, Any, float | None]] = []  # steps that were taken and not read yet: batch, rate
        self._ended: set[str] = set()  # looks that failed
        self._rounded: Rounded | None = None
        self._mode = Mode(model)
        self._rates = Rates(self.trained_by)
        self._begun: list[float] = []  # the first losses
        self._at_first: Baseline | None = None  # of the first batch by itself
        self._step = 0
        self._closed = self._asked_of = False
        self._read = 0  # how many so far
        weakref.finalize(self, _flush, writers)

    def step(self, loss: Tensor | float, batch: Any = None, step: int | None = None) -> None:
        """Call once per update: after backward (of all micro-batches) and unscaling, before clipping.

        Args:
            loss: of the step, nats; the mean over its micro-batches.
            batch: what is kept should a number not be finite; the labels of a mapping with "labels" are counted.
            step: its number; None counts the calls.

        Raises:
            ValueError: no parameter has a gradient.
        """
        if self.replays is not None and self.replays.busy:
            return
        self._step = self._step + 1 if step is None else step
        if self.replays is not None:
            self.replays.before_update(self._step)
        if self._gradients is not None and self._step % self._every:
            return
        if all(p.grad is None for p in self._model.parameters()):
            raise ValueError(
                "no parameter has a gradient; call step() after loss.backward() and before"
                " zero_grad(); a model that was built anew needs a watch of its own"
            )
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        if self._gradients is None:
            self._try("the model", self._begin, batch, loss)
        elif self._read < TRIES:
            self._try("targets", self._targets.recognize, self._model, batch, loss)
        if self._gradients is None or self._try("gradients", self._take, loss, batch) is None:
            return
        if self._updates_of is not None:
            self._report(self._try("updates of weights", self._updates_of.look, self._step, loss) or [])
        if self._gradients.waiting >= self._gradients.together:
            self.read()

    def before(self, batch: Any) -> None:
        """Call before the forward pass, which would fail: token ids without a row are named; on a CPU only."""
        found = self._try("ids", out_of_range, self._model, batch)
        if found is not None and not any(row["signal"] == "ids" for row in self.warnings):
            self._report([alarm(self._step + 1, "ids", None, "a batch cannot be looked up", *found)])

    def _begin(self, batch: Any, loss: Tensor | float) -> None:
        """At the first step: only now are the parameters what FSDP2 made of them, and lazy ones there."""
        self._watched = find_layers(self._model, self._addresses)
        self._by_layer = by_layer(self._watched)
        level, self._collapse = self.baseline, CollapseWatch(self._by_layer.addresses, self._by_layer.stacks)
        self._collapse.baseline = level
        self._updates_of = Updates(self._model, self._parameters(), self._every, self.trained_by)
        self._steps = Steps(list(self._model.parameters()), self._every)
        self._gradients = Gradients(self._model, self._watched, self._updates)
        self._rounded = Rounded(self._model) if self._every == 1 else None
        self._try("targets", self._targets.recognize, self._model, batch, loss)
        self._at_first = self._try("targets", self._targets.of, batch)
        self._try("the first batch", self._first.begin, batch, loss)

    def _take(self, loss: Tensor | float, batch: Any) -> bool:
        assert self._gradients is not None and self._steps is not None
        self._gradients.take(loss)
        self._try("steps of weights", self._steps.take)
        rate = self.trained_by.rate
        self._waiting.append((self._step, batch, rate))
        if self._rounded is not None:
            self._report(self._try("rounding", self._rounded.look, self._step, rate) or [])
        self._report(self._try("rates", self._rates.look, self._step, rate) or [])
        self._report(self._try("the mode", self._mode.look, self._step) or [])
        if self.ranks is not None:
            self._report(self._try("processes", self.ranks.look, self._step) or [])
        return True

    def _try(self, what: str, look: Callable[..., Any], *args: Any) -> Any:
        """A look at somebody else's model or batch: one that fails is not taken again, and the run goes on."""
        if what in self._ended:
            return None
        try:
            return look(*args)
        except Exception as error:
            self._ended.add(what)
            _log.warning("watch: %s: not looked at any more, %s: %s", what, type(error).__name__, error)
            return None

    @property
    def baseline(self) -> Baseline | None:
        """What the loss is measured against; None where that is not known, or not yet."""
        return self._collapse.baseline

    def read(self) -> None:
        """Read the steps that wait (on an accelerator: up to ten); with sharded gradients for all processes at once."""
        readings = self._gradients.read() if self._gradients else []
        moves: list[WeightsMoved | None] = (
            self._try("steps of weights", self._steps.read) if self._steps else None
        ) or []
        moves = moves if len(moves) == len(readings) else [None] * len(readings)
        for reading, moved, (step, batch, rate) in zip(readings, moves, self._waiting, strict=True):
            self.row, self.layers = row_of(step, reading, self._watched, rate), layers_of(step, reading, self._watched)
            self._read += 1
            if self._read == 1 and self._nonfinite.folder is not None and not rank():
                write_json(self._nonfinite.folder / SETUP, self.trained_by.described())
            if self.replays is not None:
                self.replays.follow(step, reading.loss, self.baseline.value if self.baseline else None)
            if self.on_reading is not None:
                self.on_reading(step, reading.loss)
            for writer in self._writers:
                writer.write(self.row, self.layers)
            self._try("targets", self._count, batch)
            norms = self._by_layer.joined(reading.layers)
            new = self._collapse.follow(step, reading.loss, norms, partial(is_probe, self._model))
            undone = self._first.follow(reading.loss)
            self._begun += [reading.loss] if len(self._begun) < FIRST else []
            new += self._losses.follow(step, reading.loss, reading.norm, self.baseline, moved, rate, undone)
            new += self.continued.look(step, self._begun) if self._read == FIRST else []
            new += self._try("batches", self._batches.look, step, batch, self._collapse, reading.loss) or []
            if any(row["signal"] == "rise" and self._is_harder(batch, row) for row in new):
                new = [row for row in new if row["signal"] != "rise"]
                self.begin_again()
            signals = {row["signal"] for row in new}
            unmeant = {"low"} if "low" in signals and not self._batches.copied else set()
            if signals & _BY_TARGETS - unmeant and not self._targets.meant(self._model, batch, reading.loss):
                unmeant = _BY_TARGETS
            new = [row for row in new if row["signal"] not in unmeant]
            broken = self._nonfinite.look(self.row, self.layers, batch)
            self._report(new + ([self._explained(broken, batch)] if broken else []))
        self._waiting.clear()

    def replay(
        self, changes: Mapping[str, Callable[[], None]], *, steps: int | None = None, start: int | None = None
    ) -> list[Row]:
        """Take the loop back to before its break, and train it on from there once per change.

        Args:
            changes: by name, what is called before the first step, such as to lower the rate of the optimizer.
            steps: of each; None: until sixty after the break.
            start: go back to the last state kept at or before this step; None: before the break.

        Returns:
            rows of "change", "from", "steps", "loss" (mean of the last ten), "finished" (by `outcome.Course`, whose
            bound is "asked"), "moved" (how far the weights went, over how far they went in as many steps before),
            "verdict" and "cures". The first row is the loop as it was, the negative control, with "bit_equal" to what
            it did then: where it finishes, nothing cures, and the verdict says so. With a folder also in replayed.json.
            The loop stands at the state that it was taken back to.

        Raises:
            ValueError: the watch was made without `replay`.
        """
        if self.replays is None:
            raise ValueError("this watch keeps no states; make it by watch(model, replay=OwnLoop(...))")
        self.read()
        rows = self.replays.run(changes, steps, start)
        if self._nonfinite.folder is not None and rank() == 0:
            write_json(self._nonfinite.folder / REPLAYED, {"changes": rows})
        return rows

    def report(self, row: Row) -> None:
        """A warning from elsewhere: to the console, and into warnings.jsonl."""
        self._report([row])

    def begin_again(self) -> None:
        """After the run has gone back to a state of before: what its losses said until then holds no longer."""
        self._losses = Losses(self.trained_by)
        self._first.begin_again()

    def goes_on(self, before: "Watch") -> None:
        """Of a run that another watch has followed so far, of a model that was replaced: steps are counted on."""
        self._step, self.continued = before._step, Continued([])

    def close(self, *, ended: bool = True) -> None:
        """Read and write what is left; where gradients are sharded, every process has to call this.

        Args:
            ended: the run has come to its end, and was not interrupted.
        """
        self.read()
        if ended and not self._closed:
            self._report(still_rising(self._step, self._rates.largest, self.trained_by.asked))
        _flush(self._writers)
        if self._nonfinite.folder is not None and self._read and not self._closed and not rank():
            print(f"report: {command('report', self._nonfinite.folder)}", file=sys.stderr)
        self._closed = True

    def abandon(self) -> None:
        """Close after an error, which may be this process' own: sharded gradients that wait are not read."""
        if self._gradients is None or not self._gradients.sharded:
            self.read()
        _flush(self._writers)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(ended=kind is None)

    def _parameters(self) -> dict[str, list[nn.Parameter]]:
        """Of each layer, by its address."""
        layers = by_layer(self._watched)
        return {
            address: [p for place in places for p in self._watched[place].parameters]
            for address, places in zip(layers.addresses, layers.parts, strict=True)
        }

    def _explained(self, broken: Row, batch: Any) -> Row:
        """With what made the first number that is not finite: the batch, or a module."""
        again = self._gradients is not None and self._gradients.together == 1
        found = self._try("the origin of NaN", lambda: origin(self._model, batch, self.row["loss"], again=again))
        layer, cause, remedy = found or (
            broken["layer"], "an overflow in the backward pass, or a loss of log(0) or 0 / 0", IN_FLOAT32
        )  # fmt: skip
        message = f"{broken['message']}: {cause}" if found else broken["message"]
        return {**broken, "layer": layer or broken["layer"], "message": message, "cause": cause, "remedy": remedy}

    def _is_harder(self, batch: Any, rise: Row) -> bool:
        """Whether the targets are others since the first batch, and explain a rise: of a curriculum, or new domains."""
        now, first = self._try("targets", self._targets.of, batch), self._at_first
        if now is None or first is None or now.kind != first.kind:
            return False
        higher = now.value - first.value
        return bool(rise["loss"] < now.value and higher >= HARDER * (rise["loss"] - rise["lowest"]))

    def _count(self, batch: Any) -> None:
        self._targets.add(batch)
        if self._read % TOGETHER == 0:
            self._collapse.baseline = self._targets.baseline()

    def _advised(self, row: Row) -> Row:
        """With what is to be done about a collapse, asked once: of trained weights the rate, else the wiring."""
        if row["signal"] not in _WIRING or self._asked_of:
            return row
        self._asked_of = True
        remedy = row["remedy"].replace(f"; {ASK}", "")
        if self._first.trained:
            return {**row, "remedy": f"{self._losses.slower()}; {remedy}"}
        wired, causes = _wired(self._model, self.trained_by.rate), [row["cause"]]
        if wired is not None:
            remedy = wired[1] if "train at lr=" in wired[1] else f"{wired[1]}; or {remedy}"
            row, causes = {**row, "remedy": remedy}, [wired[0]]
        rates = self._rates.largest
        if rates and rates[0] == max(rates):
            highest = f"the learning rate was at its highest, {rates[0]:.2g}, from the first step on"
            causes.insert(0, f"{highest}: there was no warm-up")
        return {**row, "cause": "; ".join(causes)}

    def _report(self, new: list[Row]) -> None:
        known = {row["signal"] for row in (*self.warnings, *new)}
        new = [row for row in new if not known & {*_FOLLOWS_FROM.get(row["signal"], ())}]
        new = [self._advised(row) for row in new]
        self.warnings += new
        if not new or rank():
            return
        for row in new:
            short = row["signal"] in _SHORT
            wired = [row["cause"]] if row["signal"] in _WIRING and self._asked_of and not self._first.trained else []
            _log.warning("\n  ".join([row["message"], *wired, f"-> {row['remedy']}"] if short else [row["message"]]))
            for writer in self._writers:
                writer.warn(row)
        _flush(self._writers)


def _wired(model: nn.Module, lr: float | None) -> tuple[str, str] | None:
    """What `isograd.lint.initial.collapse.advice` finds on a copy; None where it cannot look, or a copy would be dear.

    The random numbers of the run stay where they are, and no error of a look at a foreign model ends it.
    """
    if torch.compiler.is_compiling() or (distributed.is_available() and distributed.is_initialized()):
        return None
    parameters = list(model.parameters())
    if sum(p.numel() for p in parameters) > COPIED:
        return None
    devices = {p.device.index for p in parameters if p.device.type == "cuda"}
    try:
        from isograd.lint.initial.collapse import advice

        with warnings.catch_warnings(), torch.random.fork_rng([*devices]), torch.enable_grad():
            warnings.simplefilter("ignore")
            return advice(model, lr=lr)
    except Exception:  # a foreign model's own code
        return None


def _flush(writers: Sequence[Writer]) -> None:
    for writer in writers:
        writer.flush()
