"""The command line: a verb is a function with types and a docstring, imported when it is called.

Exit codes: 0 done (also where a run collapsed or is undecided), 1 a run failed or a check did not hold, 2 wrong use or
bad input, 3 diverged, 130 interrupted.
"""

import ast
import atexit
import gc
import inspect
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

from isograd.errors import IsogradError, UserError, extra_with, nearest, one_line

VERBS = {  # what is typed -> the file and the function, whose docstring is the help; of the core
    "check": "check.check",
    "conform": "conform.conform",
    "doctor": "doctor.doctor",
    "list": "catalogue.list_placements",
    "show": "catalogue.show",
}
STOREYS = ("isograd", "isograd.convert", "isograd.lab", "isograd.papers")  # each says its own verbs, in its room `cli`


def verbs() -> dict[str, str]:
    """What is typed -> the full name of the function, of every storey; no verb is imported."""
    return {
        verb: f"{storey}.cli.{where}"
        for storey in STOREYS
        for verb, where in import_module(f"{storey}.cli").VERBS.items()
    }


_ABOUT = """\
Level gradients at every depth: placements of the norms in deep Transformers.

{verbs}

'isograd VERB --help' shows the options of a verb. Completion in bash and zsh, with the package argcomplete:
eval "$(register-python-argcomplete isograd)\""""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow in a terminal that has none is no reason to stop
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    if not words or words[0].startswith("-"):
        return _top(words)
    words = _kind_first(words)
    verb = _verb(words)
    if verb is None:
        return _group(words)
    _heard.clear()
    try:
        return _run(verb, words[len(verb.split()) :])
    except (KeyboardInterrupt, Exception) as error:
        if _heard.is_set() or isinstance(error, KeyboardInterrupt):  # a library may have made another error of it
            print("interrupted; start the same command again to go on", file=sys.stderr)
            if argv is None:
                _cut_short.set()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second request ends it without a word
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            return 130
        if isinstance(error, BrokenPipeError):  # the reader (head, a pager) has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if isinstance(error, ModuleNotFoundError) and (extra := extra_with(error.name or "")):
            print(f"isograd {verb}: needs {error.name}: pip install 'isograd[{extra}]'", file=sys.stderr)
            return 2
        if isinstance(error, IsogradError | OSError):
            print(f"isograd {verb}: {one_line(error)}", file=sys.stderr)
            return getattr(error, "exit_code", 2)
        raise


def _run(verb: str, words: Sequence[str]) -> int:
    from isograd.cli.parser import parse

    module, _, function = verbs()[verb].rpartition(".")
    call, options = parse(getattr(import_module(module), function), f"isograd {verb}", words)
    if options.imports:
        sys.path.insert(0, str(Path.cwd()))  # what registers placements, also from the current folder
    for name in options.imports:
        try:
            import_module(name)
        except ImportError as error:
            raise UserError(f"--import {name}: {error}") from error
        except Exception as error:  # whatever a module of the user's does
            raise UserError(f"--import {name}: {type(error).__name__}: {one_line(error)}") from error
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's '&' has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    with ExitStack() as around:
        if options.trust:
            from isograd.hub import trusting

            around.enter_context(trusting())
        code = _quietly(call) if options.quiet else call()
    sys.stdout.flush()
    return code


def _quietly(call: Callable[[], int]) -> int:
    """Without progress, in this call alone."""
    from isograd.cli.console import silence

    silence(True)
    try:
        return call()
    finally:
        silence(False)


def _kind_first(words: list[str]) -> list[str]:
    """`evaluate --import M translation` as `evaluate translation --import M`."""
    end = 1
    while words[end : end + 1] and words[end].startswith("--import"):
        end += 1 if "=" in words[end] else 2
    if " ".join([words[0], *words[end : end + 1]]) not in verbs():
        return words
    return [words[0], *words[end : end + 1], *words[1:end], *words[end + 1 :]]


