"""Verbs that write a changed model: `graft` its structure, `init` its weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.markup import escape

from isograd.cli.check import foreign_model
from isograd.cli.console import Result, loading, print_lines, print_path, print_table
from isograd.cli.parser import EACH, Count, File, Folder, Number
from isograd.convert.cli.export import Parity, Written, differs
from isograd.errors import RecipeError, hint, refusing
from isograd.files import read_json, refuse_existing
from isograd.hub import must_be_a_model
from isograd.placement.schemes import SCHEMES

if TYPE_CHECKING:
    from isograd.convert.initialize import Initialized

Changes = Annotated[list[Annotated[str, "NAME=VALUE"]], EACH]


class GraftStep(TypedDict):
    """One change.

    Attributes:
        parity: whether the function is what it was; null of a measured change.
        losses: on held-out text before and after a measured one, nats per token.
        found: what was measured on the way, a row per layer.
        warnings: of the watch, while a model was trained on.
    """

    change: str
    said: str
    parity: bool | None
    losses: tuple[float, float] | None
    found: list[dict[str, Any]]
    warnings: list[dict[str, Any]]


class Grafted(TypedDict("_Class", {"class": str})):
    """The changed model, step by step; `parity` is the report where all changes are exact."""

    model: str
    exact: bool
    steps: list[GraftStep]
    parity: Parity | None


class Initialization(TypedDict):
    """What was drawn anew, by role; what stayed; the scheme and the codes that `isograd check` then reports."""

    scheme: str
    drawn: list[Annotated[Any, "isograd.convert.initialize:Drawn"]]
    kept: list[str]
    check: str
    findings: list[str]
    out: str


def graft(
    model: str,
    *,
    out: Folder,
    change: Changes,
    insert: Literal["even", "top", "bottom"] = "even",
    new: Literal["copy", "init", "gate"] = "copy",
    drop: Literal["loss", "angle", "merge"] = "loss",
    data: File | None = None,
    heal: Count | None = None,
    rate: Number = 1e-4,
) -> Annotated[Result, Grafted, Written]:
    """Change a model's structure: layers, heads, norms, streams; exact with a parity report, or measured.

    --change  layers=N             more, which write 0 at first (exact); or fewer, by their use (measured)
              kv-heads=N           more, by repeating them (exact); or fewer, the means of neighbours (measured)
              vocabulary=N         more rows, the mean of the old ones: no old logit moves (exact)
              norm-weights=folded  weights and biases of norms into the projections after them (exact)
              norm=rmsnorm|dyt     LayerNorm to RMSNorm by centring (exact, ours); any norm to DyT (measured, ours)
              scale=layerscale     a trained vector on every branch, at what the constant was (exact, ours)
              streams=N            Pre-LN to hyper-connections with N copies of the stream (exact, ours)
              placement=sandwich|peri-ln|pre-ln
                                   norms on what branches write; pre-ln: from Post-LN (measured, ours)
              qk-norm=removed      norms on queries and keys become constants in W_Q, W_K (measured, ours)
    ours: isograd's own class, where the model's cannot say it

    examples:
      isograd graft gpt2 --out gpt2-24 --change layers=24
      isograd graft my-llama --out deeper --change layers=48 --insert top --new init
      isograd graft my-llama --out less --change layers=12 --change kv-heads=2 --data train.txt --heal 500

    Any causal or masked model of transformers: its layers, what writes to the residual stream and its norms are found
    by computation. The result is of the same class where that can say it, else of isograd's own. Of a measured change
    the loss before and after is reported. Exit code 1 where an exact change does not leave the function as it is
    (nothing is written then), 2 for a change that the model cannot take.

    Args:
        model: the folder of a model or of a run, or a name on the hub
        change: what to change, listed below; can be repeated, in order
        insert: where new layers go (default: even, between the old ones)
        new: copies of the layer before (default), layers as the class draws them, or copies with a gate at 0 (ours)
        drop: which go: those without which the loss is lowest (default), the neighbours over which the stream turns
            least, or these merged into the layer before
        data: text of measured changes (default: the text that every Python carries)
        heal: steps of training after the changes, watched
        rate: learning rate of these steps (default: 1e-4)
    """
    refuse_existing(out)  # before anything is loaded
    must_be_a_model(model, callables=True)
    with loading("grafting") as show:
        from safetensors import SafetensorError

        from isograd.convert.graft import graft_folder
        from isograd.convert.parity import ParityError

        how: dict[str, Any] = {"insert": insert, "new": new, "drop": drop, "documents": _documents(data)}
        try:
            with refusing(ValueError, RuntimeError, SafetensorError):
                made = graft_folder(model, out, *change, heal=heal or 0, rate=rate, progress=show, **how)
        except ParityError as error:
            return differs(error.report, {"model": None})
    proof = read_json(out / "parity.json") if made.exact else None
    content = {"model": str(out)} | made.as_dict() | {"parity": proof}
    return Result(content, lambda: print(made, f"model: {out}", sep="\n"))


def _documents(data: Path | None) -> Iterator[str]:
    from isograd.text import EMBEDDED, read

    for _, text in read(EMBEDDED if data is None else str(data)):
        yield text


def init(
    model: str,
    *,
    out: Folder,
    scheme: Annotated[str, "SCHEME"],
    seed: int = 0,
    batch: Annotated[str, "MODULE:CALLABLE"] | None = None,
) -> Annotated[Result, Initialization]:
    """Initialize any model anew by a named scheme.

    MODEL is what 'isograd check' takes. Roles are found by tracing the model, a fused W_QKV part by part. Schemes:
    gpt2, normal, small-init-wang, small-init, xavier, deepnorm, t-fixup, completep.

    examples:
      isograd init gpt2 --out fresh --scheme small-init-wang
      isograd init my_model:build --out fresh --scheme gpt2 --seed 1

    Args:
        model: a folder, a hub id, package.module:callable, or file.py:callable
        out: a new folder: a checkpoint of the same class; of package.module:callable the weights, model.safetensors
        scheme: such as gpt2; 'isograd check' names it afterwards
        seed: the same weights each time, default 0
        batch: returns what forward takes, where it cannot be guessed
    """
    if scheme not in SCHEMES:
        raise RecipeError(f"--scheme {scheme}: {hint(scheme, SCHEMES)}")
    refuse_existing(out)  # before a model is loaded
    must_be_a_model(model, callables=True)
    with loading():
        from isograd.convert.initialize import rows_of

        made, findings, name = _drawn(model, scheme, seed, batch, out)
    content = {"scheme": scheme, "drawn": [vars(one) for one in made.drawn], "kept": made.kept}
    content |= {"check": name, "findings": sorted(findings), "out": str(out)}

    def show() -> None:
        print_table(["role", "matrices", "std"], [[escape(cell) for cell in row] for row in rows_of(made)])
        if made.kept:
            print_lines(f"as they were: {', '.join(made.kept[:5])}{' and others' if len(made.kept) > 5 else ''}")
        print_lines(f"check: {name or 'no scheme recognized'}; {', '.join(sorted(findings)) or 'no findings'}")
        print_path(f"model: {out}")

    return Result(content, show)


def _drawn(text: str, scheme: str, seed: int, batch: str | None, out: Path) -> tuple["Initialized", set[str], str]:
    """What was drawn, and what the linter says of it; written when both are known."""
    from isograd.convert.initialize import initialize, write
    from isograd.lint import check
    from isograd.trace.inputs import as_inputs
    from isograd.trace.load import load_callable, load_model

    with foreign_model(text, batch):
        network = load_model(text)
        inputs = as_inputs(load_callable(batch)()) if batch else None
        made = initialize(network, scheme, seed=seed, batch=inputs)
        findings = check(network, inputs)
        write(network, out, text)
    return made, findings.codes, findings.scheme
