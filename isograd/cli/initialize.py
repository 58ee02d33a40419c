"""`isograd init MODEL`: a model initialized anew by a named scheme."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from isograd.cli.console import loading, print_json, print_lines, print_path, print_table
from isograd.cli.parser import Folder
from isograd.errors import InputsError, ModelError, RecipeError, UserError, hint, one_line
from isograd.files import refuse_existing
from isograd.placement.schemes import SCHEMES

if TYPE_CHECKING:
    from isograd.interop.initialize import Initialized


def init(
    model: str,
    *,
    out: Folder,
    scheme: Annotated[str, "SCHEME"],
    seed: int = 0,
    batch: Annotated[str, "MODULE:CALLABLE"] | None = None,
    json: bool = False,
) -> int:
    """Initialize any model anew by a named scheme.

    MODEL is what 'isograd check' takes. Roles are found by tracing the model, a fused W_QKV part by part. Schemes:
    gpt2, normal, small-init-wang, small-init, xavier, deepnorm, t-fixup, completep.

    examples:
      isograd init gpt2 --out fresh --scheme small-init-wang
      isograd init my_model:build --out fresh --scheme gpt2 --seed 1

    Args:
        model: a folder, a hub id, or package.module:callable
        out: a new folder: a checkpoint of the same class; of package.module:callable the weights, model.safetensors
        scheme: such as gpt2; 'isograd check' names it afterwards
        seed: the same weights each time, default 0
        batch: returns what forward takes, where it cannot be guessed
        json: one JSON object on stdout
    """
    if scheme not in SCHEMES:
        raise RecipeError(f"--scheme {scheme}: {hint(scheme, SCHEMES)}")
    refuse_existing(out)  # before a model is loaded
    with loading():
        from isograd.interop.initialize import rows_of

        made, findings, name = _drawn(model, scheme, seed, batch, out)
    if json:
        drawn = [vars(one) for one in made.drawn]
        codes = sorted(findings)
        print_json(
            {"scheme": scheme, "drawn": drawn, "kept": made.kept, "check": name, "findings": codes, "out": str(out)}
        )
        return 0
    print_table(["role", "matrices", "std"], [[escape(cell) for cell in row] for row in rows_of(made)])
    if made.kept:
        print_lines(f"as they were: {', '.join(made.kept[:5])}{' and others' if len(made.kept) > 5 else ''}")
    print_lines(f"check: {name or 'no scheme recognized'}; {', '.join(sorted(findings)) or 'no findings'}")
    print_path(f"model: {out}")
    return 0


def _drawn(text: str, scheme: str, seed: int, batch: str | None, out: Path) -> tuple["Initialized", set[str], str]:
    """What was drawn, and what the linter says of it; written when both are known."""
    from isograd.interop.initialize import initialize, write
    from isograd.lint import check
    from isograd.trace.inputs import as_inputs
    from isograd.trace.load import load_callable, load_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the model, run on inputs that were guessed
        network = load_model(text)
        try:
            inputs = as_inputs(load_callable(batch)()) if batch else None
            made = initialize(network, scheme, seed=seed, batch=inputs)
            findings = check(network, inputs)
        except (ModelError, RecipeError):
            raise
        except InputsError as error:
            raise UserError(f"{batch or text}: {one_line(error)}") from error
        except Exception as error:  # a user's code raises what it likes
            what = f"it does not run on {batch or 'the inputs guessed for it'}"
            raise UserError(f"{text}: {what}: {type(error).__name__}: {one_line(error)}") from error
        write(network, out, text)
    return made, findings.codes, findings.scheme
