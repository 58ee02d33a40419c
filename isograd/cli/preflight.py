"""`isograd preflight FILE.py:setup`: the step around a model, looked at before the run."""

import os
import warnings
from typing import Annotated, Any, Literal

from isograd.cli.check import must_agree, must_be_known, written
from isograd.cli.console import Result, announce, loading, must_be_writable
from isograd.cli.parser import EACH, File
from isograd.errors import InputsError, ModelError, UserError, one_line
from isograd.hub import must_be_a_model


def preflight(
    setup: str,
    *,
    steps: int | None = None,
    intent: Annotated[list[Annotated[str, "INTENT"]], EACH] | None = None,
    prove: bool = False,
    no_prove: bool = False,
    ignore: Annotated[list[Annotated[str, "CODE"]], EACH] | None = None,
    format: Literal["text", "json", "agent", "github", "sarif"] | None = None,  # noqa: A002  (it is --format)
    json: bool = False,
    sarif: File | None = None,
) -> Annotated[Result, "isograd.lint.step.report:Preflight"]:
    """Look at the whole training step before a run: loss, data, optimizer, schedule, precision, resume, and the model.

    SETUP is package.module:callable or file.py:callable, a function without arguments that returns a Trainer of
    transformers or trl; (LightningModule, Trainer, data); or a dict with model, data and optimizer, and as the run has
    them loss, scheduler, scaler, steps, accumulate, clip, autocast, step, save and load.

    A few batches are taken and a few updates made, and everything is put back.

    examples:
      isograd preflight train.py:setup
      isograd preflight my_training.setup:make --steps 20000
      isograd preflight train.py:setup --format github
      torchrun --nproc-per-node 2 -m isograd preflight train.py:setup       several processes, compared

    Exit code 1 with a finding of severity error, 2 on bad input.

    Args:
        setup: package.module:callable, or file.py:callable
        steps: planned updates, where the setup does not say so
        intent: what the model is meant to do, as in `isograd check`; can be repeated
        prove: try every suspicion about the model, however long it takes
        no_prove: try none
        ignore: a code that is not reported; can be repeated
        format: how findings are written: text; agent, at most 2,000 characters with patches; json; workflow commands
            of GitHub; or SARIF 2.1.0 (default: text)
        sarif: a file that the findings are also written to, as SARIF 2.1.0
    """
    tried = must_agree(json, format, prove, no_prove)
    if steps is not None and steps < 1:
        raise UserError(f"--steps {steps}: expected a number of updates, 1 or more")
    if ":" not in setup:
        example = setup if setup.endswith(".py") else "train.py"
        raise UserError(f"{setup}: expected package.module:callable or file.py:callable, such as {example}:setup")
    must_be_a_model(setup, callables=True)
    must_be_writable(sarif, "--sarif")
    announce(f"loading torch and {setup} ...")
    with loading():
        from isograd.lint.step import report
        from isograd.lint.step.rules import processes
        from isograd.trace.load import load_callable

        must_be_known(report.known, ignore or (), intent or ())
        given = load_callable(setup)()
        processes.join()
        parts: dict[str, Any] = {} if steps is None else {"steps": steps}
        announce("taking batches and a few updates ...")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of the program
                found = report.preflight(
                    given,
                    ignore=ignore or [],
                    prove=tried,
                    intent=intent or (),
                    name=setup,
                    **parts,
                )
        except (InputsError, ModelError) as error:
            raise UserError(f"{setup}: {one_line(error)}") from error
    if int(os.environ.get("RANK", "0")):  # the first process speaks for all
        return Result(code=1 if found.errors else 0)
    return written(found, setup, format, sarif)
