"""Which checkpoint a run goes on from, which ones stay, and how a run is forked from one of another.

A checkpoint counts once it is sealed: names and sizes of all its files, written after them. After a kill
in the middle of writing, or with a file cut off or removed, the run goes on from the one before, or from step 0.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from isograd.files import append_rows, new_folder, read_json, read_rows, write_json
from isograd.hub import from_pretrained
from isograd.lab.train.run import Run
from isograd.models import IsogradConfig
from isograd.models.config import TERMS

SEAL = "sealed.json"
CHECKPOINTS = "checkpoints"
INITIAL = "initial"  # beside the checkpoints: the model before the first update
KEPT = 2  # the newest ones


class Seal(TrainerCallback):
    """Seals every checkpoint when all processes have written theirs, and removes those that nobody will want.

    The two newest stay, and the last one before the loss broke, should it have: where that was, `onset` says.
    """

    def __init__(self, trainer: Trainer, folder: Path, onset: Callable[[], int | None]) -> None:
        self.trainer = trainer
        self.folder = folder
        self.onset = onset

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()
        if self.trainer.is_world_process_zero():
            checkpoint = self.folder / f"checkpoint-{state.global_step}"
            write_json(checkpoint / SEAL, sizes(checkpoint))
            remove_old(self.folder, self.onset())


def remove_old(folder: Path, onset: int | None) -> None:
    """Of the checkpoints all but the two newest, and the last one before step `onset`."""
    whole = sorted(filter(is_whole, folder.glob("checkpoint-*")), key=step_of)
    before = before_step(folder, onset)
    for path in whole[:-KEPT]:
        if path != before:
            shutil.rmtree(path)


def before_step(folder: Path, step: int | None) -> Path | None:
    """The newest whole checkpoint of a step before this one."""
    found = [path for path in folder.glob("checkpoint-*") if step is not None and step_of(path) < step]
    return max(filter(is_whole, found), key=step_of, default=None)


def keep_only(folder: Path, onset: int | None) -> None:
    """Of a run that broke: the model before the first update, and the last checkpoint before step `onset`."""
    before = before_step(folder, onset)
    for path in folder.glob("*"):
        if path != before and path.name != INITIAL:
            shutil.rmtree(path)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose files are those that were sealed."""
    return max(filter(is_whole, folder.glob("checkpoint-*")), key=step_of, default=None)


def drop_broken(folder: Path) -> None:
    """Remove the checkpoints that no training can go on from; the next ones are written in their place."""
    for path in folder.glob("checkpoint-*"):
        if not is_whole(path):
            shutil.rmtree(path)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])


def is_whole(checkpoint: Path) -> bool:
    try:
        return bool(read_json(checkpoint / SEAL) == sizes(checkpoint))
    except (OSError, ValueError):
        return False


def sizes(checkpoint: Path) -> dict[str, int]:
    """Path inside the checkpoint -> bytes, of all its files but the seal."""
    files = (p for p in checkpoint.rglob("*") if p.is_file() and SEAL not in p.name)
    return {p.relative_to(checkpoint).as_posix(): p.stat().st_size for p in sorted(files)}


ROWS = ("metrics.jsonl", "quantities.jsonl", "validation.jsonl", "warnings.jsonl")


def fork(checkpoint: Path, run: Run, folder: Path, *, drawn_anew: bool) -> None:
    """Make `folder` that of `run`, as if it had been killed after this checkpoint of another run.

    With the same recipe it goes on to the same numbers, bit for bit. The recipe may differ in whatever is no weight and
    no state of the optimizer: rates, clipping, dropout, the order of the batches.

    Args:
        checkpoint: in the folder of the other run.
        drawn_anew: random numbers (dropout) are those of the run's seed, not those of the checkpoint.

    Raises:
        FileExistsError: there is something in `folder`.
    """
    step, parent = step_of(checkpoint), checkpoint.parent.parent
    with new_folder(folder) as made:
        write_json(made / "run.json", run.as_dict())
        for name in ROWS:
            append_rows(made / name, [row for row in read_rows(parent / name) if row["step"] <= step])
        copy = made / CHECKPOINTS / checkpoint.name
        shutil.copytree(checkpoint, copy)
        config = from_pretrained(IsogradConfig, copy)
        for name, value in run.model.options().items():
            if name.endswith("dropout"):
                setattr(config, TERMS.get(name, name), value)
        config.save_pretrained(copy)
        for path in copy.glob("rng_state*") if drawn_anew else ():
            path.unlink()
        write_json(copy / SEAL, sizes(copy))
