"""What the folder of a run says about how its model came to be."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILES = {"run": "run.json", "resolved": "resolved.json", "outcome": "outcome.json"}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The files of a run; empty where there are none.

    Attributes:
        run: the recipe.
        resolved: what was built, and from which data.
        outcome: how it ended.
    """

    run: Mapping[str, Any] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)


def origin(name: str | Path) -> Origin:
    """Of the folder of a run, or of the model inside one."""
    path = Path(name)
    folder = next((f for f in (path, path.resolve().parent) if (f / FILES["run"]).is_file()), None)
    if folder is None:
        return Origin()
    return Origin(**{key: _there(folder / file) for key, file in FILES.items()})


def _there(path: Path) -> dict[str, Any]:
    """What cannot be read is left out: a card is worth less than the model."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
