"""`isograd check MODEL`: finds wiring and initialization bugs in Transformers."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from isograd.cli.console import Result, announce, is_endless, loading, must_be_writable, output, print_json, print_table
from isograd.cli.parser import EACH, File
from isograd.errors import InputsError, IsogradError, ModelError, UserError, one_line, refusing
from isograd.files import explanation, page_of, write_json
from isograd.hub import must_be_a_model

if TYPE_CHECKING:
    from isograd.cli.formats import SourcePlace
    from isograd.lint import Finding, Findings

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def check(
    model: str,
    *,
    batch: Annotated[str, "MODULE:CALLABLE"] | None = None,
    optimizer: Annotated[str, "MODULE:CALLABLE"] | None = None,
    lr: float | None = None,
    warmup: int | None = None,
    loss: Annotated[str, "MODULE:CALLABLE"] | None = None,
    intent: Annotated[list[Annotated[str, "INTENT"]], EACH] | None = None,
    prove: bool = False,
    no_prove: bool = False,
    diff: bool = False,
    ignore: Annotated[list[Annotated[str, "CODE"]], EACH] | None = None,
    format: Literal["text", "json", "agent", "github", "sarif"] | None = None,  # noqa: A002  (it is --format)
    json: bool = False,
    sarif: File | None = None,
) -> Annotated[Result, "isograd.lint.findings:Findings"]:
    """Find wiring and initialization bugs in a Transformer.

    MODEL is a folder with a checkpoint (or with a config.json only: a model at initialization), a hub id, or
    package.module:callable or file.py:callable, a function without arguments that returns an nn.Module (found from the
    working directory too).

    examples:
      isograd check gpt2
      isograd check runs/my-run/model
      isograd check model.py:build
      isograd check my_model:build --batch my_model:batch --lr 1e-3 --warmup 0
      isograd check my_model:build --optimizer my_training:setup
      isograd check my_model:build --json --ignore frozen
      isograd check my_model:build --format github           in a workflow: findings beside the lines of the model
      isograd check my_model:build --format github --sarif isograd.sarif

    Facts are measured. Suspicions are tried: both versions are trained side by side for 40 steps, in three seeds.

    Exit code 1 with a finding of severity error, 2 on bad input.

    Args:
        model: a folder, a hub id, package.module:callable, or file.py:callable
        batch: returns what forward takes, where it cannot be guessed
        optimizer: returns (model, optimizer); that model is checked, and what the optimizer holds, its rates, its decay
        lr: the peak learning rate you plan to use; reports whether a Post-LN stack tolerates it
        warmup: the warm-up steps you plan to use (default: none)
        loss: takes the output and the batch; what suspicions are tried on (default: the model's own, or a small task)
        intent: causal, bidirectional, batch-first, time-first, ordered, set, shared, own-layers, logits or
            probabilities, where the code does not say so; can be repeated
        prove: try every suspicion, however long it takes (default: for eight seconds of processor time)
        no_prove: try none: suspicions are warnings
        diff: print the changes of source lines that are known as text, as a unified diff, and nothing else
        ignore: a code that is not reported; can be repeated
        format: how findings are written: text; agent, at most 2,000 characters with patches; json; workflow commands
            of GitHub; or SARIF 2.1.0 (default: text)
        sarif: a file that the findings are also written to, as SARIF 2.1.0
    """
    tried = must_agree(json, format, prove, no_prove)
    if lr is not None and not 0 < lr < float("inf"):
        raise UserError(f"--lr {lr:g}: expected a number above 0")
    if warmup is not None and warmup < 0:
        raise UserError(f"--warmup {warmup}: expected a number of steps, 0 or more")
    must_be_writable(sarif, "--sarif")
    if not optimizer:
        must_be_a_model(model, callables=True)
    announce(f"loading torch and {optimizer or model} ...")
    with loading():
        from isograd.lint.check import known_codes

        must_be_known(known_codes, ignore or (), intent or ())
        options: dict[str, Any] = {"lr": lr, "warmup": warmup, "intent": tuple(intent or ()), "prove": tried}
        findings = _findings(model, batch, optimizer, loss, options | {"ignore": ignore or []})
    return written(findings, optimizer or model, "diff" if diff else format, sarif)


def must_agree(json: bool, how: str | None, prove: bool, no_prove: bool) -> bool | None:
    """Whether suspicions are tried, None: those that take little time; refuses options that contradict each other."""
    if json and how not in (None, "json"):
        raise UserError(f"--json and --format {how}: give one of them")
    if prove and no_prove:
        raise UserError("--prove and --no-prove: give one of them")
    return prove or (False if no_prove else None)


def must_be_known(codes: Callable[[Sequence[str]], object], ignore: Sequence[str], intent: Sequence[str]) -> None:
    """Refuse codes and intents that are none."""
    from isograd.lint.intent import Intents

    for option, known, words in (("--ignore", codes, ignore), ("--intent", Intents.given, intent)):
        try:
            with refusing(ValueError):
                known(words)
        except UserError as error:
            raise UserError(f"{option}: {error}") from error


class Explained(TypedDict):
    """A code of `isograd check` or `isograd preflight`.

    Attributes:
        explain: what it means, how it is measured, why it matters, what to do.
        file: the whole page, with an example.
    """

    code: str
    explain: str
    file: str


def _is_code(name: str) -> bool:
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name) or Path(name).exists():
        return False
    return page_of(name) is not None


TAKES = {"explain_code": _is_code}


def explain_code(code: str) -> Annotated[Result, Explained]:
    """Explain a code of check or preflight: what it means, how it is measured, what to do.

    examples:
      isograd explain init-large

    Args:
        code: such as init-large
    """
    said, page = explanation(code), page_of(code)
    return Result(
        {"code": code, "explain": said, "file": str(page)}, lambda: print(f"{code}\n\n{said}\n\nexample: {page}")
    )


def written(findings: "Findings", made_by: str, how: str | None, sarif: Path | None) -> Result:
    """Findings in one of the formats, and into a file of SARIF too; exit code 1 with an error.

    Args:
        made_by: what was named on the command line, for the line of findings without one of their own.
        how: text, agent, json, github, sarif or diff.
    """
    if sarif is not None:
        write_json(sarif, _sarif(findings, made_by))
    shown: dict[str | None, Callable[[], None]] = {
        "diff": lambda: print(_diff(findings), end=""),
        "json": lambda: print_json(findings.as_dict()),
        "sarif": lambda: print_json(_sarif(findings, made_by)),
        "github": lambda: _print_commands(findings, made_by),
        "agent": lambda: _print_short(findings, made_by),
    }
    return Result(findings.as_dict(), shown.get(how, lambda: _print(findings)), code=1 if findings.errors else 0)


def _sarif(findings: "Findings", made_by: str) -> dict[str, Any]:
    from isograd import __version__
    from isograd.cli import formats

    return formats.sarif(findings, _places(findings, made_by), __version__)


def _diff(findings: "Findings") -> str:
    from isograd.cli.diff import diff

    return diff(findings, Path.cwd())


def _print_commands(findings: "Findings", made_by: str) -> None:
    from isograd.cli import formats

    if commands := formats.github(findings, _places(findings, made_by)):
        print(commands)
    print(_summary(findings))


def _print_short(findings: "Findings", made_by: str) -> None:
    from isograd.cli import formats

    print(formats.agent(findings, _places(findings, made_by)))


def _places(findings: "Findings", made_by: str) -> "dict[Finding, SourcePlace]":
    from isograd.cli.formats import places
    from isograd.trace.load import maker_of

    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()  # paths are relative to the repository
    root = workspace if Path.cwd().is_relative_to(workspace) else Path.cwd()
    return places(findings, maker_of(made_by), root)


def _findings(
    model: str, batch: str | None, optimizer: str | None, loss: str | None, options: dict[str, Any]
) -> "Findings":
    from isograd.lint import check
    from isograd.trace.inputs import as_inputs
    from isograd.trace.load import load_callable, load_function, load_part
    from isograd.trace.record import LARGE

    with foreign_model(model, batch):
        if optimizer:
            (network, holding), left_out = _trained(optimizer), ""
        else:
            (network, left_out), holding = load_part(model, 10 * LARGE), None
        announce(f"recording one forward and backward pass of {type(network).__name__} ...")
        inputs = as_inputs(load_callable(batch)()) if batch else None
        trial = load_function(loss) if loss else None
        findings = check(network, inputs, optimizer=holding, loss=trial, name=model, **options)
        return replace(findings, missed=(*filter(None, [left_out]), *findings.missed))


@contextmanager
def foreign_model(model: str, batch: str | None) -> Iterator[None]:
    """Its code may warn and raise what it likes: no warning is shown, and an error is one line that names it.

    Args:
        batch: what its inputs come from; None: they are guessed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except InputsError as error:
        raise UserError(f"{batch or model}: {one_line(error)}") from error
    except IsogradError:
        raise
    except Exception as error:
        what = f"it does not run on {batch or 'the inputs guessed for it'}"
        raise UserError(f"{model}: {what}: {type(error).__name__}: {one_line(error)}") from error


def _trained(text: str) -> tuple[Any, Any]:
    """The model and the optimizer that a callable returns.

    Raises:
        ModelError: it returns something else.
    """
    from torch import nn
    from torch.optim import Optimizer

    from isograd.trace.load import load_callable

    pair = load_callable(text)()
    kinds = (nn.Module, Optimizer)
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(isinstance, pair, kinds)):
        raise ModelError(f"{text} returned {type(pair).__name__}; expected (model, optimizer)")
    return pair[0], pair[1]


