"""The recipes that come with isograd, by name: `xiong2020/iwslt14-small`, or `iwslt14-small` where that is unique.

A recipe begins with a comment: one sentence that says what it shows, then its commands, indented.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.errors import RecipeError, nearest

FOLDER = Path(__file__).parent


def read_table(path: Path) -> Any:
    """A table of the package: libyaml's parser, where PyYAML has it, takes a tenth of the time."""
    import yaml

    try:
        from yaml import CSafeLoader as SafeLoader
    except ImportError:
        from yaml import SafeLoader  # type: ignore[assignment]
    return yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader)


@dataclass(frozen=True, kw_only=True)
class Named:
    """A recipe of the package.

    Args:
        name: its path in `isograd/lab/recipes`, without the suffix.
        about: what it shows, in a sentence.
        command: one that runs it; the first of its comment.
    """

    name: str
    about: str
    command: str
    path: Path


def recipes() -> list[Named]:
    """All of them, those of no folder first."""
    return [_read(path) for path in sorted(FOLDER.rglob("*.yaml"), key=lambda p: (p.parent != FOLDER, p))]


def path_of(recipe: Path | str) -> Path:
    """The file that a path or a name means; a file that is there comes first.

    Raises:
        RecipeError: neither; or a last part that several recipes have.

    >>> path_of("warmup") == path_of("studies/warmup") == path_of("studies/warmup.yaml")
    True
    """
    if Path(recipe).is_file():
        return Path(recipe)
    name = Path(recipe).as_posix().removesuffix(".yaml").removeprefix("recipes/")
    known = {_name(path): path for path in FOLDER.rglob("*.yaml")}
    found = [one for one in sorted(known) if one == name] or [one for one in sorted(known) if one.endswith(f"/{name}")]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise RecipeError(f"{recipe}: several recipes are called so; choose one of {', '.join(found)}")
    near = nearest(name, known) or nearest(name, [one.rpartition("/")[2] for one in known])
    meant = f"did you mean {near!r}?" if near else "'isograd show recipes' lists those of the package"
    raise RecipeError(f"{recipe}: no such recipe; {meant}")


def _name(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix().removesuffix(".yaml")


def _read(path: Path) -> Named:
    lines = re.findall(r"^# ?(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    sentence: list[str] = []
    for line in lines:
        if line.startswith("  ") or (sentence and sentence[-1].endswith((".", "?"))):
            break
        sentence.append(line)
    commands = [line.strip() for line in lines if re.match(r"  .*\bisograd (train|compare|study) ", line)]
    name = _name(path)
    return Named(name=name, about=" ".join(sentence), command=next(iter(commands), f"isograd train {name}"), path=path)
