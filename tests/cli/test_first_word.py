"""Help, lists and refusals that need only what was typed import neither torch nor transformers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from benchmarks.first_word import commands, offline, write_files
from isograd import hub
from isograd.cli import verbs
from isograd.errors import ModelError

HEAVY = (
    "torch",
    "transformers",
    "scipy",
    "matplotlib",
    "datasets",
    "huggingface_hub.hf_api",
)  # its constants are light
SCRIPT = """
import contextlib, io, json, sys
from isograd.cli import main

for words in json.loads(sys.argv[1]):
    before = set(sys.modules)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code
    loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
    print(json.dumps({"code": code or 0, "loaded": loaded, "said": said.getvalue()}), flush=True)
"""


def answers(every: list[list[str]], folder: Path) -> list[dict[str, object]]:
    """Exit code, words, and what has been imported so far, of commands one after another in one fresh process."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(every), json.dumps(HEAVY)],
        cwd=folder,
        env=offline() | {"PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parents[2]]))},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_first_words_load_nothing(tmp_path: Path) -> None:
    write_files(tmp_path)
    every = list(commands())
    found = answers([[one.verb, *one.words] for one in every], tmp_path)
    assert len(found) == len(every)
    for command, answer in zip(every, found, strict=True):
        assert answer["code"] == (2 if command.wrong else 0), (command.line, answer)
        assert answer["loaded"] == [], command.line
        if command.wrong:
            said = str(answer["said"])
            assert said.startswith(f"isograd {command.verb}: ") and said.count("\n") == 1, (command.line, said)
            assert command.wrong != "hub name" or "huggingface.co cannot be reached" in said, (command.line, said)


def test_every_verb_is_asked() -> None:
    assert {one.verb for one in commands() if one.words == ("--help",)} == set(verbs())
    asked = {one.verb for one in commands() if one.words != ("--help",)}
    assert set(verbs()) - asked == {"doctor"}  # which loads what it gives the versions of


def test_what_is_loaded_is_seen(tmp_path: Path) -> None:
    """The negative control."""
    (answer,) = answers([["report", str(tmp_path)]], tmp_path)
    assert answer["code"] == 2 and answer["loaded"] == ["matplotlib"]


def test_a_callable_that_needs_arguments_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("import torch\nclass Deep(torch.nn.Module):\n    def __init__(self, n): ...\n")
    for verb in ("check", "explain"):
        for model in ("deep.py:Deep", "deep:Deep", f"{tmp_path}/deep.py:Deep"):
            (answer,) = answers([[verb, model]], tmp_path)
            assert answer["code"] == 2 and answer["loaded"] == [], answer
            assert f"{model} needs arguments (n): add `def build(): return Deep(n=...)`" in str(answer["said"])


@pytest.mark.parametrize(
    "text",
    [
        "def build(n=1, *rest, **more): ...\n",
        "class build:\n    def __init__(self, *, n=1): ...\n",
        "class build(Other): ...\n",  # what it inherits is not known
        "@filled\ndef build(n): ...\n",
        "def build(n): ...\nbuild = partial(build, 3)\n",
        "if True:\n    def build(n): ...\n",
        "from somewhere import build\n",
        "this is no Python",
    ],
)
def test_what_may_be_called_without_arguments_is_left_to_the_call(text: str, tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(text)
    hub.must_be_a_model(f"{tmp_path}/deep.py:build", callables=True)


def test_a_name_in_the_cache_is_let_through_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set, and no copy is in the cache"):
        hub.must_be_a_model("some/model")
    (tmp_path / "models--some--model").mkdir()
    hub.must_be_a_model("some/model")
    assert hub.absent("some/model", "dataset")


def test_a_proxy_is_asked_in_place_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that listens is reached, one that nobody listens on is not."""
    import socket

    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert hub.reachable(f"127.0.0.1:{port}")
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        assert hub.reachable("nowhere.invalid")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
    hub.reachable.cache_clear()
    assert not hub.reachable("nowhere.invalid")
