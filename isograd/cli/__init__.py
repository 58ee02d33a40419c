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
from typing import TYPE_CHECKING, Any, NoReturn

from isograd.errors import IsogradError, UserError, extra_with, nearest, one_line

if TYPE_CHECKING:
    from isograd.cli.console import Result

# What is typed -> file and functions, whose docstrings are the help; of the core. Of several functions of a verb
# `parser.chosen` takes one by what is typed.
VERBS = {
    "check": "check.check",
    "explain": "check.explain_code",
    "preflight": "preflight.preflight",
    "watch": "watch.watch",
    "show": "catalogue.show",
    "conform": "conform.conform",
    "doctor": "doctor.doctor",
    "skill": "skill.skill",
}
FIRST = ("check", "preflight", "watch", "explain", "compare", "train", "report")  # what most people come for
STOREYS = ("isograd", "isograd.convert", "isograd.lab", "isograd.papers")  # each says its own verbs, in its room `cli`


def verbs() -> dict[str, list[str]]:
    """What is typed -> the full names of its functions, of every storey; no verb is imported."""
    found: dict[str, list[str]] = {}
    for storey in STOREYS:
        for verb, places in import_module(f"{storey}.cli").VERBS.items():
            found.setdefault(verb, []).extend(f"{storey}.cli.{where}" for where in places.split())
    return found


def _typed(where: str) -> str:
    """What is typed for a function, as its file's first line has it."""
    return (import_module(where.rpartition(".")[0]).__doc__ or "").split("`")[1]


def functions(verb: str) -> "list[Callable[..., int | Result]]":
    """Those of a verb, imported."""
    return [getattr(import_module(where.rpartition(".")[0]), where.rpartition(".")[2]) for where in verbs()[verb]]


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
    verb, known = words[0], verbs()
    if verb not in known:
        near = next((_typed(w) for places in known.values() for w in places if w.endswith(f".{verb}")), None)
        near = near or nearest(verb, known)
        hint = f"did you mean {near!r}?" if near else f"choose one of {', '.join(known)}"
        return _refuse("isograd", f"no verb {verb!r}; {hint}")
    _heard.clear()
    try:
        return _run(verb, words[1:])
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
    from isograd.cli.parser import chosen, parse

    call, options = parse(chosen(functions(verb), f"isograd {verb}", words), f"isograd {verb}", words)
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
        result = _quietly(call) if options.quiet else call()
        code = result if isinstance(result, int) else result.write(verb, options.json)
    sys.stdout.flush()
    return code


def _quietly(call: "Callable[[], int | Result]") -> "int | Result":
    """Without progress, in this call alone."""
    from isograd.cli.console import silence

    silence(True)
    try:
        return call()
    finally:
        silence(False)


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


def _refuse(prog: str, said: str) -> int:
    print(f"{prog}: {said} ('{prog} --help' shows all)", file=sys.stderr)
    return 2


def _summaries(known: dict[str, list[str]]) -> str:
    """A line per function, read from the docstrings without importing what verbs import; what most come for first."""
    first = [verb for verb in FIRST if verb in known]
    lines = []
    for verb in [*first, *(verb for verb in known if verb not in first)]:
        said = [_summary(where) for where in known[verb]]
        lines += [f"  {verb:<10} {said[0]}", *(f"  {'':<10} {line}" for line in said[1:])]
        lines += [""] if first and verb == first[-1] else []
    return "\n".join(lines)


def _summary(where: str) -> str:
    module, _, function = where.rpartition(".")
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    defined = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function)
    return inspect.cleandoc(ast.get_docstring(defined) or "").partition("\n")[0]


def _complete() -> None:
    """Answer the shell, which asks with an environment variable set: all verbs with their options."""
    import argparse

    import argcomplete

    from isograd.cli.parser import documentation, fill

    parser = argparse.ArgumentParser(prog="isograd", conflict_handler="resolve")
    group = parser.add_subparsers()
    for verb in verbs():
        words = group.add_parser(verb, conflict_handler="resolve")
        for function in functions(verb):
            fill(words, function, documentation(function)[2])
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
