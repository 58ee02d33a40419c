"""For coding agents: the skill, schemas of JSON, what a code means, findings in 2,000 characters, no colours."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from benchmarks.accept.blocks import read_command
from isograd import cli
from isograd.cli import formats, functions, verbs
from isograd.cli.console import Result
from isograd.cli.schema import Open, contents, schema
from isograd.files import explanation
from isograd.lint.check import CODES
from isograd.lint.findings import SEVERITIES, Finding, Findings, Kind
from isograd.lint.step import report
from tests.study.arms import called, refused

SKILL = Path(cli.__file__).with_name("SKILL.md")
SILENT = {"watch", "translate"}  # what they print is the script's, or translations
MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def feed(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))

    def forward(self, x):
        x = self.feed(x)
        return x


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.spare = nn.Parameter(torch.ones(32))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def batch():
    return (torch.randn(2, 8, 32),)


def setup():
    model = Stack()
    data = [(torch.randn(4, 8, 32), torch.randn(4, 8, 32)) for _ in range(8)]
    return {"model": model, "loss": nn.MSELoss(), "data": data, "optimizer": torch.optim.Adam(model.parameters())}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "agents_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("agents_model", None)


def front_matter(text: str) -> tuple[dict[str, Any], str]:
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


# ---------------------------------------------------------------------------------------------------- the skill


def test_the_skill_is_what_the_format_says() -> None:
    """agentskills.io/specification."""
    head, body = front_matter(SKILL.read_text(encoding="utf-8"))
    assert set(head) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head["name"]) and len(head["name"]) <= 64
    assert 0 < len(head["description"]) <= 1024 and len(head["compatibility"]) <= 500
    assert " Use " in head["description"]  # what it does, and when
    assert len(body.splitlines()) < 500 and len(body) < 4 * 5000  # tokens


def test_the_skill_says_commands_that_exist_and_each_kind_of_finding() -> None:
    _, body = front_matter(SKILL.read_text(encoding="utf-8"))
    typed = re.findall(r"`(isograd [^`]+)`", body)
    assert len(typed) > 7 and [said for one in typed if (said := read_command(one))] == []
    rows = re.findall(r"^\| (\w+)(?:, (\w+))? \|", body, re.MULTILINE)
    assert {one for one, _ in rows} >= set(SEVERITIES) and {one for _, one in rows} >= set(get_args(Kind))


def test_the_skill_is_printed_and_installed(tmp_path: Path) -> None:
    text = SKILL.read_text(encoding="utf-8")
    assert called("skill")[:2] == (0, text)
    folder, file = tmp_path / "skills", tmp_path / "skills/isograd/SKILL.md"
    assert json.loads(called("skill", "--install", str(folder), "--json")[1]) == {
        "skill": text,
        "file": str(file),
    }
    assert file.read_text(encoding="utf-8") == text and front_matter(text)[0]["name"] == file.parent.name
    file.write_text(text.replace("##", "###"), encoding="utf-8")  # of another version
    assert called("skill", "--install", str(folder))[0] == 0 and file.read_text(encoding="utf-8") == text
    file.write_text("---\nname: mine\n---\n", encoding="utf-8")
    assert "is not isograd's" in refused("skill", "--install", str(folder))
    assert "mine" in file.read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_with_json_has_a_schema(verb: str) -> None:
    made = schema(verb, functions(verb))
    assert bool(made) == (verb not in SILENT)
    for function in functions(verb):  # each says what it returns
        assert bool(contents(function)) == (verb not in SILENT)
    if made:
        Draft202012Validator.check_schema(made)
        code, out, _ = called(verb, "--schema")
        assert (code, json.loads(out)) == (0, made)
    else:
        assert "--schema" not in called(verb, "--help")[1]


CHEAP = (  # the others are read in the tests of their verbs, where `called` holds each to its schema
    ("check", "agents_model:Stack", "--batch", "agents_model:batch", "--prove"),
    ("check", "agents_model:Stack", "--batch", "agents_model:batch", "--no-prove"),
    ("preflight", "agents_model.py:setup", "--no-prove"),
    ("explain", "agents_model.py:setup"),
    ("explain", "agents_model:Stack", "--batch", "agents_model:batch"),
    ("explain", "init-large"),
    ("init", "agents_model:Stack", "--batch", "agents_model:batch", "--scheme", "xavier", "--out", "drawn"),
    ("show",),
    ("show", "deepnorm", "encoder=6", "decoder=6"),
    ("show", "recipes"),
    ("conform", "layerscale", "--weights"),
    ("conform", "layerscale"),
    ("train", "model.layers=2", "--dry-run"),
    ("train", "model.layers=2", "--keys"),
    ("train", "--new", "--out", "first.yaml"),
    ("transfer", "gpt2-bpe-adamw", "--depth", "6:24"),
    ("reproduce", "theory", "--list"),
    ("reproduce", "--list"),
    ("skill",),
)


@pytest.mark.parametrize("words", CHEAP, ids=" ".join)
def test_json_is_of_its_schema(words: tuple[str, ...], here: Path) -> None:
    """`called` refuses any other, also a key that the schema does not name."""
    code, out, err = called(*words, "--json")
    assert code in (0, 1) and out, err


def test_a_schema_refuses_what_is_wrong() -> None:
    """The negative control."""
    right = json.loads(called("explain", "init-large", "--json")[1])
    strict, loose = (Draft202012Validator(schema("explain", functions("explain"), strict=one)) for one in (True, False))
    assert strict.is_valid(right) and loose.is_valid(right)
    for wrong in ({}, {"code": "init-large"}, {**right, "explain": 3}, [right]):
        assert not strict.is_valid(wrong) and not loose.is_valid(wrong), wrong
    assert not strict.is_valid({**right, "more": 1}) and loose.is_valid({**right, "more": 1})  # of a later version


class Ran(Open):
    """What a run wrote.

    Attributes:
        losses: by step,
            in nats.
    """

    losses: list[float]
    of: "Ran | None"


def test_types_become_schemas() -> None:
    def verb() -> Annotated[Result, Ran, dict[str, tuple[int, str]]]: ...

    made = schema("verb", [verb], strict=True)
    assert made["anyOf"][0] == {"$ref": "#/$defs/Ran"}
    ran = made["$defs"]["Ran"]
    assert ran["description"] == "What a run wrote." and "additionalProperties" not in ran
    number = {"type": ["number", "null"]}  # what is not finite is null
    assert ran["properties"]["losses"] == {"type": "array", "items": number, "description": "by step, in nats."}
    valid = Draft202012Validator(made).is_valid
    assert valid({"losses": [1.0, None], "of": {"losses": [], "of": None}, "more": 1}) and valid({"a": [1, "b"]})
    assert not valid({"losses": ["1"], "of": None}) and not valid({"a": [1, 2]}) and not valid({"a": [1, "b", 2]})


# ---------------------------------------------------------------------------------------------------- codes


@pytest.mark.parametrize("code", sorted(CODES | report.CODES))
def test_every_code_is_explained(code: str) -> None:
    said = explanation(code)
    assert "Why it matters. " in said and "What to do. " in said and "## " not in said
    assert not re.search(r"\*\*\w|\]\(", said)  # no Markdown


def test_a_code_is_explained_and_a_folder_of_its_name_is_a_model(here: Path) -> None:
    code, out, _ = called("explain", "init-large")
    assert code == 0 and explanation("init-large") in out
    (here / "init-large").mkdir()
    assert "init-large" in refused("explain", "init-large")
    assert explanation("no-such-code") == ""
    for typed in ("init-larg", "Init-Large"):
        assert refused("explain", typed).endswith(f"no code, run or model {typed!r}; did you mean 'init-large'?")


def test_json_explains_the_codes_that_it_has(here: Path) -> None:
    found = json.loads(
        called("check", "agents_model:Stack", "--batch", "agents_model:batch", "--no-prove", "--json")[1]
    )
    codes = {one["code"] for one in found["findings"]}
    assert codes and found["explain"] == {code: explanation(code) for code in codes}


# ---------------------------------------------------------------------------------------------------- findings


def test_findings_for_an_agent(here: Path) -> None:
    for words in (
        ("check", "agents_model:Stack", "--batch", "agents_model:batch", "--no-prove"),
        ("preflight", "agents_model.py:setup", "--no-prove"),
    ):
        code, out, _ = called(*words, "--format", "agent")
        assert code == 1 and len(out) <= formats.AGENT + 1 and words[1] in out.splitlines()[0]
        spare = 1 + MODEL.splitlines().index("        self.spare = nn.Parameter(torch.ones(32))")
        assert f"error fact parameter-unused agents_model.py:{spare}\n  at: spare\n" in out
        assert all(f"\n  {name}: " in out for name in ("what", "proof", "fix"))
        severities = re.findall(r"^(error|warning|info) (?:fact|suspicion) ", out, re.MULTILINE)
        assert severities == sorted(severities, key=SEVERITIES.index)
    assert "--json and --format agent" in refused(*words, "--format", "agent", "--json")


def test_a_patch_is_what_diff_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "without.py").write_text(
        f"""{MODEL}
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 32)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(4))
        self.norms, self.blocks = nn.ModuleList(map(nn.LayerNorm, [32] * 4)), nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        x = self.embed(ids)
        for norm, attention, block in zip(self.norms, self.attentions, self.blocks):
            h = norm(x)
            x = x + attention(h, h, h, need_weights=False)[0]
            x = block(x)
        return self.head(x)
