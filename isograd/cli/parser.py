"""A verb's command line from its function: the signature says the options, the docstring is the help.

Positional parameters are arguments, keyword-only ones options (`layers: Count` is --layers N), `*words` any number of
arguments, also after an option (RECIPE --json key=value). A bool is a switch; a list takes one value or more; a list
of lists, or one marked EACH, may be given again; a Literal says its choices. In `Annotated`, a text is how the help
calls the value, a function reads it.

jsonargparse, which reads the recipes, makes parsers of functions as well; it takes neither `--seeds 0 1 2` nor a bare
`--json` nor `*words`, and importing it takes longer than all of `isograd show`.
"""

import argparse
import inspect
import json
import math
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from isograd.errors import nearest

EACH = object()  # marks a list of which every value takes an option of its own: --ignore A --ignore B
REST = "rest"  # the words of a verb's last argument are all that follow, options too
_OUT = "a new folder, or an empty one"  # the help of --out, where a docstring says no more
_JSON = "the result as one JSON object on stdout, and nothing else there"  # of verbs that return a Result
_SCHEMA = "the JSON Schema of what --json prints, and nothing else"  # of the same
_COMMON = (
    ("--import", "imports", "append", "a module to import first, such as one of yours that registers placements"),
    ("--trust-remote-code", "trust", "store_true", "run the code that a checkpoint brings along; read it first"),
    ("--quiet", "quiet", "store_true", "no progress on stderr"),
)


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return number


def _not_empty(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A text or a path; "" is what a shell makes of a variable that is not set, and a path of it the current folder."""

    def read(text: str) -> Any:
        if not text:
            raise argparse.ArgumentTypeError("is empty")
        return kind(text)

    return read


Count = Annotated[int, count, "N"]
Number = Annotated[float, finite, "X"]
Name = Annotated[str, "NAME"]
File = Annotated[Path, "FILE"]
Folder = Annotated[Path, "FOLDER"]
Words = Annotated[str, "key=value"]


class Parser(argparse.ArgumentParser):
    """Wrong use is said in one line, with the option that may have been meant."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} ('{self.prog} --help' shows all)", file=sys.stderr)
        sys.exit(2)

    def unknown(self, words: Iterable[str], options: Iterable[str] = ()) -> NoReturn:
        """`options`: what is known, where a verb has several parsers."""
        options = [*options] or [option for action in self._actions for option in action.option_strings]
        dashed = [word.partition("=")[0] for word in words if word.startswith("-")]
        hints = [f"did you mean {option}?" for word in dashed if (option := nearest(word, options))]
        if dashed and any(action.metavar == "key=value" for action in self._actions):
            hints.append(f"a setting of the recipe has no dashes: {dashed[0].lstrip('-')}=VALUE")
        self.error("; ".join([f"unrecognized arguments: {' '.join(words)}", *hints[:1]]))


class Help(argparse.RawDescriptionHelpFormatter):
    """The epilog as it was written; help texts in lines that do not break at hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def parser_of(function: Callable[..., Any], prog: str) -> Parser:
    """The parser of a verb."""
    summary, body, helps = documentation(function)
    parser = Parser(prog=prog, description=summary, epilog=body, formatter_class=Help, allow_abbrev=False)
    fill(parser, function, helps)
    return parser


def fill(parser: argparse.ArgumentParser, function: Callable[..., Any], helps: dict[str, str]) -> None:
    """Add the arguments of `function`, and those that every verb has."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        options = _options(hints[name]) | {
            "help": helps.get(name, {"out": _OUT, "json": _JSON}.get(name, "")).replace("%", "%%")
        }
        if parameter.kind is parameter.KEYWORD_ONLY:
            required = parameter.default is parameter.empty
            default = {"required": True} if required else {"default": parameter.default}
            flag = name.rstrip("_").replace("_", "-")  # from_ is --from, a word of Python's
            parser.add_argument(f"--{flag}", dest=name, **options, **default)
        else:
            options["metavar"] = options.get("metavar") or name.upper()
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest = REST in getattr(hints[name], "__metadata__", ())
                options |= {"nargs": argparse.REMAINDER if rest else "*", "default": []}
            elif parameter.default is not parameter.empty:
                options |= {"nargs": "?", "default": parameter.default}
            parser.add_argument(name, **options)
    if hints.get("return") is not int:
        if "json" not in parameters:
            parser.add_argument("--json", action="store_true", help=_JSON)
        parser.add_argument("--schema", action=_Schema, function=function, help=_SCHEMA)
    for flag, name, action, text in _COMMON:
        extra: dict[str, Any] = {"metavar": "MODULE", "default": []} if action == "append" else {}
        parser.add_argument(flag, dest=name, action=action, help=text, **extra)


