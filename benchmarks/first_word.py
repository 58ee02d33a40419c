"""Time to the first word: help, lists, and refusals that need only what was typed and the recipe.

    python benchmarks/first_word.py                 every verb, n = 5: some four minutes
    python benchmarks/first_word.py -n 11 --write   and the table into docs/performance.md
    python benchmarks/first_word.py --only study    one verb

Each command is a process of its own, `python -m isograd ...` in an empty folder, in turn over n rounds; wall seconds
from its start to its end and CPU seconds (user and system) of it, medians with smallest and largest value. Hub names
are looked up with a proxy that refuses connections, as where there is no network. What trains is timed to its first
line on stderr, too. tests/cli/test_first_word.py takes the same commands, and asks only whether torch was imported.
"""

import argparse
import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from isograd.cli import verbs

PAGE = Path(__file__).parents[1] / "docs/performance.md"
ROWS = PAGE.parent / "results/first-word.csv"
MARKS = ("<!-- first word -->", "<!-- /first word -->")
FILES = {
    "damaged.yaml": "name: x\nmodel: {layers: [\n",
    "unknown.yaml": "name: x\nmodel: {layerz: 3}\n",
    "good.yaml": "name: x\nmodel: {layers: 2}\n",
    "axes.yaml": "name: x\naxes: {model.placement: [pre-ln, prenormx]}\n",
}
RECIPE, NAME, FILE, HUB = "recipe", "name", "file", "hub name"


@dataclass(frozen=True, kw_only=True)
class Command:
    """What is typed, and what about it is refused ("" for what is answered)."""

    verb: str
    words: tuple[str, ...]
    wrong: str = ""

    @property
    def line(self) -> str:
        return " ".join((*self.verb.split(), *self.words))


_OUT = ("--out", "out")
_SEARCH = ("--find", "max-lr")
_TYPED: dict[str, dict[str, list[tuple[str, ...]]]] = {
    "show": {"": [(), ("pre-ln",), ("recipes",)], NAME: [("prenormx",)]},
    "compare": {
        RECIPE: [("damaged.yaml",), ("unknown.yaml",)],
        NAME: [("--placements", "prenormx")],
        FILE: [("missing.yaml",), ("--data", "missing.txt")],
        HUB: [("--data", "a/b")],
    },
    "study": {
        RECIPE: [("damaged.yaml",), ("unknown.yaml",), ("damaged.yaml", *_SEARCH), ("unknown.yaml", *_SEARCH)],
        NAME: [("axes.yaml",), ("good.yaml", *_SEARCH, "--placements", "prenormx")],
        FILE: [
            ("missing.yaml",),
            ("studies/warmup", "data.source=missing.txt"),
            ("missing.yaml", *_SEARCH),
            ("good.yaml", "data.source=missing.txt", *_SEARCH),
        ],
        HUB: [("studies/warmup", "data.source=a/b")],
    },
    "transfer": {
        RECIPE: [("damaged.yaml", "--depth", "2:4"), ("unknown.yaml", "--depth", "2:4")],
        FILE: [("missing.yaml", "--depth", "2:4")],
    },
    "reproduce": {
        "": [("--list",), ("theory", "--list")],
        NAME: [("theory", "lema-1")],
        FILE: [("xiong2020/warmup-fig2", "--data", "missing")],
    },
    "train": {
        RECIPE: [("damaged.yaml",), ("unknown.yaml", "--dry-run"), ("task=nonsense",)],
        NAME: [("model.placement=prenormx",)],
        FILE: [
            ("missing.yaml",),
            ("data.source=missing.txt",),
            ("--new", "missing.txt"),
            ("task=translation", "pairs.train=[missing]"),
        ],
        HUB: [("data.source=a/b",)],
    },
    "translate": {FILE: [("./missing",)], HUB: [("a/b",)]},
    "evaluate": {
        FILE: [("./missing", "--pairs", "numbers"), ("./missing", "--task", "mrpc"), ("./missing",)],
        HUB: [("a/b", "--pairs", "numbers"), ("a/b", "--task", "mrpc"), ("a/b",)],
    },
    "graft": {FILE: [("./missing", "--change", "layers=3", *_OUT)], HUB: [("a/b", "--change", "layers=3", *_OUT)]},
    "import": {
        FILE: [("missing.pt", *_OUT), ("./missing", *_OUT), ("missing.pt", "--heads", "2", *_OUT)],
        HUB: [("a/b", *_OUT)],
    },
    "export": {
        FILE: [("./missing", *_OUT), ("./missing", "--to", "folded", *_OUT)],
        HUB: [("a/b", *_OUT), ("a/b", "--to", "folded", *_OUT)],
    },
    "init": {FILE: [("./missing", "--scheme", "gpt2", *_OUT)], HUB: [("a/b", "--scheme", "gpt2", *_OUT)]},
    "check": {FILE: [("./missing",), ("missing:build",)], HUB: [("a/b",)]},
    "preflight": {FILE: [("missing.py:setup",), ("train.py",), ("missing:setup",)]},
    "watch": {FILE: [("missing.py",)]},
    "conform": {NAME: [("prenormx",)]},
    "explain": {"": [("init-large",)], FILE: [("./missing",)], HUB: [("a/b",)]},
    "replay": {FILE: [("missing",)]},
    "report": {FILE: [("missing",), ("missing", "--open")]},
    "doctor": {},
    "skill": {"": [()]},
}


