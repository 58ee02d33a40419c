"""`isograd translate MODEL < in.txt > out.txt`: a line out for every line in."""

import argparse
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from io import BufferedReader, TextIOWrapper
from typing import TYPE_CHECKING, Any

from rich.console import Console

from isograd.cli.searching import configure_search, load, search_options

if TYPE_CHECKING:
    from isograd.evaluate.translation import Translation

_EPILOG = """\
examples:
  isograd translate runs/number-words < numbers.de > numbers.en
  echo siebenundzwanzig | isograd translate runs/number-words
  isograd translate runs/multi30k --beam 1 --precision bf16 < test.de > test.en

A model of Moses-tokenised text reads and writes such text. A line that cannot be translated leaves an empty line, is
named on stderr, and makes the exit code 1."""

_CHUNK = 1 << 16  # bytes
_GRACE = 0.02  # seconds; whoever writes line by line is answered line by line, and a fast writer fills a window


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("model", help="the folder of a run or of its model, or a model's name on the hub")
    configure_search(parser)
    parser.add_argument("--scores", action="store_true", help="score and tab before each line; empty where none was")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    translator = load(options, console)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", newline="\n")  # as the lines that come in, whatever the locale
    source = sys.stdin.buffer
    if source.isatty():
        console.print("reading lines from the terminal; Ctrl-D ends", highlight=False)
    from isograd.evaluate.translation import WINDOW

    found = translator.translate_windows(windows(source, WINDOW), **search_options(options))
    return _written(found, options.scores, console)


def windows(stream: Any, most: int) -> Iterator[list[bytes]]:
    """Lines as they come: those that are there, at least one, at most so many.

    Of a file the windows are always the same, since all of it is there.
    """
    rest, lines = b"", list[bytes]()
    while chunk := stream.read1(_CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        while len(lines) >= most:
            window, lines = lines[:most], lines[most:]
            yield window
        if lines and not _more(stream):
            yield lines
            lines = []
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _more(stream: BufferedReader) -> bool:
    """Whether the next read has something to give, be it the end, within the grace."""
    try:
        return bool(select.select([stream], [], [], _GRACE)[0])
    except (OSError, ValueError):  # no file of the system's; on Windows, no socket
        return not stream.isatty()


def _written(found: Iterable["Translation"], scores: bool, console: Console) -> int:
    """Print each line as soon as it is found; the exit code."""
    began, lines, failed = time.perf_counter(), 0, 0
    out = sys.stdout  # rich would send it to where the status is shown
    shown = console.is_terminal and not out.isatty()  # in one terminal the two would mix
    try:
        with console.status("") if shown else nullcontext() as status:
            for translation in found:
                lines += 1
                print(_scored(translation) if scores else translation.text, file=out, flush=True)
                if translation.failure:
                    failed += 1
                    said = f"isograd translate: line {translation.line}: {translation.failure}"
                    console.print(said, highlight=False, markup=False, soft_wrap=True)
                if status:
                    status.update(f"{lines:,} lines, {lines / (time.perf_counter() - began):.1f} lines/s")
    except KeyboardInterrupt:
        print(f"interrupted after line {lines}", file=sys.stderr)
        return 130
    if failed:
        said = f"{failed:,} of {lines:,} lines could not be translated; they are empty in the output"
        print(f"isograd translate: {said}", file=sys.stderr)
    return 1 if failed else 0


def _scored(translation: "Translation") -> str:
    score = "" if translation.score is None else f"{translation.score:.6f}"
    return f"{score}\t{translation.text}"
