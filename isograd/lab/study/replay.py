"""What would have cured a run that broke: short runs from before the break, each with one change.

RUN/replay/
  replay.json    the run, its break, every change with its runs and its verdict
  ledger.jsonl   a row per run
  cells/NAME/    the runs; replay.json is made of them, so the same command goes on after a kill

A change of a rate, of clipping or of the batches' order goes on from the last checkpoint before the break, with the
weights and the optimizer's state of then; the first steps are taken with the same batches. A change of the placement,
the init or the warm-up begins again at step 0. First comes the run as it was, from the same checkpoint: the negative
control. A change cures the run where that fails again, and the changed one has *finished* with every seed, by the rule
of outcomes (where the loss is not one of tokens, by `outcome.Course`, on the scale of the run's own loss), at a rate
that trains anything.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isograd.errors import RecipeError, UserError, hint
from isograd.files import locked, read_json, read_object, read_rows, write_json
from isograd.lab.study.labels import said
from isograd.lab.study.plan import CELLS, Cell
from isograd.lab.train.recipe import known_keys, run_from_dict, with_overrides
from isograd.lab.train.run import Run
from isograd.outcome import ENDED, Course

if TYPE_CHECKING:
    from isograd.lab.study.engine.jobs import Engine, OnStep
    from isograd.lab.study.engine.runner import OnNote, OnRow

REPLAY = "replay.json"
BROKEN = ("diverged", "collapsed")
ENOUGH = 400  # updates after the break, or after the last step of a longer warm-up: what an outcome takes at most
CONTROL, UNCHANGED = "another seed", "as it was"
LEAST = 0.01  # of the rate of before the break: a run at a lower one hardly moves its weights
GOES_ON = (  # what may differ from a checkpoint on; everything else begins at step 0
    *("lr", "decay", "decay_to", "decay_at", "power", "betas", "eps", "weight_decay", "clip", "label_smoothing"),
    *("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "precision", "seed"),
)


@dataclass(frozen=True, kw_only=True)
class ReplayChange:
    """One thing that is tried.

    Attributes:
        settings: overrides of the run's recipe, `key=value` with whole keys.
        step: the update after which it begins.
        cells: one per seed; where they begin is a part of their names.
    """

    label: str
    settings: tuple[str, ...]
    step: int
    cells: tuple[Cell, ...]

    @property
    def control(self) -> bool:
        """Nothing is changed: it shows what chance does."""
        return self.label in (CONTROL, UNCHANGED)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is replayed.

    Attributes:
        broke_from: the step from which on the run was no longer what it had been; None of one that did not break.
        checkpoint: the last one before; None: everything begins at step 0.
        stop_at: the update after which each run ends.
    """

    parent: Path
    run: Run
    outcome: dict[str, Any]
    broke_from: int | None
    checkpoint: Path | None
    stop_at: int
    changes: tuple[ReplayChange, ...]

    @property
    def cells(self) -> list[tuple[ReplayChange, Cell]]:
        return [(change, cell) for change in self.changes for cell in change.cells]


def load_replay(
    parent: Path, tries: Sequence[Sequence[str]] = (), *, step: int | None = None, seeds: int = 1, steps: int = 0
) -> Replay:
    """What is to be replayed of the run in a folder.

    Args:
        tries: each one change, as `key=value` words whose keys may be short (lr, warmup, placement); none: the usual
            suspects (`suspects`).
        step: go back to the last checkpoint at or before this update; None: before the break.
        seeds: runs of each change.
        steps: updates of each run after where it begins; 0: as many as an outcome takes.

    Raises:
        UserError: no run there, or one that has not broken and no `step`.
        RecipeError: a change that the recipe refuses, or that changes nothing.
        UnknownPlacement: a placement that is not in the catalogue.
    """
    run, outcome = _of(parent)
    if run.entry() is None:
        raise UserError(f"{parent}: replay is for isograd's own models, and this run's is {run.model.placement}")
    if outcome.get("outcome") not in BROKEN and step is None:
        how = f"{outcome['outcome']}" if outcome else "has not ended"
        raise UserError(f"{parent}: nothing broke ({how}); --from STEP replays it all the same")
    wanted = [settings_of(run, words) for words in tries] or suspects(run)
    for settings in wanted:
        _changed(run, settings, 0)
    broke, checkpoint = _where(parent, step)
    begins = checkpoint[0] if checkpoint else 0
    end = _end(run, wanted, broke or 0, begins, steps)
    changes = [_change(run, [], begins, 1, end), *(_change(run, settings, begins, seeds, end) for settings in wanted)]
    return Replay(
        parent=parent,
        run=run,
        outcome=outcome,
        broke_from=broke,
        checkpoint=checkpoint[1] if checkpoint else None,
        stop_at=end,
        changes=tuple(changes),
    )