TRAINING = (
    ("compare", "training.steps=300"),
    ("train", "model.layers=4"),
    ("study", "studies/warmup"),
    ("reproduce", "xiong2020/warmup-fig2"),
)


def commands() -> Iterator[Command]:
    """Every verb's help, and all of the table."""
    for verb in verbs():
        yield Command(verb=verb, words=("--help",))
        for wrong, typed in _TYPED[verb].items():
            for words in typed:
                yield Command(verb=verb, words=words, wrong=wrong)


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)


def offline() -> dict[str, str]:
    """An environment in which no hub can be reached."""
    out = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    return out | {"HTTPS_PROXY": "http://127.0.0.1:9", "HF_HOME": "hf", "OMP_NUM_THREADS": "1"}


def timed(words: Iterable[str], folder: Path, *, first_line: bool = False) -> tuple[float, float]:
    """Wall seconds and CPU seconds of a command, to its end or to its first line on stderr."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "isograd", *words],
        cwd=folder,
        env=offline(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if first_line else subprocess.DEVNULL,
    )
    if first_line:
        assert process.stderr is not None
        process.stderr.readline()
        wall = time.perf_counter() - began
        process.terminate()
        process.communicate()
        return wall, float("nan")
    _, _, used = os.wait4(process.pid, 0)
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def first_lines(words: tuple[str, ...], rounds: int) -> list[float]:
    """Wall seconds to the first line of what trains, in a fresh folder each time."""
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            found.append(timed(words, Path(name), first_line=True)[0])
    return found


def measured(chosen: list[Command], rounds: int) -> dict[Command, list[tuple[float, float]]]:
    found: dict[Command, list[tuple[float, float]]] = {command: [] for command in chosen}
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        for _ in range(rounds):
            for command, times in found.items():
                times.append(timed((*command.verb.split(), *command.words), Path(name)))
    return found


def table(found: dict[Command, list[tuple[float, float]]]) -> list[list[str]]:
    """A row per verb, a cell per kind of answer and refusal: of several commands the slowest."""
    rows: dict[tuple[str, str], list[list[tuple[float, float]]]] = {}
    for command, times in found.items():
        kind = command.wrong or ("help" if command.words == ("--help",) else "answer")
        rows.setdefault((command.verb, kind), []).append(times)
    kinds = ("help", "answer", RECIPE, NAME, FILE, HUB)
    named = dict.fromkeys(verb for verb, _ in rows)
    return [["verb", *kinds], *([verb, *(_cell(rows.get((verb, kind), [])) for kind in kinds)] for verb in named)]


def summary(rows: list[list[str]], first: dict[str, list[float]]) -> str:
    """CPU seconds of the fastest and of the slowest verb, a cell per kind."""
    (_, *kinds), *verbs = rows
    cells = []
    for k in range(1, len(kinds) + 1):
        found = sorted((float(row[k].partition(";")[0]), row[0]) for row in verbs if row[k])
        cells.append(" to ".join(f"{seconds:.2f} ({verb})" for seconds, verb in (found[:1] + found[-1:])))
    lines = [f"| {' | '.join(kinds)} |", f"|{'---|' * len(kinds)}", f"| {' | '.join(cells)} |"]
    if first:
        said = (f"`{one}` {statistics.median(t):.1f} ({min(t):.1f}..{max(t):.1f})" for one, t in first.items())
        lines += [
            "",
            f"First line on stderr, what is about to be done, wall seconds: {', '.join(said)}.",
        ]
    return "\n".join(lines)


def _cell(commands: list[list[tuple[float, float]]]) -> str:
    if not commands:
        return ""
    worst = max(commands, key=lambda times: statistics.median(cpu for _, cpu in times))
    walls, cpus = ([one[i] for one in worst] for i in (0, 1))
    return f"{statistics.median(cpus):.2f}; {statistics.median(walls):.2f} ({min(walls):.2f}..{max(walls):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--only", nargs="+", metavar="VERB")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md and docs/results/first-word.csv")
    options = parser.parse_args()
    chosen = [command for command in commands() if not options.only or command.verb in options.only]
    found = measured(chosen, options.n)
    first = {
        " ".join(words): first_lines(words, options.n) for words in TRAINING if words[0] in (options.only or verbs())
    }
    rows = table(found)
    about = f"n = {options.n} rounds, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    text = f"{about}\n\n{summary(rows, first)}"
    print(*("; ".join(row) for row in rows), text, sep="\n")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        made = re.sub(f"({MARKS[0]}\n).*?({MARKS[1]})", lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
        PAGE.write_text(made, encoding="utf-8")
        with ROWS.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