def _verb(words: Sequence[str]) -> str | None:
    """The verb of a command line, of one word or two."""
    known = verbs()
    return next((verb for verb in (" ".join(words[:2]), words[0]) if verb in known), None)


def _top(words: Sequence[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print("usage: isograd VERB ...\n\n" + _ABOUT.format(verbs=_summaries(verbs())))
        return 0
    if words and words[0] == "--version":
        from isograd import __version__
        from isograd.machine import commit

        known = commit()
        print(f"isograd {__version__}{f' ({known})' if known else ''}")
        return 0
    return _refuse("isograd", f"unrecognized argument {words[0]}" if words else "expected a verb")


def _group(words: Sequence[str]) -> int:
    """A first word of two, such as `evaluate`, or a verb that does not exist."""
    members = {verb: where for verb, where in verbs().items() if verb.split()[0] == words[0]}
    prog = f"isograd {words[0]}" if members else "isograd"
    kinds = sorted(verb.split()[-1] for verb in members) or list(dict.fromkeys(verb.split()[0] for verb in verbs()))
    rest = words[1:] if members else words
    if members and rest and rest[0] in ("-h", "--help"):
        print(f"usage: {prog} {{{','.join(kinds)}}} ...\n\n{_summaries(members)}")
        return 0
    near = nearest(rest[0], kinds) if rest else None
    hint = f"did you mean {near!r}?" if near else "choose one of " + ", ".join(kinds)
    return _refuse(prog, f"{f'no verb {rest[0]!r}; ' if rest else ''}{hint}")


def _refuse(prog: str, said: str) -> int:
    print(f"{prog}: {said} ('{prog} --help' shows all)", file=sys.stderr)
    return 2


def _summaries(found: dict[str, str]) -> str:
    """A line per verb, read from the docstrings without importing what verbs import."""
    lines = []
    for verb, where in found.items():
        module, _, function = where.rpartition(".")
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        defined = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function)
        lines.append(f"  {verb:<24} {inspect.cleandoc(ast.get_docstring(defined) or '').partition(chr(10))[0]}")
    return "\n".join(lines)


def _complete() -> None:
    """Answer the shell, which asks with an environment variable set: all verbs with their options."""
    import argparse

    import argcomplete

    from isograd.cli.parser import documentation, fill

    parser = argparse.ArgumentParser(prog="isograd")
    groups = {"": parser.add_subparsers()}
    for verb, where in verbs().items():
        group, _, name = verb.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group).add_subparsers()
        module, _, function = where.rpartition(".")
        called = getattr(import_module(module), function)
        fill(groups[group].add_parser(name), called, documentation(called)[2])
    argcomplete.autocomplete(parser)


_heard = Event()  # a request to end
_cut_short = Event()  # by such a request, this process


def _interrupt(*_: object) -> NoReturn:
    _heard.set()
    raise KeyboardInterrupt


@atexit.register
def _end() -> None:
    """After all others that are registered; the interpreter would go through all that torch has imported: a second.

    Where the import of a library in C was interrupted, it would even crash on the half of it.
    """
    gc.freeze()
    if _cut_short.is_set():
        with suppress(OSError):  # the reader may have gone
            sys.stdout.flush()
        os._exit(130)


def wait_for_input(stream: Any) -> None:
    """Until a stream has something to read, or has ended.

    Raises:
        KeyboardInterrupt: a request to end came while Python ran a finalizer, which prints and forgets what is raised;
            or between a look at such requests and the wait, which a byte in a pipe ends.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    try:
        before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            _end_if_asked()
            select.select([stream, woken], [], [])
        finally:
            signal.set_wakeup_fd(before)
    except (OSError, ValueError):  # no file of the system's; on Windows, no socket
        pass
    finally:
        os.close(woken)
        os.close(wake)
    _end_if_asked()


def _end_if_asked() -> None:
    if _heard.is_set():
        raise KeyboardInterrupt