def settings_of(run: Run, words: Sequence[str]) -> list[str]:
    """One change with whole keys: `lr=3e-4` is training.lr=3e-4.

    Raises:
        RecipeError: an invalid override, or one whose key is not one of this task's, or of several.
    """
    found = []
    for word in words:
        key, sign, value = word.partition("=")
        known = known_keys(run.task)
        like = [one for one in known if one == key] or [one for one in known if one.rpartition(".")[2] == key]
        if not sign:
            raise RecipeError(f"{word!r} is an invalid change; expected key=value, such as lr=3e-4")
        if len(like) != 1:
            raise RecipeError(f"{word!r}: {' or '.join(like) if like else hint(key, known)}")
        found.append(f"{like[0]}={value}")
    return found


def suspects(run: Run) -> list[list[str]]:
    """What is tried where nothing is named, the cheapest change first; another seed is the negative control."""
    t = run.training
    found = [f"training.lr={0.3 * t.lr:.2g}", f"training.warmup={max(2 * t.warmup, min(t.steps // 2, 1000))}"]
    found += [f"training.clip={1.0 if not t.clip or t.clip > 1 else t.clip / 10:g}"]
    found += ["model.placement=pre-ln"] if run.layers is not None and run.model.placement != "pre-ln" else []
    return [[one] for one in [*found, f"seed={run.seed + 1}"]]


def replay(
    plan: Replay,
    folder: Path,
    engine: "Engine",
    on_step: "OnStep" = lambda *_: None,
    on_row: "OnRow" = lambda *_: None,
    on_note: "OnNote" = lambda _: None,
    retry: bool = False,
) -> dict[str, Any]:
    """Train every change with every seed, and give what replay.json says; killed and called again, it goes on.

    Raises:
        RecipeError, DataError: the recipe or the data cannot be used here; nothing has been written then.
        FileExistsError: the run was trained on another text.
        FolderBusyError: another process is at work there.
    """
    from isograd.lab.study.engine.jobs import check_jobs
    from isograd.lab.study.engine.runner import jobs_of, run_cells
    from isograd.lab.train.checkpoints import fork

    cells = [cell for _, cell in plan.cells]
    check_jobs([(plan.run, plan.parent), *jobs_of(cells, folder)])
    with locked(folder):
        (folder / CELLS).mkdir(exist_ok=True)
        for change, cell in plan.cells:  # those that are there already go on themselves
            place = cell.place(folder)
            if change.step and plan.checkpoint is not None and not place.exists():
                fork(plan.checkpoint, cell.run, place, drawn_anew=cell.run.seed != plan.run.seed)
        write_json(folder / REPLAY, described(plan, []))
        rows = run_cells(cells, folder, engine, on_step, on_row, retry=retry, on_note=on_note)
        content = described(plan, [*_judged(plan, rows, folder)])
        write_json(folder / REPLAY, content)
    return content


