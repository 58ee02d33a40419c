"""What looks at the cases: `look(case, faulty)` gives what a tool reports at the level at which it warns."""

import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch.autograd.gradcheck import GradcheckError
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from . import loops
from .cases import SHOWS, Case, source

Look = Callable[[Case, bool], list[str]]


@dataclass(frozen=True)
class Tool:
    """`looks_at` is what of `shows` it can look at; `look` raises CannotLookError where a case has nothing for it."""

    package: str
    looks_at: frozenset[str]
    look: Look

    def version(self) -> str:
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            raise SystemExit(f'{self.package} is not installed; a tool of no package says package="torch"') from None


TOOLS: dict[str, Tool] = {}


def tool(name: str, looks_at: str = " ".join(SHOWS), package: str = "") -> Callable[[Look], Look]:
    def entered(look: Look) -> Look:
        TOOLS[name] = Tool(package or name, frozenset(looks_at.split()), look)
        return look

    return entered


def in_loop(name: str, package: str = "", after: bool = False) -> Callable[[loops.Begin], loops.Begin]:
    """A tool that is put into a training loop."""

    def entered(begin: loops.Begin) -> loops.Begin:
        def look(case: Case, faulty: bool) -> list[str]:
            return loops.through(case.module(), faulty, begin, after)

        tool(name, package=package)(look)
        return begin

    return entered


def linter(name: str) -> Callable[[Callable[[Path], list[str]]], Any]:
    """A tool that reads source text: it gets that of one twin, without the choice between them."""

    def entered(lint: Callable[[Path], list[str]]) -> Any:
        def look(case: Case, faulty: bool) -> list[str]:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "train.py")
                path.write_text(source(case, faulty))
                return lint(path)

        tool(name)(look)
        return lint

    return entered


