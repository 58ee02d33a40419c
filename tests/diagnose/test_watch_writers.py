"""Rows as lines of JSON."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from isograd.diagnose.watch.writers import JsonLines
from isograd.files import append_rows

PLAIN: list[dict[str, Any]] = [{"step": 1, "groups": {"a": 0.1, "b": 2.0}, "layer": None}, {"step": 2, "groups": {}}]


@pytest.mark.parametrize(
    "rows", [PLAIN, PLAIN[:1], [{"name": "}, {"}, {"name": "a"}], [{"of": [{"a": 1}, {"b": 2}]}, {"c": 3}], [{}, {}]]
)
def test_a_line_per_row(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    append_rows(tmp_path / "rows.jsonl", rows)
    append_rows(tmp_path / "rows.jsonl", [])
    append_rows(tmp_path / "rows.jsonl", rows)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows * 2


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    append_rows(tmp_path / "rows.jsonl", [{"a": math.nan, "b": {"c": -math.inf, "d": [1.0, math.nan]}}, {"a": 1.0}])
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"a": None, "b": {"c": None, "d": [1.0, None]}}, {"a": 1.0}]


def test_files_grow_ten_steps_at_a_time(tmp_path: Path) -> None:
    writer = JsonLines(tmp_path / "new/folder")
    for step in range(1, 26):
        writer.write({"step": step}, [{"step": step, "address": "a"}, {"step": step, "address": "b"}])
    path = tmp_path / "new/folder/quantities.jsonl"
    assert len(path.read_text().splitlines()) == 40
    writer.flush()
    assert len(path.read_text().splitlines()) == 50
