"""Which checkpoint a run goes on from.

A checkpoint counts once it is sealed: names and sizes of all its files, written after them. After a kill
in the middle of writing, or with a file cut off or removed, the run goes on from the one before, or from step 0.
"""

import shutil
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from isograd.files import read_json, write_json

SEAL = "sealed.json"


class Seal(TrainerCallback):
    """Seals every checkpoint when all processes have written theirs."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        self.trainer = trainer
        self.folder = folder

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()
        if self.trainer.is_world_process_zero():
            checkpoint = self.folder / f"checkpoint-{state.global_step}"
            write_json(checkpoint / SEAL, sizes(checkpoint))


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