def _print(findings: "Findings") -> None:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from isograd.lint.findings import cures

    console = output()
    console.print(Text(findings.model, style="bold"))
    if said := {name: line for name, line in getattr(findings, "groups", {}).items() if line}:  # of preflight
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        for name, line in said.items():
            grid.add_row(name, Text(line))
        console.print(grid)
    if findings.placements:
        rows = [[escape(cell) for cell in group] for group in _groups(findings)]
        print_table(["sublayers", "placement", "formula"], rows, left=3)
    if findings.scheme:
        console.print(Text(f"initialized as {findings.scheme}"))
    for finding in findings:
        console.print()
        head = Text.assemble((finding.severity, _STYLES[finding.severity]), f" {finding.code}  ", finding.address)
        console.print(head)
        for line in finding.source.shown(Path.cwd()) if finding.source else ():
            console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
        for line in (finding.message, *([finding.proof.says] if finding.proof else []), *cures(finding.remedy)):
            console.print(Text(f"  {line}"), soft_wrap=is_endless() or line.startswith("   "))  # code is not wrapped
        console.print(Text(f"  {_where(finding)}", style="dim"), soft_wrap=True)
    for line in findings.missed:
        print(f"could not look at {line}", file=sys.stderr)
    console.print()
    console.print(Text(_summary(findings)))


def _groups(findings: "Findings") -> list[tuple[str, str, str]]:
    """Sublayers whose address differs by numbers only, of one placement, as one line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for address, placement in findings.placements.items():
        pattern = re.sub(r"\d+", "*", address)
        groups.setdefault((pattern, placement, findings.formulas[address]), []).append(address)
    return [
        (f"{pattern}  ({len(found)})" if len(found) > 1 else found[0], placement, formula)
        for (pattern, placement, formula), found in groups.items()
    ]


def _where(finding: "Finding") -> str:
    """The page of a finding, as a path from here."""
    there = page_of(finding.code)
    if there is None:
        return f"{finding.page} of isograd's repository"
    return finding.page if there.parents[2] == Path.cwd() else str(there)


def _summary(findings: "Findings") -> str:
    counts = {s: sum(f.severity == s for f in findings) for s in ("error", "warning", "info")}
    said = [f"{n} {name}{'s' if n > 1 and name != 'info' else ''}" for name, n in counts.items() if n]
    return f"{len(findings.placements)} sublayers: " + (", ".join(said) if said else "nothing found")