"""
    )
    monkeypatch.chdir(tmp_path)
    words = ("check", "without.py:Deep", "--no-prove")
    changed = re.findall(r"^[+-] .*$", called(*words, "--diff")[1], re.MULTILINE)
    assert changed and any("x + " in one for one in changed)
    out = called(*words, "--format", "agent")[1]
    patches = [f"{one[2]} {one[4:]}" for one in out.splitlines() if re.match(r"  [+-] ", one)]
    assert [" ".join(one.split()) for one in patches] == [" ".join(one.split()) for one in changed]


WORDS = st.integers(0, 900).map(lambda length: ("a word %\n" * 100)[:length])
FINDING = st.builds(
    Finding,
    code=st.just("init-large"),
    severity=st.sampled_from(SEVERITIES),
    address=WORDS,
    measured=st.floats(allow_nan=True),
    message=WORDS,
    remedy=WORDS,
)


@given(st.lists(FINDING, max_size=12), WORDS, st.lists(WORDS, max_size=5))
def test_2000_characters_are_kept(found: list[Finding], model: str, missed: list[str]) -> None:
    """Whatever is found: the first is in it, the others are in it or counted."""
    ordered = sorted(found, key=lambda one: SEVERITIES.index(one.severity))
    findings = Findings(model=model, placements={}, formulas={}, findings=tuple(ordered), missed=tuple(missed))
    text = formats.agent(findings, {})
    shown = len(re.findall(r"^\w+ fact init-large$", text, re.MULTILINE))
    left = sum(map(int, re.findall(r"(\d+) (?:error|warning|info)", text.partition("\nleft out: ")[2])))
    assert len(text) <= formats.AGENT and shown + left == len(found)
    assert shown >= min(len(found), 1) and bool(left) == ("--json has all" in text)
    assert not missed or "could not look at" in text


def test_what_fits_is_not_cut() -> None:
    finding = Finding(code="frozen", address="a", measured=1.0, message="m" * 390, remedy="r" * 390)
    one = Findings(model="m", placements={}, formulas={}, findings=(finding,))
    assert finding.message in formats.agent(one, {}) and finding.remedy in formats.agent(one, {})
    many = replace(one, findings=(finding,) * 9)
    assert finding.message in formats.agent(many, {}) and "left out: 7 errors" in formats.agent(many, {})


# ---------------------------------------------------------------------------------------------------- a pipe


def test_a_pipe_has_no_colour_and_no_width(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    words = ("check", "agents_model:Stack", "--batch", "agents_model:batch", "--no-prove")
    findings = json.loads(called(*words, "--json")[1])["findings"]
    _, out, err = called(*words)
    assert "\x1b" not in out + err
    lines = [line.strip() for line in out.splitlines()]
    assert findings and all(one["message"] in lines for one in findings)
    assert max(len(one["message"]) for one in findings) > 80  # what a terminal would break
    monkeypatch.setenv("COLUMNS", "40")
    assert not all(one["message"] in called(*words)[1] for one in findings)
