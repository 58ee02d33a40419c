"""A spike of a script's loss, explained: which one change makes it go away, and come back elsewhere.

Every twenty updates the script forks: a process that waits is a snapshot of the whole program, its place in the data
and its random numbers, by copy-on-write. After a spike the one before it tries the hypotheses: for each it forks
a process that goes on as the script, with one thing changed (`Trial`). The first is the script as it was: where that
does not repeat the spike bit for bit, nothing is claimed.
"""

import math
import multiprocessing
import os
import platform
import select
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from isograd.diagnose.watch.loops.trial import Outcome, Running, Trial
from isograd.diagnose.watch.writers import Row
from isograd.errors import command
from isograd.files import read_json, write_bytes, write_json

APART = 20  # updates between two snapshots
ALIVE = 3  # snapshots
BEFORE = 60  # losses that say what is usual
AFTER = 12  # steps after a spike was found, that are part of it
LATER = 10  # steps after which a cause is put elsewhere
SIGMAS, OUTLIERS = 6.0, 2.0  # a spike is above the usual by these times the noise, and the largest of the last losses
MOST = 3  # spikes of a run that are explained
SPIKE = "spike.json"
SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A rise of the loss at step `onset` above `level`, by more than `bound`."""

    onset: int
    found: int
    level: float
    bound: float

    def height(self, losses: dict[int, float], since: int, until: int) -> float:
        """How far single losses come above the level, or 1.5 times means of three; infinite with one not finite."""
        values = [losses[step] - self.level for step in range(since, until + 1) if step in losses]
        if not values or not all(map(math.isfinite, values)):
            return math.inf
        means = (1.5 * sum(values[i : i + 3]) / 3 for i in range(len(values) - 2))
        return max(*values, *means, -math.inf)


def spike(losses: Sequence[float]) -> Spike | None:
    """Whether the last of these losses, from step 1 on, is part of a spike.

    >>> usual = [1.0, 1.1, 0.9, 1.05] * 10
    >>> spike(usual), spike([*usual, 1.2]), spike([*usual, 3.0]).onset, spike([*usual, math.nan]).onset
    (None, None, 41, 41)
    """
    now, last = len(losses), losses[-1:]
    usual = [loss for loss in losses[max(0, now - 5 - BEFORE) : now - 5] if math.isfinite(loss)]
    if len(usual) < 20 or not math.isfinite(losses[-2]):
        return None
    level = median(usual)
    noise = median(abs(loss - level) for loss in usual) / 0.6745
    bound = max(SIGMAS * noise, OUTLIERS * (max(usual) - level), 0.1 * abs(level), 1e-6)
    found = Spike(onset=now, found=now, level=level, bound=bound)
    numbered = dict(enumerate(losses, 1))
    alone, three = found.height(numbered, now, now), found.height(numbered, now - 2, now)
    if math.isfinite(last[0]) and max(alone, three if math.isfinite(three) else 0.0) <= bound:
        return None
    onset = now if not alone <= bound else now - 2
    while onset > now - 15 and not numbered[onset - 1] <= level + 0.35 * bound:
        onset -= 1
    return replace(found, onset=onset)


@dataclass(kw_only=True)
class Spikes:
    """Snapshots of a script, and what becomes of them; `forward`, `target`, `update` and `updated` are its hooks."""

    folder: Path
    script: Path
    arguments: Sequence[str]
    running: Running | None = None
    losses: list[float] = field(default_factory=list)
    refused: bool = False
    said: list[int] = field(default_factory=list)  # the steps of spikes that were explained
    _kept: list[tuple[int, int, int]] = field(default_factory=list)  # step, process, pipe
    _working: list[tuple[int, Path]] = field(default_factory=list)
    _spike: Spike | None = None
    _last: Spike | None = None  # until the loss is back
    _found: int = 0

    def __post_init__(self) -> None:
        self.folder, self.script = self.folder.absolute(), self.script.absolute()  # a script may go elsewhere

    def update(self, loss: Tensor | None) -> None:
        """Before an update."""
        value = math.nan if loss is None else loss.item()
        if self.running is not None:
            self.running.update(value)
            return
        self.losses.append(value)
        if self._spike is None and self._found < MOST and self._kept:
            back = self._last is None or median(self.losses[-5:]) <= self._last.level + 0.5 * self._last.bound
            self._last = None if back else self._last  # what follows from a spike is none
            self._spike = spike(self.losses) if back else None
        elif self._spike is not None and len(self.losses) >= self._spike.found + AFTER:
            self._ask()

    def updated(self, model: nn.Module, optimizer: Optimizer) -> None:
        """After an update: where a snapshot is taken. It returns once in each process that goes on."""
        if self.running is not None:
            self.running.updated()
            return
        step = len(self.losses)
        if step % APART or self._found >= MOST or not math.isfinite(self.losses[-1]):
            return
        if not self.refused and (why := _impossible(model)):
            print(f"isograd watch: spikes are not explained: {why}", file=sys.stderr)
            self.refused = True
        if self.refused:
            return
        while len(self._kept) >= ALIVE + (self._spike is not None):
            self._drop(0)
        read, write = os.pipe()
        try:
            process = _fork()
        except OSError as error:  # no memory, or too many processes
            self.refused = True
            print(f"isograd watch: spikes are not explained: {error}", file=sys.stderr)
            return
        self._kept.append((step, process, write))
        if process:
            os.close(read)
        else:
            self._serve(read, step, model, optimizer)

    def _drop(self, which: int) -> None:
        _, process, pipe = self._kept.pop(which)
        os.close(pipe)
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(process, signal.SIGKILL)  # a process of the script may hold the pipe open: it would wait on
            os.waitpid(process, 0)

    def _ask(self) -> None:
        """The snapshot before the spike is asked for its cause."""
        assert self._spike is not None
        sure = [i for i, (step, _, _) in enumerate(self._kept) if step < self._spike.onset - 8]
        late = [i for i, (step, _, _) in enumerate(self._kept) if step < self._spike.onset]
        if which := (sure or late)[-1:]:
            self._found += 1
            out = self.folder / (SPIKE if self._found == 1 else f"spike-{self._found}.json")
            _, process, pipe = self._kept.pop(which[0])
            with open(pipe, "wb") as file:  # noqa: PTH123
                content = bytes(ForkingPickler.dumps((self._spike, self.losses, out)))
                file.write(len(content).to_bytes(8, "big") + content)
            self._working.append((process, out))
            step = f"{self._spike.onset:,}"
            print(f"isograd watch: the loss leapt at step {step}; its cause is tried beside the run", file=sys.stderr)
        self._last, self._spike = self._spike, None

    def close(self, wait: bool = True) -> None:
        """At the end of the script: a spike that is known by then is explained, and waited for."""
        if self.running is not None:
            self.running.end()
        if self._spike is not None and wait:
            self._ask()
        while self._kept:
            self._drop(0)
        if self._working and wait:
            print("isograd watch: a spike is being explained (Ctrl-C leaves it)", file=sys.stderr)
        for process, out in self._working:
            try:
                if not wait:
                    os.kill(process, signal.SIGTERM)
                os.waitpid(process, 0)
            except (ChildProcessError, ProcessLookupError):
                continue
            except KeyboardInterrupt:
                os.kill(process, signal.SIGTERM)
                raise
            if out.exists():
                row = read_json(out)
                todo = f" -> {row['remedy']}" if row.get("remedy") else ""
                print(f"isograd watch: {row['sentence']}{todo}", file=sys.stderr)
                self.said.append(row["step"])
                print(f"the page: {command('explain', self.folder)}", file=sys.stderr)

    def _serve(self, pipe: int, step: int, model: nn.Module, optimizer: Optimizer) -> None:
        """The snapshot: waits to be asked, and ends. Only a process that it forks for a trial returns from here."""
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for _, _, other in self._kept:
                os.close(other)
            try:
                with open(pipe, "rb") as file:
                    length = int.from_bytes(file.read(8), "big")
                    if not length:
                        os._exit(0)
                    found, losses, out = ForkingPickler.loads(file.read(length))
            except EOFError:  # it is not needed
                os._exit(0)
            began, known = time.monotonic(), dict(enumerate(losses, 1))
            steps = investigate(found, known, step)
            trial = next(steps)
            while True:
                read, write = os.pipe()
                process = _fork()
                if not process:
                    self.running = Running(trial, step, model, optimizer, write, found.onset)
                    return
                os.close(write)
                outcome = _outcome(read, process)
                try:
                    trial = steps.send(outcome)
                except StopIteration as ended:
                    self._write(out, ended.value | {"seconds": time.monotonic() - began})
                    break
            code = 0
        finally:
            if self.running is None:
                os._exit(code)

    def _write(self, out: Path, row: Row) -> None:
        batches = row.pop("batches")
        for step, content in batches.items():
            write_bytes(out.with_name(f"{out.stem}-batch-{step}.pt"), content)
        kept = [out.with_name(f"{out.stem}-batch-{step}.pt").name for step in batches]
        if self.script.stat().st_size < 2**18:
            shutil.copyfile(self.script, out.with_name(f"{out.stem}-script.py"))
        versions = {"python": platform.python_version(), "torch": torch.__version__, "system": platform.platform()}
        again = command("watch", f"{out.stem}-script.py", *self.arguments).replace("watch", "watch --spikes", 1)
        write_json(out, row | {"batch_files": kept, "script": self.script.name, "again": again, "versions": versions})


def _fork() -> int:
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of other threads, which a trial lacks: its control shows whether it needs them
        return os.fork()


def _impossible(model: nn.Module) -> str | None:
    """Why this program cannot be forked, or its replay could not be that of the run."""
    if torch.cuda.is_initialized() or any(p.device.type != "cpu" for p in model.parameters()):
        return "the model is not on the CPU"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "several processes train together"
    if multiprocessing.active_children():
        return "processes of a data loader cannot be taken back; try num_workers=0"
    return None


def _outcome(pipe: int, process: int) -> Outcome:
    """What a trial sends; nothing, should it fail or take longer than ten minutes."""
    content, until = b"", time.monotonic() + 600
    while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (part := os.read(pipe, 2**16)):
            break
        content += part
    os.close(pipe)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    try:
        outcome: Outcome = ForkingPickler.loads(content)  # of a process of our own
        return outcome
    except Exception:
        return Outcome()


def investigate(found: Spike, known: dict[int, float], start: int) -> Generator[Trial, Outcome, Row]:
    """Yields trials and gets their outcomes; returns what is written down.

    A hypothesis is the verdict where the spike goes away with it in all seeds, in which the control has it, and comes
    back where the cause is put elsewhere. The first one in the order of `hypotheses` is taken: from the narrowest on.
    """
    end = min(found.found + AFTER, max(known))
    control = yield Trial(kind="control", name="as it was", end=end)
    same = [step for step in range(start + 1, end + 1) if _same(control.losses.get(step), known[step])]
    height = found.height(control.losses, found.onset, end)
    row: Row = {"step": found.onset, "level": found.level, "bound": found.bound, "from": start + 1, "height": height}
    row |= {"bit_equal": len(same) == end - start, "verdict": None, "batches": control.batches, "hypotheses": []}
    row["rows"] = [
        {
            "step": step,
            "loss": loss,
            "rate": next(iter(control.rates.get(step, ())), None),
            "norm": control.norms.get(step),
        }
        for step, loss in known.items()
        if start < step <= end
    ]
    rise = f"by {height:.3g}, from {found.level:.3g}" if math.isfinite(height) else "to a number that is not finite"
    at = f"At step {found.onset:,} the loss rose {rise}"
    if not row["bit_equal"]:
        first = next(step for step in range(start + 1, end + 1) if step not in same)
        why = "several threads, or something that a copy of the process does not hold"
        return row | {"sentence": f"{at}. It is not explained: a replay differs from step {first:,} on ({why})."}

    def shown(trial: Trial, outcome: Outcome) -> Row:
        losses = [outcome.losses.get(step) for step in range(start + 1, trial.end + 1)]
        return {"kind": trial.kind, "name": trial.name, "seed": trial.seed, "losses": losses}

    def gone(outcome: Outcome, control: float) -> bool:
        own = found.height(outcome.losses, found.onset - 3, end) if end in outcome.losses else math.inf
        return own <= min(found.bound, 0.5 * control)

    rows = row["hypotheses"]
    rows.append(shown(Trial(kind="control", name="as it was", end=end), control) | {"gone": False})
    cures: list[tuple[Trial, Row]] = []
    for trial in hypotheses(found, control, end):
        outcome = yield trial
        rows.append(shown(trial, outcome) | {"gone": gone(outcome, height)})
        if rows[-1]["gone"] and trial.kind not in [one.kind for one, _ in cures]:
            cures.append((trial, rows[-1]))
    heights = {0: height}
    for seed in range(1, SEEDS) if cures else ():
        outcome = yield Trial(kind="control", name="as it was", end=end, seed=seed)
        heights[seed] = found.height(outcome.losses, found.onset - 3, end)
    row["heights"] = [*heights.values()]
    for trial, line in cures:
        line["seeds"] = [True]
        for seed in range(1, SEEDS):
            outcome = yield replace(trial, seed=seed, batches={s: o - seed for s, o in trial.batches.items()})
            line["seeds"].append(heights[seed] > found.bound and gone(outcome, heights[seed]))
        line["back"] = []
        for back, step in reverses(trial, found, control) if all(line["seeds"]) else ():
            outcome = yield back
            losses = outcome.losses
            before, after = found.height(losses, found.onset - 3, step - 1), found.height(losses, step, back.end)
            line["back"].append({"step": step, "came": before <= found.bound < after, **shown(back, outcome)})
        if all(line["seeds"]) and all(one["came"] for one in line["back"]):
            later = [f"{one['step']:,}" for one in line["back"]]
            came = f"; put elsewhere, it comes back at steps {' and '.join(later)}" if later else ""
            row["verdict"] = {"kind": trial.kind, "name": trial.name}
            others = [one["name"] for one in rows if one["gone"] and one is not line]
            also = f" It also goes away with: {'; '.join(others)}." if others else ""
            said = f"{at}. Cause: {CAUSES[trial.kind]}. With {trial.name} it goes away in {SEEDS} of {SEEDS} seeds"
            return row | {"sentence": f"{said}{came}.{also}", "remedy": REMEDIES[trial.kind]}
    tried = len({one["kind"] for one in rows}) - 1
    return row | {"sentence": f"{at}. None of {tried} kinds of hypotheses explains it."}


CAUSES = {
    "state": "something that is no update changed weights or optimizer between two steps",
    "precision": "16 bits do not hold these numbers",
    "attention": "the attention logits of one layer have grown too large",
    "eps": "the optimizer's eps is too small for gradients that are rare and tiny",
    "beta2": "Adam's beta2 is too high: gradients grew sooner than their second moment",
    "jump": "the learning rate jumped",
    "batch": "one batch",
    "clip": "a gradient that is many times the usual one",
    "rate": "the learning rate is too high there",
}
REMEDIES = {
    "state": "look at what the loop does between these two steps: a checkpoint that is loaded, or weights that are set",
    "precision": "train in bfloat16 or float32, or keep that part of the model in float32",
    "attention": "normalize queries and keys (QK-norm), or lower the learning rate",
    "eps": "give Adam a larger eps",
    "beta2": "betas=(0.9, 0.95)",
    "jump": "print the rate of optimizer.param_groups there, and fix its schedule",
    "batch": "look at the rows of that batch, and leave bad ones out of the data; torch.load reads it from the file"
    " spike-batch-STEP.pt of the watched folder",
    "clip": "clip gradients to a few times their usual norm",
    "rate": "lower the peak learning rate, or lengthen the warm-up",
}


def hypotheses(found: Spike, control: Outcome, end: int) -> Iterator[Trial]:
    """What is tried, from what explains the fewest spikes to what damps any."""
    onset, first = found.onset, min(control.rates)
    changed = sorted(step for step in control.changed if onset - 3 <= step <= onset)
    if changed:
        name = f"weights and optimizer put back before step {changed[0]:,} ({control.changed[changed[0]]:,} numbers)"
        yield Trial(kind="state", name=name, end=end, undo=range(onset - 3, onset + 1))
    if control.half:
        yield Trial(kind="precision", name="float32 in place of 16 bits", end=end, float32=True)
    if control.attention:
        layer = max(control.attention, key=lambda one: control.attention[one])
        yield Trial(kind="attention", name=f"half the attention logits in {layer or 'the model'}", end=end, calm=layer)
    eps, typical = control.settings.get("eps"), control.typical
    if eps is not None and typical and 0.1 * typical > 10 * eps:
        yield Trial(kind="eps", name=f"eps {0.1 * typical:.1g}", end=end, eps=0.1 * typical)
    if control.settings.get("betas", (0, 0))[1] > 0.95:
        yield Trial(kind="beta2", name="beta2 0.95", end=end, beta2=0.95)
    usual = control.rates[first]
    if any(new > 2 * old for rates in control.rates.values() for new, old in zip(rates, usual, strict=False)):
        rates = dict.fromkeys(range(first, end + 3 * LATER), usual)
        yield Trial(kind="jump", name=f"the rate of step {first:,}", end=end, rates=rates)
    for step in (onset, onset - 1, onset - 2) if control.inputs > 1 else ():
        if step - SEEDS >= first:
            yield Trial(kind="batch", name=f"another batch at step {step:,}", end=end, batches={step: step - 1})
    norm = median(value for step, value in control.norms.items() if step < onset - 1)
    if max(value for step, value in control.norms.items() if step <= onset) > 3 * norm:
        name = f"gradients clipped to norm {norm:.2g} from step {onset - 3:,} on"
        yield Trial(kind="clip", name=name, end=end, clip=norm, clip_from=onset - 3)
    rates = {step: [0.1 * one for one in control.rates.get(step, usual)] for step in range(onset - 5, onset + 3)}
    yield Trial(kind="rate", name=f"a tenth of the rate around step {onset:,}", end=end, rates=rates)


def reverses(trial: Trial, found: Spike, control: Outcome) -> Iterator[tuple[Trial, int]]:
    """The same cause elsewhere, and the step at which it should be back."""
    for later in (LATER, 2 * LATER):
        end = found.onset + later + AFTER
        if trial.kind == "batch":
            ((step, other),) = trial.batches.items()
            moved = {step: other, step + later: step}
            yield replace(trial, name=f"that batch at step {step + later:,}", batches=moved, end=end), step + later
        elif trial.kind == "jump":
            first = min(control.rates)
            moved_rates = {step: control.rates.get(step - later, control.rates[first]) for step in trial.rates}
            yield replace(trial, name=f"that rate {later} steps later", rates=moved_rates, end=end), found.onset + later
        elif trial.kind == "state":
            step = found.onset + later
            yield replace(trial, name=f"that change before step {step:,}", redo=step, end=end), step


def _same(a: float | None, b: float) -> bool:
    return a == b or (a is not None and math.isnan(a) and math.isnan(b))