def described(plan: Replay, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """replay.json: what was asked, and what of it is known."""
    ended = {row["cell"]: row for row in rows}
    changes = [_described(change, ended) for change in plan.changes]
    unchanged = changes[0]["verdict"]
    for one in changes[1:] if unchanged == "cures" else ():
        one["verdict"] = NO_VERDICT
    for one in filter(itemgetter("control"), changes):  # nothing was changed: it cannot cure
        one["verdict"] = {"cures": "finishes", "does not cure": "fails"}.get(one["verdict"], one["verdict"])
    keep = ("outcome", "reason", "final_loss", "warning")
    return {
        "parent": str(plan.parent.resolve()),
        "run": {key: plan.outcome.get(key) for key in keep},
        "broke_from": plan.broke_from,
        "begins": min((change.step for change in plan.changes if change.step), default=0),
        "stop_at": plan.stop_at,
        "changes": changes,
        "cures": [one["change"] for one in changes if one["verdict"] == "cures" and not one["control"]],
        "by_chance": any(one["control"] and one["verdict"] == "finishes" for one in changes[1:]),
        "unchanged": changes[0]["verdict"],
    }


NO_VERDICT = "no verdict"


def _judged(plan: Replay, rows: Sequence[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """The rows, where what merely stayed finite, or was not trained, has not finished."""
    of = {cell.name: change for change, cell in plan.cells}
    before = [row for row in read_rows(plan.parent / "metrics.jsonl") if row["step"] < (plan.broke_from or math.inf)]
    rate = max((row["lr"] for row in before), default=0.0)
    tokens = plan.outcome.get("judged", {}).get("excess") is not None
    data = read_object(plan.parent / "resolved.json").get("data", {})
    level = data.get("unigram_entropy", data.get("constant_loss"))
    course = Course.of({one["step"]: _loss(one) for one in read_rows(plan.parent / "metrics.jsonl")}, level)
    broke = plan.outcome.get("outcome")
    for row in rows:
        change = of[row["cell"]]
        own = [one for one in read_rows(folder / CELLS / row["cell"] / "metrics.jsonl") if one["step"] > change.step]
        reason = ""
        if row["outcome"] == "finished" and change.step and max((one["lr"] for one in own), default=0.0) < LEAST * rate:
            reason = f"the rate is below a hundredth of what it was ({rate:g}): the weights hardly move"
        elif row["outcome"] in ("finished", "undecided") and not course.finished([_loss(one) for one in own]):
            if change.label == UNCHANGED and row["outcome"] == "undecided" and broke in BROKEN:
                row = {**row, "outcome": broke}  # as it was: too short for a verdict of its own
            reason = f"asked: {course.said()}" if row["outcome"] == "finished" and not tokens else ""
        yield {**row, "outcome": "undecided", "reason": reason} if reason else row


def _loss(row: dict[str, Any]) -> float:
    """Files have no NaN: it is null there."""
    return math.nan if row["loss"] is None else float(row["loss"])


def _described(change: ReplayChange, ended: dict[str, dict[str, Any]]) -> dict[str, Any]:
    keep = ("outcome", "reason", "final_loss", "validation_loss", "steps", "error")
    runs: list[dict[str, Any]] = []
    for cell in change.cells:
        row = ended.get(cell.name, {"outcome": "interrupted"})
        runs.append({"seed": cell.run.seed, "cell": cell.name} | {key: row[key] for key in keep if key in row})
    return {
        "change": change.label,
        "settings": list(change.settings),
        "control": change.control,
        "begins": change.step,
        "finished": sum(one["outcome"] == "finished" for one in runs),
        "seeds": len(runs),
        "verdict": verdict([one["outcome"] for one in runs]),
        "runs": runs,
    }


def verdict(outcomes: Sequence[str]) -> str:
    """What a change does, by how its runs ended.

    >>> verdict(["finished"] * 3), verdict(["finished", "collapsed"]), verdict(["diverged"] * 2)
    ('cures', 'not with every seed', 'does not cure')
    >>> verdict(["finished", "undecided"]), verdict(["finished", "failed"])
    ('undecided', 'failed')
    """
    for word in ("failed", "interrupted"):
        if word in outcomes:
            return word
    if {*outcomes} == {"finished"}:
        return "cures"
    if {*outcomes} & {*BROKEN}:
        return "not with every seed" if "finished" in outcomes else "does not cure"
    return "undecided"


def _of(parent: Path) -> tuple[Run, dict[str, Any]]:
    """The recipe and the outcome of a run, {} of one that has not ended."""
    try:
        run = run_from_dict(read_json(parent / "run.json"))
        path = parent / "outcome.json"
        outcome = read_json(path) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{parent}: not the folder of a run ({error})") from error
    return run, outcome if outcome.get("outcome") in ENDED else {}


def _where(parent: Path, step: int | None) -> tuple[int | None, tuple[int, Path] | None]:
    """From which step on the run was broken, and the checkpoint to go back to with its step."""
    from isograd.lab.train.checkpoints import CHECKPOINTS, before_step, step_of
    from isograd.lab.train.train import broke_from

    broke = broke_from(parent)
    found = before_step(parent / CHECKPOINTS, broke if step is None else step + 1)
    return broke, (step_of(found), found) if found else None


def _end(run: Run, wanted: Sequence[Sequence[str]], broke: int, begins: int, steps: int) -> int:
    warmups = [with_overrides(run, settings).training.warmup for settings in wanted]
    last = begins + steps if steps else max(broke, begins, *warmups) + ENOUGH
    return min(run.training.steps, last)


def _change(run: Run, settings: Sequence[str], begins: int, seeds: int, end: int) -> ReplayChange:
    """The runs of a change, each with a seed of its own and the schedule of the run that broke."""
    keys = [word.partition("=")[0] for word in settings]
    goes_on = all(key.rpartition(".")[2] in GOES_ON for key in keys)
    runs = [_changed(run, settings, i) for i in range(seeds)]
    stop = end if end < run.training.steps else 0
    # what is kept and tracked of a whole run is of no use here; weights of before the checkpoint are not there. A run
    # that may recover is not stopped before
    plain: dict[str, Any] = {"stop_at": stop, "patience": 0, "select": "last", "track": ()}
    plain |= {"stop_when_broken": False} if run.training.stop_when_broken else {}
    runs = [replace(one, training=replace(one.training, **plain)) for one in runs]
    label = UNCHANGED if not keys else CONTROL if keys == ["seed"] else _label(run, settings)
    step = begins if goes_on else 0
    cells = [Cell(run=one, name=f"{one.folder_name()}-from{step}", values={"change": label}) for one in runs]
    return ReplayChange(label=label, settings=tuple(settings), step=step, cells=tuple(cells))


def _changed(run: Run, settings: Sequence[str], more: int) -> Run:
    """The run with a change, and with a seed so much larger: for its weights, its dropout, and its batches."""
    changed = replace(with_overrides(run, settings), name=None)
    changed.entry()
    if settings and changed == replace(run, name=None):
        raise RecipeError(f"{' '.join(settings)} changes nothing: the run has it already")
    moved = changed.seed + more - run.seed
    data = changed.data if changed.data.seed is None else replace(changed.data, seed=changed.data.seed + moved)
    return replace(changed, seed=changed.seed + more, data=data)


def _label(run: Run, settings: Sequence[str]) -> str:
    has = with_overrides(run, settings).as_dict()
    parts = []
    for word in settings:
        section, _, name = word.partition("=")[0].rpartition(".")
        parts.append(said(word.partition("=")[0], (has[section] if section else has)[name]))
    return ", ".join(parts)