def norm_of(parameters: Any) -> float:
    gradients = [p.grad for p in parameters if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0


# Without a package: a rule for losses and gradient norms, and what torch and transformers have.


@in_loop("plain-rule", package="torch")
def plain_rule(model: Any, optimizer: Any) -> tuple[loops.Each, loops.End]:
    losses: list[float] = []
    norms: list[float] = []

    def each(step: int, loss: float) -> None:
        losses.append(loss)
        norms.append(norm_of(p for group in optimizer.param_groups for p in group["params"]))

    def end() -> list[str]:
        loss, norm = torch.tensor(losses), torch.tensor(norms)
        rules = {
            "the loss is not finite": not loss.isfinite().all(),
            "the loss does not fall": len(loss) >= 20 and bool(loss[-10:].mean() >= loss[:10].mean()),
            "a gradient norm is not finite": not norm.isfinite().all(),
            "a gradient norm is 0": (norm == 0).any(),
            "a gradient norm is above 100 times its median": norm.max() > 100 * median(norms) > 0,
        }
        return [rule for rule, broken in rules.items() if broken]

    return each, end


@tool("detect-anomaly", package="torch")
def detect_anomaly(case: Case, faulty: bool) -> list[str]:
    try:
        with warnings.catch_warnings(record=True) as warned, torch.autograd.detect_anomaly(check_nan=True):
            warnings.simplefilter("always")
            return loops.through(case.module(), faulty, lambda *_: (lambda *_: None, list))
    except RuntimeError as error:
        if "nan values" not in str(error):
            raise
        frame = re.compile(rf'{case.path.name}", line \d+, in (\w+)\n +(.+)')  # of the forward call, which it prints
        calls = [": ".join(call) for w in warned for call in frame.findall(str(w.message))]
        return [" ".join((str(error), *calls[-2:]))]


class _InDouble(TorchFunctionMode):
    """float32 that a case asks for is float64: in float32 a difference of 1e-6 has no digits."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args, kwargs = pytree.tree_map(lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {}))
        return func(*args, **kwargs)


@tool("gradcheck", looks_at="model", package="torch")
def gradcheck(case: Case, faulty: bool) -> list[str]:
    """Gradients of the loss by all parameters against differences, in float64, dropout off. What fails in the fast mode
    is not run again in the slow one, which only prints the matrices and takes a forward pass for each weight."""
    module = case.module()
    model, floats = module.build(faulty).double().eval(), lambda t: t.double() if t.is_floating_point() else t
    batch = pytree.tree_map_only(torch.Tensor, floats, module.batch())
    wanted = [p for p in model.parameters() if p.requires_grad]

    def loss(*_: Any) -> torch.Tensor:
        return loops.loss_of(module, loops.called(model, batch), batch)

    code = sys.modules[torch.autograd.gradcheck.__module__]
    with _InDouble(), mock.patch.object(code, "_run_slow_mode_and_get_error", lambda *_: ""):
        if loss().dtype != torch.float64:
            raise loops.CannotLookError("the loss is not in float64")
        try:
            torch.autograd.gradcheck(loss, wanted, fast_mode=True)
        except GradcheckError as error:
            return [str(error)]
    return []


@tool("underflow-overflow", package="transformers")
def underflow_overflow(case: Case, faulty: bool) -> list[str]:
    from transformers.debug_utils import DebugUnderflowOverflow

    def begin(model: torch.nn.Module, optimizer: Any) -> tuple[loops.Each, loops.End]:
        DebugUnderflowOverflow(model)  # its hooks hold it
        return lambda *_: None, list

    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            return loops.through(case.module(), faulty, begin)
    except ValueError as error:
        if "inf/nan" not in str(error):
            raise
        lines = [line for line in printed.getvalue().splitlines() if line.strip()]
        module = max(i for i, line in enumerate(lines) if line.startswith(" " * 17))  # its name, then its tensors
        return [f"{error} {lines[0]} {' '.join(lines[module:])}"]


# isograd: a model, a setup, a script that is run as it is.


@tool("isograd")
def isograd(case: Case, faulty: bool) -> list[str]:
    if case.about["shows"] == "run":
        return _watched(case, faulty)
    import isograd

    module = case.module()
    if case.about["shows"] == "model":
        options = {"loss": module.loss} if hasattr(module, "loss") else {}
        findings: Any = isograd.check(module.build(faulty), batch=module.batch(), **options)
    else:
        findings = isograd.preflight(module.setup(faulty))
    return [f"{f.code} {f.address}: {f.message}" for f in findings if f.severity in ("error", "warning")]


def _watched(case: Case, faulty: bool) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        script, rows = Path(folder, "script.py"), Path(folder, "out", "warnings.jsonl")
        script.write_text(f"from {case.name} import train\n\ntrain({faulty})\n")
        command = f"import sys; sys.path.insert(0, {str(case.path.parent)!r}); from isograd.cli import main; main()"
        watch = ["watch", "--out", str(rows.parent), str(script)]
        done = subprocess.run([sys.executable, "-c", command, *watch], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-300:])
        found = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    return [": ".join(str(row[key]) for key in ("signal", "message", "cause") if row.get(key)) for row in found]


# Linters of source text.


def _printed(program: str, *options: str) -> str:
    return subprocess.run([Path(sys.executable).parent / program, *options], capture_output=True, text=True).stdout


@linter("torchfix")
def torchfix(path: Path) -> list[str]:
    lines = _printed("torchfix", "--select", "ALL", str(path)).splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{path.name}:")]


@linter("torch-preflight")
def torch_preflight(path: Path) -> list[str]:
    found = json.loads(_printed("torch-preflight", "check", "-f", "json", str(path)))["diagnostics"]
    return [f"{d['code']}: {d['message']}" for d in found if d["severity"] in ("error", "warning")]


@linter("mldoct")
def mldoct(path: Path) -> list[str]:
    from mldoctor.linter import lint_script

    issues = lint_script(str(path))[0]
    return [
        i["message"] for i in issues if i["severity"] != "INFO" and "bottleneck" not in i["message"]
    ]  # a hint about speed


# One look at one batch.


@tool("guardtower", looks_at="model step data")
def guardtower(case: Case, faulty: bool) -> list[str]:
    import guardtower

    given = loops.one_step(case.module(), faulty)
    model, batch = given["model"], given["batch"]
    inputs = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    report = guardtower.audit(model, lambda: given["loss"](model, batch), optimizer=given["optimizer"], inputs=inputs)
    return [str(finding) for finding in [*report.errors, *report.warnings]]


@tool("torchtest2", looks_at="model step data")
def torchtest2(case: Case, faulty: bool) -> list[str]:
    """Of a setup its loss(model, batch) is run, and the output is what the model gives in it; targets are no inputs."""
    import torchtest2

    module = case.module()
    given = loops.one_step(module, faulty)
    batch, options = given["batch"], {"loss_fn": getattr(module, "loss", None), "targets": given["batch"]}
    inputs, targets, pair = batch, {}, isinstance(batch, (tuple, list)) and len(batch) == 2
    if hasattr(module, "setup"):
        if pair:
            inputs = batch[0]
        elif isinstance(batch, dict):
            targets = {key: value for key, value in batch.items() if "label" in key or "target" in key}
            inputs = {key: value for key, value in batch.items() if key not in targets}

        def whole(inputs: Any) -> Any:
            return type(batch)((inputs, batch[1])) if pair else {**inputs, **targets} if targets else inputs

        def forward(model: torch.nn.Module, inputs: Any, *_: Any) -> dict[str, Any]:
            outputs: list[Any] = []
            hook = model.register_forward_hook(lambda module, args, output: outputs.append(output))
            loss = given["loss"](model, whole(inputs))
            hook.remove()
            return {"output": outputs[-1], "loss": loss}

        options = {"forward_fn": forward, "optimizer": given["optimizer"]}
        options["eval_forward_fn"] = lambda model, inputs: forward(model, inputs)["output"]
    report = torchtest2.check_model(given["model"], inputs, **options)
    return [str(result) for result in report.results if result.status.value in ("FAIL", "WARN")]


@tool("preflight-ml", looks_at="model step data")
def preflight_ml(case: Case, faulty: bool) -> list[str]:
    from preflight.runner import run_checks

    given = loops.pair(case.module(), faulty)
    results = run_checks(given["data"], given["model"], given["loss_fn"])
    return [f"{r.name}: {r.message}" for r in results if not r.passed]


# In the loop.


@tool("torch-audit")
def torch_audit(case: Case, faulty: bool) -> list[str]:
    """Without its hints about speed, and without what it says of AdamW where that is the plain loop's own."""
    from torch_audit import autopatch

    left_out = ("TA2", "TA401", "TA402", "TA403") if case.about["shows"] == "model" else ("TA2",)

    def begin(model: Any, optimizer: Any) -> tuple[loops.Each, loops.End]:
        auditor = autopatch(model, optimizer=optimizer, every_n_steps=1, reporters=[])

        def end() -> list[str]:
            found = [f for f in auditor.finish(report=False).findings if f.severity.name != "INFO"]
            found = [f for f in found if not f.rule_id.startswith(left_out)]
            return list(dict.fromkeys(f"{f.rule_id} {f.module_path or ''}: {f.message}" for f in found))

        return lambda *_: None, end

    return loops.through(case.module(), faulty, begin)


@in_loop("torchmortem", after=True)
def torchmortem(model: Any, optimizer: Any) -> tuple[loops.Each, loops.End]:
    from torchmortem import Autopsy

    autopsy = Autopsy(model, optimizer=optimizer, sampling="thorough")
    autopsy.__enter__()

    def end() -> list[str]:
        autopsy.__exit__(None, None, None)
        report = autopsy.get_report()
        found = [*report.insights, *(f for f in report.findings if f.severity > 0)]
        return [f"{f.title}: {f.summary}" for f in found]

    return lambda _, loss: autopsy.step(loss=loss), end


@in_loop("gradsnitch")
def gradsnitch(model: Any, optimizer: Any) -> tuple[loops.Each, loops.End]:
    import gradsnitch

    monitor = gradsnitch.watch(model, optimizer)
    return monitor.log, lambda: [f"{f.code} {f.name}: {f.evidence}; {f.likely_cause}" for f in monitor.report()]


@in_loop("training-doctor")
def training_doctor(model: Any, optimizer: Any) -> tuple[loops.Each, loops.End]:
    from training_doctor import Doctor

    doctor = Doctor().set_auto_print(False)

    def each(step: int, loss: float) -> None:
        doctor.log(step=step, loss=loss, lr=optimizer.param_groups[0]["lr"], grad_norm=norm_of(model.parameters()))

    return each, lambda: list(dict.fromkeys(f"{d.problem}: {d.explanation}" for d in doctor.analyze()))


@tool("torchdiag")
def torchdiag(case: Case, faulty: bool) -> list[str]:
    """check_gradients at the first and at the last step; with inputs and targets verify_step and check_dead_neurons."""
    import torchdiag

    found: dict[str, list[str]] = {}

    def says(key: str, check: Callable[..., Any], *args: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            check(*args)
        found[key] = [line for line in printed.getvalue().splitlines() if "•" in line]

    def begin(model: torch.nn.Module, optimizer: Any) -> tuple[loops.Each, loops.End]:
        return lambda step, _: says("last" if step else "first", torchdiag.check_gradients, model), list

    loops.through(case.module(), faulty, begin)
    with contextlib.suppress(loops.CannotLookError):
        given = loops.pair(case.module(), faulty)
        model, (inputs, targets) = given["model"], given["batch"]
        says("step", torchdiag.verify_step, model, given["optimizer"], given["loss_fn"], inputs, targets)
        says("dead", torchdiag.check_dead_neurons, model, inputs)
    return list(dict.fromkeys(line for lines in found.values() for line in lines))