class _Schema(argparse.Action):
    """Prints the schema of a verb's JSON and exits, whatever else is missing, as --help does."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(nargs=0, **options)
        self.function = function

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        _print_schema(parser.prog, [self.function])


def _print_schema(prog: str, functions: Sequence[Callable[..., Any]]) -> NoReturn:
    from isograd.cli.schema import schema

    print(json.dumps(schema(prog.rpartition(" ")[2], functions), indent=2))
    sys.exit(0)


def chosen(functions: Sequence[Callable[..., Any]], prog: str, words: Sequence[str]) -> Callable[..., Any]:
    """Of several functions of a verb, the one that a command line means; --help is that of all of them.

    It has all options that are typed, and those that it needs are there. Of several such: the first whose file's TAKES
    says that it reads the first argument, else the first of which TAKES says nothing.
    """
    if len(functions) == 1:
        return functions[0]
    if "--schema" in words:
        _print_schema(prog, functions)
    parsers = {function: parser_of(function, prog) for function in functions}
    if {"-h", "--help"} & {*words}:
        print("\n\n".join(parser.format_help().rstrip() for parser in parsers.values()))
        sys.exit(0)
    typed = {word.partition("=")[0] for word in words if word.startswith("--")}
    known = {f: parser._option_string_actions.keys() for f, parser in parsers.items()}
    fitting = [f for f in functions if typed <= known[f]]
    if not fitting:
        unknown = sorted(typed.difference(*known.values()))
        if not unknown:
            parsers[functions[0]].error(f"{' '.join(sorted(typed))} do not go together")
        every = {option for options in known.values() for option in options}
        parsers[functions[0]].unknown(unknown, every)
    complete = [f for f in fitting if _needed(parsers[f]) <= typed]
    takes = {f: getattr(sys.modules[f.__module__], "TAKES", {}).get(f.__name__) for f in complete or fitting}
    named = (f for f, reads in takes.items() if reads is not None and reads(_first(parsers[f], words)))
    return next(named, next((f for f, reads in takes.items() if reads is None), fitting[0]))


def _first(parser: Parser, words: Sequence[str]) -> str:
    """The first word that is neither an option nor its value."""
    values = False
    for word in words:
        action = parser._option_string_actions.get(word.partition("=")[0])
        if action is not None:
            values = action.nargs != 0 and "=" not in word
        elif values:
            values = False
        else:
            return word
    return ""


def _needed(parser: Parser) -> set[str]:
    """Options without a default, but for --out, which may be given as an argument."""
    return {a.option_strings[0] for a in parser._actions if a.required and a.option_strings and a.dest != "out"}


def parse(
    function: Callable[..., Any], prog: str, words: Sequence[str]
) -> tuple[Callable[[], Any], argparse.Namespace]:
    """The call that a command line asks for, and its options."""
    parser = parser_of(function, prog)
    parameters = inspect.signature(function).parameters.values()
    options, rest = _read(parser, list(words))
    several = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    if rest and (several is None or any(word.startswith("-") for word in rest)):
        parser.unknown(rest)
    values = vars(options)
    plain = [values[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    read = next((action.type for action in parser._actions if action.dest == several), None)
    try:
        more = [*values[several], *(read(word) if callable(read) else word for word in rest)] if several else []
    except argparse.ArgumentTypeError as error:
        parser.error(f"an argument {error}")
    named = {p.name: values[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    return lambda: function(*plain, *more, **named), options


def _read(parser: Parser, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What is known of a command line, and the rest. `MODEL OUT` is `MODEL --out OUT` where a verb must have one."""
    out = next((action for action in parser._actions if action.dest == "out" and action.required), None)
    named = any(word.partition("=")[0] in ("--out", "-h", "--help") for word in words)
    if out is None or named:
        return parser.parse_known_args(words)
    out.required = False
    _, rest = parser.parse_known_args(words)
    if not rest or rest[0].startswith("-"):
        parser.unknown(rest) if rest else parser.error("the following arguments are required: --out")
    return parser.parse_known_args(["--out", rest[0], *_without(words, rest[0])])


def _without(words: list[str], word: str) -> list[str]:
    """Without its last occurrence."""
    at = len(words) - 1 - words[::-1].index(word)
    return [*words[:at], *words[at + 1 :]]


def documentation(function: Callable[..., Any]) -> tuple[str, str, dict[str, str]]:
    """The summary, what follows it, and the help of each argument.

    >>> def verb(*, layers: int) -> int:
    ...     '''Train.
    ...
    ...     examples:
    ...       isograd verb
    ...
    ...     Args:
    ...         layers: how many,
    ...             in all
    ...     '''
    >>> documentation(verb)
    ('Train.', 'examples:\\n  isograd verb', {'layers': 'how many, in all'})
    """
    text, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    summary, _, body = text.partition("\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", arguments, re.MULTILINE)
    return summary, body.strip("\n"), {name: " ".join(said.split()) for name, said in found}


def _options(hint: Any) -> dict[str, Any]:
    """A type as `add_argument` says it."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(one for one in get_args(hint) if one is not type(None))
    extras: list[Any] = []
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        extras += more
    called = next((extra for extra in reversed(extras) if isinstance(extra, str | tuple) and extra != REST), None)
    names = {"metavar": called} if called else {}
    if hint is bool:
        return {"action": "store_true"}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is list:
        inner = _options(get_args(hint)[0]) | names
        if EACH in extras or "nargs" in inner:
            return inner | {"action": "append"}
        return inner | {"nargs": "+"}
    read = next((extra for extra in extras if callable(extra)), _not_empty(hint) if hint in (str, Path) else hint)
    return {"type": read, "metavar": {int: "N", float: "X", Path: "FILE"}.get(hint)} | names
