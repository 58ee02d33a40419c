"""What a row of the table is: a sentence, the commands behind it, and the rule by which it holds.

a sentence holds  <=>  every row of it holds  <=>  rule(the folders that its commands have written)
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Tier = Literal["slice", "accept", "full"]  # seconds, and in the test suite; under an hour; hours
Folders = Mapping[str, Path]  # of the jobs, by name


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command that leaves its numbers in a folder; rows that need the same runs share it.

    Args:
        name: of the job, and of its folder.
        command: as typed; `{out}` is its folder, `{NAME}` that of the job NAME, `{data}` what `--data` names.
        minutes: of one core, as measured on a two-core AMD EPYC with torch 2.13.
        needs: a pattern of files below `--data`; without them the job is skipped.
        codes: exit codes after which its folder is whole.
    """

    name: str
    command: str
    minutes: float
    needs: str = ""
    codes: tuple[int, ...] = (0,)

    def after(self, names: frozenset[str]) -> list[str]:
        """The jobs whose folders it reads."""
        return [name for name in sorted(names) if f"{{{name}}}" in self.command]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a rule has found: the number as a reader would say it, and whether it is what the sentence says."""

    said: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Row:
    """A sentence with a number, and how it is measured again.

    Args:
        name: of the row.
        page: the file in which the sentence stands.
        sentence: word for word.
        rule: what must hold, in words; written before the run.
        n: how many runs, seeds or cases.
        measure: from the jobs' folders to what was found.
        jobs: names of the jobs it reads; none: it is measured in seconds, from what is in the repository.
        tier: which command measures it.
        stored: it compares the sentence with a table in `docs/results`, and trains nothing.
    """

    name: str
    page: str
    sentence: str
    rule: str
    n: str
    measure: Callable[[Folders], Measured]
    jobs: tuple[str, ...] = ()
    tier: Tier = "accept"
    stored: bool = False


def digest(*parts: object) -> str:
    """Ten hexadecimal digits of plain data.

    >>> digest("a", 1) == digest("a", 1) != digest("a", 2)
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]
