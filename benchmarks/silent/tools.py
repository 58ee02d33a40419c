"""What looks at the cases. A tool is a class of three members: `looks_at` (what of `shows` it can look at), `version()`, and
`look(case, twin)`: what it reports, at the level at which it warns; `CannotLook` where a case gives it nothing to look at."""

import contextlib
import csv
import io
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from . import loops
from .cases import Case, source
from .loops import CannotLook, InLoop

ALL = frozenset({"model", "step", "data", "run"})


class Tool(Protocol):
    looks_at: frozenset[str]

    def version(self) -> str: ...
    def look(self, case: Case, twin: str) -> list[str]: ...


TOOLS: dict[str, type[Tool]] = {}


def tool(name: str) -> Callable[[type], type]:
    def entered(made: type) -> type:
        TOOLS[name] = made
        return made

    return entered


class _Of:
    """A tool of an installed package."""

    package = "torch"
    looks_at = ALL

    def version(self) -> str:
        return f"{self.package} {metadata.version(self.package)}"


class _InLoop(_Of, InLoop):
    """A tool that is put into a training loop."""

    def look(self, case: Case, twin: str) -> list[str]:
        return loops.through(case.module(), twin == "faulty", self)


# Without a package.


@tool("plain-rule")
class PlainRule(_InLoop):
    """What a careful person looks at: losses and gradient norms."""

    WINDOW, TIMES = 10, 100.0

    def version(self) -> str:
        return "1"

    def begin(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def before(self, step: int, loss: float) -> None:
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.losses.append(loss)
        self.norms.append(float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0)

    def end(self) -> list[str]:
        losses, norms = torch.tensor(self.losses), torch.tensor(self.norms)
        found = []
        if not losses.isfinite().all():
            found.append("the loss is not finite")
        elif len(losses) >= 2 * self.WINDOW and losses[-self.WINDOW :].mean() >= losses[: self.WINDOW].mean():
            found.append("the loss does not fall")
        if not norms.isfinite().all():
            found.append("a gradient norm is not finite")
        if (norms == 0).any():
            found.append("a gradient norm is 0")
        if norms.isfinite().all() and norms.max() > self.TIMES * median(self.norms) > 0:
            found.append(f"a gradient norm is above {self.TIMES:g} times the median")
        return found


@tool("detect-anomaly")
class DetectAnomaly(_Of):
    def look(self, case: Case, twin: str) -> list[str]:
        try:
            with torch.autograd.detect_anomaly(check_nan=True):
                loops.through(case.module(), twin == "faulty", InLoop())
        except RuntimeError as error:
            return [str(error)]
        return []


@tool("gradcheck")
class GradCheck(_Of):
    """Gradients of the loss by all parameters against differences, in float64, dropout off."""

    looks_at = frozenset({"model"})

    def look(self, case: Case, twin: str) -> list[str]:
        module = case.module()
        model, batch = module.build(twin == "faulty").double().eval(), module.batch()
        batch = torch.utils._pytree.tree_map(
            lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, batch
        )
        wanted = [p for p in model.parameters() if p.requires_grad]

        def loss(*_: torch.Tensor) -> torch.Tensor:
            output = loops.called(model, batch)
            with contextlib.suppress(CannotLook):
                return loops.loss_of(module, output, batch)
            return output if isinstance(output, torch.Tensor) else output[0]

        try:
            torch.autograd.gradcheck(loss, wanted, fast_mode=True)
        except RuntimeError as error:
            return [str(error)[:500]]
        return []


@tool("underflow-overflow")
class UnderflowOverflow(_InLoop):
    package = "transformers"

    def begin(self) -> None:
        from transformers.debug_utils import DebugUnderflowOverflow

        self.debug = DebugUnderflowOverflow(self.model)

    def look(self, case: Case, twin: str) -> list[str]:
        try:
            return super().look(case, twin)
        except ValueError as error:
            if "inf/nan" not in str(error):
                raise
            return [str(error)]


# isograd's doors: a model alone, a setup, a script as it is.


@tool("isograd")
class Isograd(_Of):
    package = "isograd"

    def version(self) -> str:
        import isograd

        folder = Path(isograd.__file__).parent
        commit = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        return f"isograd {isograd.__version__} {commit.stdout.strip()}".strip()

    def look(self, case: Case, twin: str) -> list[str]:
        if case.about["shows"] == "run":
            return self._watched(case, twin)
        import isograd

        module, faulty = case.module(), twin == "faulty"
        if case.about["shows"] == "model":
            options = {"loss": module.loss} if hasattr(module, "loss") else {}
            findings: Any = isograd.check(module.build(faulty), batch=module.batch(), **options)
        else:
            findings = isograd.preflight(module.setup(faulty))
        return [f"{f.code} {f.address}: {f.message}" for f in findings if f.severity in ("error", "warning")]

    def _watched(self, case: Case, twin: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            begin = f"import sys\nsys.path.insert(0, {str(case.path.parent)!r})\nfrom {case.name} import train\n"
            script.write_text(f"{begin}train({twin == 'faulty'})\n")
            command = [sys.executable, "-m", "isograd", "watch", "--out", f"{folder}/out", str(script)]
            done = subprocess.run(command, capture_output=True, text=True)
            rows = Path(folder, "out", "warnings.jsonl")
            if done.returncode:
                raise RuntimeError(done.stderr[-500:])
            found = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
        return [": ".join(str(row[key]) for key in ("signal", "message", "cause") if row.get(key)) for row in found]


# Linters of source text: the twin without the choice.


class _Linter(_Of):
    def look(self, case: Case, twin: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.py")
            path.write_text(source(case, twin))
            return [line.replace(str(path), "train.py") for line in self.lint(path)]

    def lint(self, path: Path) -> list[str]:
        raise NotImplementedError

    def printed(self, *command: str) -> str:
        program, *options = command
        return subprocess.run([Path(sys.executable).parent / program, *options], capture_output=True, text=True).stdout


@tool("torchfix")
class TorchFix(_Linter):
    package = "torchfix"

    def lint(self, path: Path) -> list[str]:
        lines = self.printed("torchfix", "--select", "ALL", str(path)).splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{path.name}:")]


@tool("torch-preflight")
class TorchPreflight(_Linter):
    package = "torch-preflight"

    def lint(self, path: Path) -> list[str]:
        found = json.loads(self.printed("torch-preflight", "check", "-f", "json", str(path)))["diagnostics"]
        return [f"{d['code']}: {d['message']}" for d in found if d["severity"] in ("error", "warning")]


@tool("mldoct")
class MLDoctor(_Linter):
    package = "mldoct"

    def lint(self, path: Path) -> list[str]:
        from mldoctor.linter import lint_script

        return [issue["message"] for issue in lint_script(str(path))[0] if issue["severity"] != "INFO"]


# One batch, one look.


def _one_step(case: Case, twin: str) -> dict[str, Any]:
    """model, optimizer, batch and loss() of a single module or of a setup."""
    module, faulty = case.module(), twin == "faulty"
    if case.about["shows"] == "model":
        model, batch = module.build(faulty), module.batch()
        loss = lambda: loops.loss_of(module, loops.called(model, batch), batch)  # noqa: E731
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        return {"model": model, "optimizer": optimizer, "batch": batch, "loss": loss}
    setup = loops.setup_of(module, faulty)
    if "trainer" in setup:
        trainer = setup["trainer"]
        trainer.create_optimizer()
        data = trainer.get_train_dataloader()
        model, loss_of = trainer.model, trainer.compute_loss
        setup = {"model": model, "optimizer": trainer.optimizer, "data": data, "loss": loss_of}
    if not {"model", "data", "loss"} <= setup.keys():
        raise CannotLook("no model, data and loss")
    batch = next(iter(setup["data"]))
    optimizers = loops.several(setup.get("optimizer"))
    return {
        "model": setup["model"],
        "optimizer": optimizers[0] if optimizers else None,
        "batch": batch,
        "data": setup["data"],
        "loss": lambda: setup["loss"](setup["model"], batch),
        "of": setup["loss"],
    }


@tool("guardtower")
class Guardtower(_Of):
    package = "guardtower"
    looks_at = ALL - {"run"}

    def look(self, case: Case, twin: str) -> list[str]:
        import guardtower

        given = _one_step(case, twin)
        leaves = torch.utils._pytree.tree_leaves(given["batch"])
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        report = guardtower.audit(given["model"], given["loss"], optimizer=given["optimizer"], inputs=inputs)
        return [str(finding) for finding in [*report.errors, *report.warnings]]


@tool("torchtest2")
class TorchTest2(_Of):
    """A setup's loss(model, batch) is its `loss_fn` with a forward pass of its own, as its docs have it for such models."""

    package = "torchtest2"
    looks_at = ALL - {"run"}

    def look(self, case: Case, twin: str) -> list[str]:
        import torchtest2

        given = _one_step(case, twin)
        options: dict[str, Any] = {}
        if "of" in given:
            options = {"forward_fn": lambda model, inputs, _: given["of"](model, inputs), "loss_fn": lambda output: output}
            options |= {"optimizer": given["optimizer"], "eval_forward_fn": options["forward_fn"]}
            options["eval_forward_fn"] = lambda model, inputs: given["of"](model, inputs)
        elif hasattr(sys.modules[case.name], "loss"):
            own = sys.modules[case.name].loss
            options = {"loss_fn": own, "targets": given["batch"]}
        report = torchtest2.check_model(given["model"], given["batch"], **options)
        return [str(r) for r in report.results if r.status.value in ("FAIL", "WARN")]


@tool("preflight-ml")
class PreflightML(_Of):
    """Its checks of data, and of model and loss where a batch is (inputs, targets)."""

    package = "preflight-ml"
    looks_at = frozenset({"step", "data"})

    def look(self, case: Case, twin: str) -> list[str]:
        from preflight.runner import run_checks

        setup = loops.setup_of(case.module(), twin == "faulty")
        data = setup["trainer"].get_train_dataloader() if "trainer" in setup else setup.get("data")
        if data is None:
            raise CannotLook("no data")
        return [f"{r.name}: {r.message}" for r in run_checks(data, setup.get("model")) if not r.passed]


# In the loop.


@tool("torch-audit")
class TorchAudit(_InLoop):
    package = "torch-audit"

    def begin(self) -> None:
        from torch_audit import autopatch

        self.auditor = autopatch(self.model, optimizer=self.optimizer, every_n_steps=1, reporters=[])

    def end(self) -> list[str]:
        found = self.auditor.finish(report=False).findings
        lines = [f"{f.rule_id} {f.module_path or ''}: {f.message}" for f in found if f.severity.name not in ("INFO",)]
        return list(dict.fromkeys(lines))


@tool("torchmortem")
class Torchmortem(_InLoop):
    package = "torchmortem"

    def begin(self) -> None:
        from torchmortem import Autopsy

        self.autopsy = Autopsy(self.model, optimizer=self.optimizer, sampling="thorough")
        self.autopsy.__enter__()

    def after(self, step: int, loss: float) -> None:
        self.autopsy.step(loss=loss)

    def end(self) -> list[str]:
        self.autopsy.__exit__(None, None, None)
        report = self.autopsy.get_report()
        return [f"{f.title}: {f.summary}" for f in report.findings if f.severity > 0]


@tool("gradsnitch")
class Gradsnitch(_InLoop):
    package = "gradsnitch"

    def begin(self) -> None:
        import gradsnitch

        self.monitor = gradsnitch.watch(self.model, self.optimizer)

    def before(self, step: int, loss: float) -> None:
        self.monitor.log(step, loss)

    def end(self) -> list[str]:
        with contextlib.redirect_stdout(io.StringIO()):
            return [f"{f.code} {f.name}: {f.evidence} {f.likely_cause}" for f in self.monitor.report()]


@tool("training-doctor")
class TrainingDoctor(_InLoop):
    package = "training-doctor"

    def begin(self) -> None:
        from training_doctor import Doctor

        self.doctor = Doctor().set_auto_print(False)

    def before(self, step: int, loss: float) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
        self.doctor.log(step=step, loss=loss, lr=self.optimizer.param_groups[0]["lr"], grad_norm=norm)

    def end(self) -> list[str]:
        return list(dict.fromkeys(f"{d.problem}: {d.explanation}" for d in self.doctor.analyze()))


@tool("torcheck")
class Torcheck(_InLoop):
    package = "torcheck"

    def begin(self) -> None:
        import torcheck

        torcheck.register(self.optimizer)
        torcheck.add_module(self.model, module_name="model", changing=True, check_nan=True, check_inf=True)

    def look(self, case: Case, twin: str) -> list[str]:
        try:
            return super().look(case, twin)
        except RuntimeError as error:
            return [str(error)]


@tool("torchdiag")
class Torchdiag(_InLoop):
    """check_gradients at the first and at the last step."""

    package = "torchdiag"

    def begin(self) -> None:
        self.found: dict[str, None] = {}
        self.said: list[str] = []

    def before(self, step: int, loss: float) -> None:
        import torchdiag

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            torchdiag.check_gradients(self.model)
        self.said = [line.strip(" •") for line in printed.getvalue().splitlines() if line.startswith("  •")]
        if step == 0:
            self.found = dict.fromkeys(self.said)

    def end(self) -> list[str]:
        return list(self.found | dict.fromkeys(self.said))


@tool("losslint")
class Losslint(_InLoop):
    package = "losslint"

    def begin(self) -> None:
        self.losses: list[float] = []

    def before(self, step: int, loss: float) -> None:
        self.losses.append(loss)

    def end(self) -> list[str]:
        from losslint.checks import run_all_checks
        from losslint.parsing import RunLog

        found = run_all_checks(RunLog(list(range(len(self.losses))), {"loss": list(self.losses)}, Path("log.csv")))
        return [f"{f.check}: {f.message}" for f in found if f.severity in ("error", "warning")]
