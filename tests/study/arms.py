"""A comparison that trains in a second, and what it left behind."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from isograd.cli import functions, main
from isograd.cli.schema import schema

WORDS = ["the", "wolf", "ran", "over", "a", "green", "hill;", "below", "an", "old", "tree", "it", "rained"]
TEXT = "".join(f"{' '.join(WORDS[i % 5 : 5 + i % 8])} {i * i % 97} times.\n" for i in range(300))
SHAPE = ["model.layers=2", "model.width=16", "model.heads=2", "data.length=8", "training.batch=4"]
TIMES = ("seconds", "cpu_seconds", "cpu_seconds_per_step", "tokens_per_second")


def compare_command(text: Path, out: Path, *more: str, steps: int = 12) -> list[str]:
    return ["compare", *SHAPE, f"training.steps={steps}", "--data", str(text), "--out", str(out), *more]


def called(*command: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a verb, called in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(command)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
    if "--json" in command and out.getvalue() and command[0] != "watch":  # after a script's name it is the script's
        _is_of_its_schema(command[0], json.loads(out.getvalue()))
    return code, out.getvalue(), err.getvalue()


def _is_of_its_schema(verb: str, content: Any) -> None:
    """Every `--json` of every test: with no key that the schema does not name."""
    wrong = best_match(Draft202012Validator(schema(verb, functions(verb), strict=True)).iter_errors(content))
    assert wrong is None, f"isograd {verb} --json: {wrong.json_path}: {wrong.message[-300:]}"


def refused(*command: str) -> str:
    """The one line on stderr of a command that ends with 2 and prints nothing, after what it was doing ("... ...")."""
    code, out, err = called(*command)
    err = "".join(line for line in err.splitlines(keepends=True) if not line.endswith(" ...\n"))
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1 and err.endswith("\n"), err
    return err.strip()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def runs(out: Path) -> list[Path]:
    """The run folders of a comparison."""
    return sorted(p.parent for p in out.glob("*/run.json"))


def same_numbers(one: Path, other: Path) -> None:
    """The same runs with the same losses, quantities and outcomes, times aside."""
    assert [p.name for p in runs(one)] == [p.name for p in runs(other)] != []
    for a, b in zip(runs(one), runs(other), strict=True):
        assert read(a / "resolved.json") == read(b / "resolved.json"), a.name
        for name in ("metrics.jsonl", "quantities.jsonl"):
            assert (a / name).read_text() == (b / name).read_text(), (a.name, name)
        mine, theirs = ({k: v for k, v in read(p / "outcome.json").items() if k not in TIMES} for p in (a, b))
        assert {**mine, "provenance": 0} == {**theirs, "provenance": 0}
