"""The linter: every rule asked about one model.

findings = isograd.check(model)
findings.placements["model.layers.3.self_attn"]     # "pre-ln"
for finding in findings: print(finding.code, finding.address, finding.measured)
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig, PreTrainedModel

from isograd.errors import hint
from isograd.lint import branches, norms, shortcuts, unused, wiring
from isograd.lint.attention import heads, masks, positions
from isograd.lint.checked_model import CheckedModel, is_quantized
from isograd.lint.findings import Finding, Findings, Severity, by_harm
from isograd.lint.initial import collapse, initialization, weights
from isograd.lint.intent import Intents
from isograd.lint.leaks import batch as sequences
from isograd.lint.leaks import future, padded, source
from isograd.lint.proof.fix import fixed
from isograd.lint.proof.trial import Trial
from isograd.lint.rules import explained, in_order
from isograd.lint.running import forward, gradients, targets
from isograd.lint.running import optimizer as optimizers
from isograd.lint.source import source_of
from isograd.trace.anatomy import Anatomy, find_anatomy
from isograd.trace.inputs import Inputs, as_inputs, evaluating, few_sequences, guess_inputs, run
from isograd.trace.record import answer, is_large, unwrapped
from isograd.trace.sublayers import TracedSublayer

BUDGET = 8.0  # seconds for trials where nothing is said
PROVEN: dict[str, Severity] = {"confirmed": "error", "overturned": "info", "untried": "warning"}
_TARGETS = ("targets", "target", "labels", "y")

MODULES = (
    branches,
    collapse,
    forward,
    future,
    gradients,
    heads,
    initialization,
    masks,
    norms,
    optimizers,
    padded,
    positions,
    sequences,
    shortcuts,
    source,
    targets,
    unused,
    weights,
    wiring,
)  # imported so that their rules are known: a new file of rules has its line here
CODES = frozenset(code for one in in_order() for code in one.codes) | {"not-found"}


def check(
    model: nn.Module,
    batch: Any = None,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    lr: float | None = None,
    warmup: int | None = None,
    intent: Iterable[str] | str = (),
    prove: bool | None = None,
    fix: bool = False,
    ignore: Iterable[str] = (),
    name: str | None = None,
) -> Findings:
    """Look for wiring and initialization bugs in a Transformer, in seconds.

    The model is copied, and never changed. A fact is reported as it was measured. A suspicion is tried: the recorded
    computation is trained for some tens of steps with and without the change, in three seeds: see
    `isograd.lint.proof.trial`. It is an error where the change trains better in all of them, an info where it does not,
    a warning where nothing was tried.

    Args:
        model: any `nn.Module`.
        batch: what `forward` takes (a tensor, a tuple or a dict); guessed from the model where None.
        loss: of the output and the batch, a number to be minimized where a change is tried; the model's own, or a small
            task, where None.
        optimizer: the one that is to train it: what it holds, its rates and its decay are checked.
        lr, warmup: peak learning rate and warm-up steps to come; with them a Post-LN stack is judged.
        intent: what the model is meant to do where its code does not say so; see `isograd.lint.intent.INTENTS`.
        fix: put a copy of the model with the changes of its errors into `findings.fixed`; see `isograd.lint.proof.fix`.
        prove: try suspicions for as long as it takes (True), not at all (False), or for eight seconds (None).
        ignore: codes that are not reported.
        name: what to call the model.

    Raises:
        InputsError: no inputs given, and none that can be guessed.
        ValueError: an unknown code in `ignore`, or an unknown intent.
    """
    ignored, model = known_codes(ignore), unwrapped(model)
    asked = Intents.given(intent)
    with evaluating(model):  # a copy may run parts of the model itself, as a lambda does that was made over them
        given = {"loss": loss, "optimizer": optimizer, "lr": lr, "warmup": warmup, "intents": asked}
        budget = None if prove else BUDGET * (prove is None)
        found = _looked(model, batch, ignored, budget, fix, name, **given)
        kept = _with_upstream(model, found.findings, lambda new: _looked(new, batch, ignored, intents=asked).findings)
    return replace(found, findings=by_harm(kept, {code for one in in_order() for code in one.stops}))


def _looked(
    model: nn.Module,
    batch: Any,
    ignored: frozenset[str],
    budget: float | None = 0.0,
    fix: bool = False,
    name: str | None = None,
    **given: Any,
) -> Findings:
    """All findings.

    Args:
        given: more that a `CheckedModel` has.
    """
    if any(hasattr(p, "full_tensor") for p in model.parameters()):
        line = "the model, whose parameters are shards of FSDP2: check it before fully_shard, or a copy loaded whole"
        return Findings(model=name or type(model).__name__, placements={}, formulas={}, findings=(), missed=(line,))
    inputs = _with_targets(model, guess_inputs(model)) if batch is None else few_sequences(model, as_inputs(batch))
    anatomy = find_anatomy(model, inputs)
    given_first = next((v.shape[0] for v in tree_leaves(inputs) if isinstance(v, Tensor) and v.ndim), 0)
    shapes = (anatomy.trace[v].shape for o in anatomy.trace.operations for v in o.makes[:1])
    if batch is not None and any(len(s) == 3 and s[0] == s[1] == given_first for s in shapes):
        inputs = few_sequences(model, inputs, given_first - 1)  # as many sequences as positions: axes look alike
        anatomy = find_anatomy(model, inputs)
    checked = CheckedModel(model, inputs, anatomy, **given, batch=batch)
    missed: list[str] = [f"a part of the model: {line}" for line in anatomy.missed]
    seen = any(anatomy.dataflow.is_product(operation) for operation in anatomy.trace.operations)
    quantized = is_quantized(model)
    if quantized:
        missed.append("the matrices, which are quantized: check the model before it is quantized")
    found = _asked(checked, ignored, missed, Trial(checked, budget)) if seen and not quantized else []
    if not anatomy.stacks and not quantized:
        found.append(_nothing_found(anatomy))
    idle = [a for a in anatomy.idle if not any(f.address == a or f.address.startswith(f"{a}.") for f in found)]
    missed += [f"{address}: these inputs do not run through it; pass a batch that does" for address in idle]
    copied, left = fixed(checked, found) if fix else (None, [])
    missed += [f"the fix of {code}: it lies within a module's forward; change the source" for code in left]
    return Findings(
        model=name or type(model).__name__,
        fixed=copied,
        placements=anatomy.placements,
        formulas=_formulas(anatomy.sublayers),
        findings=tuple(replace(one, source=source_of(checked, one)) for one in found),
        missed=tuple(missed),
        scheme=initialization.scheme_of(checked),
    )


def _asked(checked: CheckedModel, ignored: frozenset[str], missed: list[str], trial: Trial) -> list[Finding]:
    """The findings of all rules, each suspicion tried; those that are consequences of others are left out.

    A rule that a suspicion had silenced is asked after all where the suspicion was overturned.
    """
    every: dict[Finding, None] = {}
    asked: set[int] = set()
    while True:
        for at, one in enumerate(in_order()):
            if at in asked or (ignored | explained(checked.reported)).issuperset(one.codes):
                continue
            asked.add(at)
            try:
                for finding in one.run(checked):
                    doubted = finding.code in one.suspicions or finding.kind == "suspicion"
                    every.setdefault(replace(finding, kind="suspicion" if doubted else "fact"))
                    checked.reported.add(finding.code)
            except Exception as error:  # one rule that cannot look at an unusual model does not stop the others
                line = f"{' '.join(one.codes)}: {type(error).__name__}: {' '.join(str(error).split())}"
                missed.append(line[:200])
        hidden = ignored | explained(checked.reported)
        found = [finding for finding in every if finding.code not in hidden]
        doubtful = [f for f in found if f.kind == "suspicion" and f.severity != "info" and f.proof is None]
        if not doubtful:
            return found
        proofs = {one: trial.of(one.edit) for one in doubtful}
        tried = {one: replace(one, proof=proof, severity=PROVEN[proof.verdict]) for one, proof in proofs.items()}
        every = {tried.get(one, one): None for one in every}
        checked.reported = {f.code for f in every if f.proof is None or f.proof.verdict != "overturned"}


def _with_upstream(
    model: nn.Module, found: Sequence[Finding], check: Callable[[nn.Module], Sequence[Finding]]
) -> list[Finding]:
    """The findings; those that a new model of the same class and sizes, with all other settings at their defaults, has
    at the same places are less severe by one and say so.

    Args:
        check: finds what is wrong with such a model.
    """
    stock = isinstance(model, PreTrainedModel) and type(model).__module__.startswith("transformers.")
    if all(finding.severity == "info" for finding in found) or not stock or is_large(model):
        return list(found)
    try:
        with torch.random.fork_rng(devices=[]):
            theirs = {(one.code, one.address) for one in check(type(model)(_usual(model.config)).eval())}
    except Exception:  # a class that cannot be built so says nothing
        return list(found)
    name = f"{type(model).__name__} of transformers {version('transformers')}"
    less: dict[Severity, Severity] = {"error": "warning", "warning": "info"}
    return [
        replace(
            one,
            severity=less[one.severity],
            message=f"{one.message}; every new {name} has this: the cause is upstream, not in your code",
        )
        if one.severity in less and (one.code, one.address) in theirs
        else one
        for one in found
    ]


def _usual(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration with its sizes, and with the defaults of its class for switches, factors and names."""
    made, usual = copy.deepcopy(config), type(config)()
    for name, default in vars(usual).items():
        own: Any = getattr(made, name, None)
        if isinstance(own, PretrainedConfig):
            setattr(made, name, _usual(own))
        elif isinstance(default, bool | float | str) and name[0] != "_" and own != default:
            setattr(made, name, default)
    return made


