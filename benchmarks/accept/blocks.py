"""Every block of code of README and docs: Python that stands by itself is run, commands are read by their own parsers.

    python -m benchmarks.accept.blocks --out FOLDER

`blocks.json` has a row per block: page, line, what it is, verdict and reason. A block of Python that uses names which
it does not define is a fragment: it is compiled, and the names are the reason. Of a command the verb, its options and
their kinds must be right; that the longer ones do what their pages say is what other rows are for.
"""

import argparse
import builtins
import io
import json
import os
import re
import shlex
import subprocess
import symtable
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.accept.state import ROOT
from isograd import cli
from isograd.cli.parser import chosen, parse

_READERS = {  # page: what its blocks name of the reader's
    "docs/cluster.md": "the address of a cluster",
    "docs/finetuning.md": "a GLUE folder",
    "docs/pretraining.md": "a trained model",
    "docs/zero-shot.md": "a trained model",
}
SECONDS = 1800  # a block of Python may take
_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?(isograd .*)$")
_META = re.compile(r"\.\.|[{<$|]|>\s")  # of a synopsis, or of a shell: the parser is not what reads it
_TESTED = {"docs/check/": "tests/lint/test_pages.py runs it"}  # where a page begins so: why it is not run again
_GENERATED = ("_build", "generated")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Code of a page, with the line on which it begins."""

    page: str
    line: int
    code: str


def pages() -> list[Path]:
    docs = ROOT / "docs"
    found = [page for page in docs.rglob("*.md") if page.relative_to(docs).parts[0] not in _GENERATED]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(found)]


def python_blocks() -> Iterator[Block]:
    for page, text in _texts():
        for found in _FENCED.finditer(text):
            if found[1] == "python":
                yield Block(page=page, line=_line(text, found.start()), code=found[2])


def commands() -> Iterator[Block]:
    """Each `isograd ...` on a line of its own, without the remark after it, and in a cell of a table."""
    for page, text in _texts():
        lines = text.replace("\\\n", "").splitlines()
        fenced = False
        for number, line in enumerate(lines, 1):
            fenced ^= line.startswith("```")
            found = _COMMAND.match(line.strip()) if fenced or line.startswith("    ") else None
            codes = [re.split(r"\s{2,}|\s#\s", found[1])[0].strip()] if found else []
            codes += re.findall(r"`(isograd \w+ [^`]+)`", line) if line.startswith("|") else []
            for code in codes:
                if not _META.search(code):
                    yield Block(page=page, line=number, code=code)


def _texts() -> Iterator[tuple[str, str]]:
    return ((str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")) for page in pages())


def _line(text: str, start: int) -> int:
    return text.count("\n", 0, start) + 1


def missing(code: str) -> list[str]:
    """The names that a block uses and does not define.

    >>> missing("import torch\\nfor x in loader: torch.relu(model(x))")
    ['loader', 'model']
    """
    table = symtable.symtable(code, "block", "exec")
    tables = [table]
    for one in tables:
        tables.extend(one.get_children())
    read = {s.get_name() for one in tables for s in one.get_symbols() if s.is_referenced() and s.is_global()}
    read |= {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    return sorted(read - defined - set(dir(builtins)) - {"__name__", "__file__"})


def read_command(code: str) -> str:
    """What its verb's parser says against a command; "" where it takes it.

    >>> read_command("isograd show deepnorm layers=48"), read_command("isograd show deepnorm --depth 3")[:24]
    ('', 'isograd show: unrecogniz')
    """
    words = shlex.split(code)[1:]
    if not words or words[0].startswith("-"):
        return ""
    verb = words.pop(0)
    if verb not in cli.verbs():
        return f"no verb {verb!r}"
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            parse(chosen(cli.functions(verb), f"isograd {verb}", words), f"isograd {verb}", words)
    except SystemExit as end:
        return said.getvalue().strip() if end.code else ""
    return ""


def run(block: Block) -> dict[str, object]:
    """A block of Python, in a folder and a process of its own."""
    row: dict[str, object] = {**asdict(block), "kind": "python"}
    try:
        compile(block.code, block.page, "exec")
    except SyntaxError as error:
        return row | {"verdict": "failed", "reason": str(error)}
    if names := missing(block.code):
        return row | {"verdict": "fragment", "reason": f"uses {', '.join(names)} of the reader's"}
    if reason := _READERS.get(block.page):
        return row | {"verdict": "fragment", "reason": f"names {reason} of the reader's"}
    if reason := next((why for begin, why in _TESTED.items() if block.page.startswith(begin)), None):
        return row | {"verdict": "tested", "reason": reason}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        script = Path(folder) / "block.py"
        script.write_text(block.code, encoding="utf-8")
        command = [sys.executable, str(script)]
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return row | {"verdict": "failed", "reason": f"not done after {SECONDS} s"}
    reason = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    return row | {"verdict": "failed" if done.returncode else "ran", "reason": reason}


def main(out: Path) -> None:
    rows = [run(block) for block in python_blocks()]
    for block in commands():
        said = read_command(block.code)
        rows.append({**asdict(block), "kind": "command", "verdict": "failed" if said else "parsed", "reason": said})
    out.mkdir(parents=True, exist_ok=True)
    (out / "blocks.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    main(parser.parse_args().out)
