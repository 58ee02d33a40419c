"""What an item's measure finds: its runs that have ended, its corpus, a place for what takes long."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from isograd.files import read_json, read_rows, write_json
from isograd.lab.train.run import Run
from isograd.papers.reproduce.item import Row


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that has ended.

    Attributes:
        arm: its name in the item.
        values: the keys that its arm sets, dotted.
        folder: metrics.jsonl, quantities.jsonl, validation.jsonl, outcome.json, model/.
    """

    group: str
    arm: str
    run: Run
    values: dict[str, Any]
    folder: Path

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def placement(self) -> str:
        return self.run.model.placement

    @cached_property
    def outcome(self) -> Row:
        content: Row = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
        return content

    def read(self, name: str) -> list[Row]:
        """The rows of one of its .jsonl files."""
        return read_rows(self.folder / name)

    def row(self, **more: Any) -> Row:
        """The run's own row, as rules and charts read it."""
        from isograd.lab.study.engine.ledger import NUMBERS  # torch with it, which a list of items does not need

        training = self.run.training
        known = {"lr": training.lr, "warmup": training.warmup, "optimizer": training.optimizer}
        first = {"group": self.group, "arm": self.arm, "placement": self.placement, "seed": self.seed}
        numbers = {name: self.outcome[name] for name in NUMBERS if name in self.outcome and name != "kept_steps"}
        return {**first, **known, **self.values, "outcome": self.outcome["outcome"], **numbers, **more}


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a measure is given.

    Attributes:
        trained: the item's runs, seed by seed.
        settings: what the item's corpus sets in a recipe: dotted key -> value.
        corpus: the corpus' folder; None where the embedded text is taken.
        folder: the item's own.
        seeds: those of `--seeds`; None: the measure's own.
        version: of the measure's code; what `once` kept of another version is computed again.
        note: says a line of progress.
        spent: processor seconds of each `once`, and whether they were spent now.
    """

    trained: tuple[Trained, ...]
    settings: dict[str, Any]
    corpus: Path | None
    folder: Path
    seeds: tuple[int, ...] | None
    jobs: int | None
    version: str
    note: Callable[[str], None]
    spent: dict[str, tuple[float, bool]] = field(default_factory=dict)

    def of(self, *, group: str | None = None, arm: str | None = None, seed: int | None = None) -> list[Trained]:
        """The runs of a group, of an arm, with a seed; None: any."""
        asked = {"group": group, "arm": arm, "seed": seed}
        wanted = {name: value for name, value in asked.items() if value is not None}
        return [one for one in self.trained if all(getattr(one, name) == value for name, value in wanted.items())]

    def rows(self) -> list[Row]:
        """A row per run."""
        return [one.row() for one in self.trained]

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What `compute` gives, as JSON has it; kept, so that the same command does not compute it again.

        Args:
            name: says everything that changes the result: arm, seed, number.
        """
        ids = [one.folder.name for one in self.trained]
        key = json.dumps([name, self.version, ids, self.settings], sort_keys=True, default=str)
        path = self.folder / "kept" / f"{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
        kept = _kept(path)
        now = kept is None
        if kept is None:
            self.note(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            began = time.process_time()
            value = compute()
            write_json(path, {"name": name, "value": value, "seconds": time.process_time() - began})
            kept = read_json(path)  # as the next command will read it
        self.spent[name] = kept.get("seconds", 0.0), now
        return kept["value"]


def _kept(path: Path) -> Row | None:
    """None where nothing is kept, or where the file is damaged."""
    try:
        content = read_json(path)
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) and "value" in content else None