def _with_targets(model: nn.Module, inputs: Inputs) -> Inputs:
    """The inputs, with the ids moved by one as targets where that makes the model give more logits."""
    if isinstance(model, PreTrainedModel):
        return inputs
    parameters = inspect.signature(model.forward).parameters
    name = next((n for n in _TARGETS if n in parameters and parameters[n].default is None), None)
    given = inputs if isinstance(inputs, dict) else dict(zip(parameters, inputs, strict=False))
    ids = next((v for v in given.values() if isinstance(v, Tensor) and not v.is_floating_point() and v.ndim == 2), None)
    if name is None or ids is None or name in given:
        return inputs
    whole = given | {name: ids.roll(-1, 1)}
    try:
        before, after = (answer(run(model, x)) for x in (inputs, whole))
    except Exception:  # targets of another kind
        return inputs
    if before is None or after is None or after.ndim != 3:
        return inputs
    return whole if before.shape[:2] != ids.shape and after.shape[:2] == ids.shape else inputs


def known_codes(codes: Iterable[str]) -> frozenset[str]:
    """The codes, all of them known.

    Raises:
        ValueError: one is not.
    """
    for code in codes:
        if code not in CODES:
            raise ValueError(f"unknown code {code!r}: {hint(code, sorted(CODES))}")
    return frozenset(codes)


