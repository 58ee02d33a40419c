"""`isograd skill`: a file that tells a coding agent when to run which verb, and what to do with what it finds."""

from pathlib import Path
from typing import Annotated, TypedDict

from isograd.cli.console import Result, print_path
from isograd.cli.parser import Folder
from isograd.errors import UserError
from isograd.files import write_text

NAME, FILE = "isograd", "SKILL.md"  # the format wants a folder that is called as the skill is


class Skill(TypedDict):
    """The skill.

    Attributes:
        skill: its text: YAML front matter and Markdown.
        file: where it was written; null where it was printed.
    """

    skill: str
    file: str | None


def skill(*, install: Folder | None = None) -> Annotated[Result, Skill]:
    """Print a skill for coding agents: when to run which verb, and what to do with each kind of finding.

    The format is that of agentskills.io, which Claude Code, Codex, Cursor, Copilot and others read.

    examples:
      isograd skill
      isograd skill --install .claude/skills
      isograd skill --install .agents/skills

    Args:
        install: write FOLDER/isograd/SKILL.md, over an older one of isograd's
    """
    text = Path(__file__).with_name(FILE).read_text(encoding="utf-8")
    if install is None:
        return Result({"skill": text, "file": None}, lambda: print(text, end=""))
    file = install / NAME / FILE
    if file.exists() and not file.read_text(encoding="utf-8").startswith(f"---\nname: {NAME}\n"):
        raise UserError(f"--install {install}: {file} is not isograd's; move it away, or name another folder")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    return Result({"skill": text, "file": str(file)}, lambda: print_path(f"skill: {file}"))
