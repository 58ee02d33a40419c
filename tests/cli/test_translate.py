"""`isograd translate`: stdin to stdout."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from isograd import cli
from isograd.lab.cli.translation import windows
from isograd.lab.data.parallel import load_parallel
from isograd.lab.evaluate.translation import Translator
from tests.evaluate.small import LINES, saved
from tests.study.arms import called, refused

INPUT = "".join(f"{line}\n" for line in LINES).encode()


@pytest.fixture(scope="session", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("small"))


@pytest.fixture(name="expected")
def _expected(folder: Path) -> list[str]:
    return [translation.text for translation in Translator.load(folder).translate(LINES)]


@pytest.fixture(name="given")
def _given(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


@contextmanager
def started(folder: Path, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own, for ten minutes at most: a line that is never answered fails and does not hang."""
    command = [sys.executable, "-m", "isograd", "translate", str(folder), "--threads", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process:
        watch = threading.Timer(600, process.kill)
        watch.start()
        yield process
        watch.cancel()


def everything(terminal: int) -> bytes:
    """What was shown in a terminal that its program has left."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as screen, suppress(OSError):
        while part := screen.read(1 << 12):
            shown += part
    return shown


def test_a_line_for_a_line(folder: Path, expected: list[str], given: Any) -> None:
    given(INPUT)
    assert called("translate", str(folder)) == (0, "".join(f"{line}\n" for line in expected), "")
    given(INPUT.replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    assert called("translate", str(folder))[:2] == (0, "".join(f"{line}\n" for line in expected))
    given(b"")
    assert called("translate", str(folder)) == (0, "", "")


def test_options_reach_the_search(folder: Path, given: Any) -> None:
    how: list[dict[str, Any]] = [{"beam": 2}, {"length_penalty": 0.0}, {"tokens": 100}]
    words = ["--beam 2", "--length-penalty 0", "--batch 100"]
    for options, line in zip(how, words, strict=True):
        given(INPUT)
        found = Translator.load(folder).translate(LINES, **options)
        assert called("translate", *line.split(), str(folder))[1].splitlines() == [t.text for t in found]


def test_lines_that_fail(folder: Path, expected: list[str], given: Any) -> None:
    given(b"\xff\n" + INPUT + b"a" * 80)
    code, out, err = called("translate", str(folder))
    assert (code, out.split("\n")) == (1, ["", *expected, "", ""])
    assert err.splitlines() == [
        "isograd translate: line 1: not UTF-8 (byte 0xff)",
        "isograd translate: line 8: 81 tokens, and the model reads 80 at most",
        "isograd translate: 2 of 8 lines could not be translated; they are empty in the output",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "nosuch: no such folder"),
        (["FOLDER", "--beam", "0"], "--beam: expected a whole number of at least 1, got '0'"),
        (["FOLDER", "--length-penalty", "nan"], "--length-penalty: expected a number, got 'nan'"),
        (["FOLDER", "--length-penalty", "2000"], "length_penalty=2000.0 must be from -50 to 50"),
        (["FOLDER", "--precision", "fp8"], "--precision"),
        (["FOLDER", "more"], "unrecognized arguments: more"),
        ([], "MODEL"),
    ],
)
def test_refused(words: list[str], said: str, folder: Path, given: Any) -> None:
    given(INPUT)
    assert said in refused("translate", *(str(folder) if word == "FOLDER" else word for word in words))


def test_a_file_comes_in_full_windows(tmp_path: Path) -> None:
    """However the reads fall, so that a file is searched in the same batches each time."""
    (tmp_path / "in").write_bytes(b"".join(b"%d %s\n" % (i, b"x" * 100) for i in range(2500)))
    with (tmp_path / "in").open("rb") as file:
        assert [len(window) for window in windows(file, 1000)] == [1000, 1000, 500]
    with (tmp_path / "in").open("rb") as file:
        assert (
            b"".join(line + b"\n" for window in windows(file, 7) for line in window) == (tmp_path / "in").read_bytes()
        )


def test_a_pipe_comes_as_it_is_written() -> None:
    """What is there is not kept waiting for more; half a line is."""
    end, begin = os.pipe()
    with os.fdopen(end, "rb") as source, os.fdopen(begin, "wb", buffering=0) as sink:
        found = windows(source, 1000)
        sink.write(b"one\ntwo\nthr")
        assert next(found) == [b"one", b"two"]
        sink.write(b"ee\n\n")
        assert next(found) == [b"three", b""]
        sink.write(b"four")
        sink.close()
        assert list(found) == [[b"four"]]


@pytest.mark.slow
def test_a_line_is_answered_before_the_next_is_written(folder: Path, expected: list[str]) -> None:
    """Until the user has had enough; what is shown in a terminal on the way is not in the output."""
    terminal, stderr = pty.openpty()
    with started(folder, stderr) as process:
        os.close(stderr)
        assert process.stdin and process.stdout
        for line, translation in zip(LINES[:3], expected, strict=False):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{translation}\n"
        process.send_signal(signal.SIGTERM)  # what Ctrl-C does, and heard in a background job, too
        assert process.stdout.read() == b"" and process.wait() == 130
    shown = everything(terminal)
    assert b"loading the model" in shown and shown.endswith(b"interrupted after line 3\r\n")


@pytest.mark.slow
def test_a_reader_that_has_gone(folder: Path) -> None:
    with started(folder) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(INPUT * 50)
        process.stdin.close()
        assert process.stderr.read() == b"" and process.wait() == 0


def test_pairs_for_the_other_direction(folder: Path, expected: list[str], given: Any, tmp_path: Path) -> None:
    """Each line and its translation, tagged; what cannot be translated is left out; load_parallel reads them back."""
    given(INPUT)
    code, out, err = called("translate", str(folder), "--pairs", "--tag", "<BT>")
    rows = [json.loads(line) for line in out.splitlines()]
    kept = [(line, text) for line, text in zip(LINES, expected, strict=True) if text.strip()]
    assert (code, err) == (0, "") and kept
    assert rows == [{"en": f"<BT> {text}", "de": line} for line, text in kept]
    given(INPUT)
    bare = called("translate", str(folder), "--pairs")[1]
    assert bare == out.replace("<BT> ", "")
    given(INPUT + b"\n" + b"a" * 90 + b"\n")
    code, more, err = called("translate", str(folder), "--pairs")
    assert (code, more) == (1, bare) and err.endswith(
        "1 of 8 lines could not be translated; they are left out of the output\n"
    )
    (back := tmp_path / "back.jsonl").write_text(out, encoding="utf-8")
    (tmp_path / "own.en").write_text("one\ntwo\n")
    (tmp_path / "own.de").write_text("eins\nzwei\n")
    own = str(tmp_path / "own")
    corpus = load_parallel(
        [own, own, str(back)], [own], source="en", target="de", vocabulary="char", cache=tmp_path / "c"
    )
    assert corpus.counts["kept"] == 4 + len(kept)  # a source that is named twice is read twice
    source = corpus.tokenizer.source.decode([corpus.train_source[4].tolist()])
    assert source == [f"<BT> {kept[0][1]}"]


def test_what_pairs_contradict(folder: Path) -> None:
    refused("--tag needs --pairs", "translate", str(folder), "--tag", "x")


def test_a_request_to_end_that_was_lost_ends_the_next_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a signal raises while Python runs a finalizer is printed and forgotten."""
    heard = threading.Event()
    monkeypatch.setattr(cli, "_heard", heard)
    there = windows(io.BytesIO(b"ein\nzwei\n"), 1)
    assert next(there) == [b"ein"]
    heard.set()
    assert next(there) == [b"zwei"]  # it has been read already
    with pytest.raises(KeyboardInterrupt):
        next(there)


def test_a_request_to_end_ends_a_wait_that_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose handler has raised nothing by then, as between the last look at it and the wait."""
    heard = threading.Event()
    monkeypatch.setattr(cli, "_heard", heard)
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    end, begin = os.pipe()
    try:
        with os.fdopen(end, "rb") as source, os.fdopen(begin, "wb"):
            asking = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
            asking.start()
            with pytest.raises(KeyboardInterrupt):
                next(windows(source, 1))
            asking.join()
    finally:
        signal.signal(signal.SIGTERM, before)