def _formulas(sublayers: list[TracedSublayer]) -> dict[str, str]:
    """By address; branches that read one value and are added by one sum, as in GPT-J, stand in one formula."""
    found = {}
    for one in sublayers:
        beside = [s for s in sublayers if (s.read, s.total) == (one.read, one.total) and not s.design]
        found[one.address] = formula(*(beside or [one]))
    return found


def formula(sublayer: TracedSublayer, *beside: TracedSublayer) -> str:
    """As in `isograd show`: post(skip x + scale out(f(pre(x)))), and what is added beside."""
    terms = [f"{_times(s.scale, 'scale')}{_branch(s)}" for s in (sublayer, *beside)]
    total = " + ".join([f"{_times(sublayer.skip, 'skip')}x", *terms])
    if sublayer.design in ("gated", "ngpt"):
        total = f"(1 - g) x + g {_branch(sublayer)}"
    return f"post({total})" if "post" in sublayer.norms else total


def _branch(sublayer: TracedSublayer) -> str:
    inner = "pre(x)" if "pre" in sublayer.norms else "x"
    branch = f"{sublayer.kind}[mid]({inner})" if "mid" in sublayer.norms else f"{sublayer.kind}({inner})"
    return f"out({branch})" if "out" in sublayer.norms else branch


def _times(coefficient: Any, name: str) -> str:
    if coefficient.learned:
        return f"{name}*"
    return "" if not abs(coefficient.value - 1) >= 1e-3 else f"{coefficient.value:.3g} "


def _nothing_found(anatomy: Anatomy) -> Finding:
    operations = len(anatomy.trace.operations)
    return Finding(
        code="not-found",
        severity="info",
        address="",
        measured=float(operations),
        message=f"no residual connection found in {operations:,} operations: nothing of the form x + f(x)",
        remedy="is it a Transformer? If so, give --batch: the inputs may not run through its layers"
        if any(anatomy.dataflow.is_product(operation) for operation in anatomy.trace.operations)
        else "no product with a weight was found: check a quantized model before it is quantized",
    )
