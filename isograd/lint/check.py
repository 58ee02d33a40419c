"""The linter: every rule asked about one model.

findings = isograd.check(model)
findings.placements["model.layers.3.self_attn"]     # "pre-ln"
for finding in findings: print(finding.code, finding.address, finding.measured)
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from isograd.lint import collapse, init_schemes, initialization, leaks, options, wiring
from isograd.lint.checked_model import Subject
from isograd.lint.findings import Finding, Findings
from isograd.trace.anatomy import Anatomy, anatomy
from isograd.trace.inputs import as_inputs, guess_inputs
from isograd.trace.structure import FoundSublayer

RULES: dict[str, tuple[str, Callable[[Subject], Iterator[Finding]]]] = {
    # what is looked at: the codes that it may say, the rule
    "values": ("not-finite", wiring.finite),
    "final norm": ("final-norm-missing final-norm-doubled", wiring.final_norm),
    "placements": ("placement-mixed", wiring.mixed),
    "probes": ("placement-unsure", wiring.unsure),
    "head scales": ("head-scale-after-out", wiring.head_scale),
    "constants": ("deepnorm-swapped", wiring.swapped),
    "skips": ("skips-flat", wiring.flat_skips),
    "parameters": ("parameter-unread", wiring.unread),
    "depth": ("collapse-predicted", collapse.collapse),
    "copies": ("layers-identical", initialization.identical),
    "starts": ("start-std", init_schemes.stds),
    "value start": ("value-start", init_schemes.value_start),
    "embedding": ("embedding-untied embedding-std", initialization.embedding),
    "first loss": ("initial-loss", initialization.first_loss),
    "norms": ("norm-eps", initialization.norms),
    "precision": ("norm-dtype", initialization.precision),
    "future": ("future-leaks", leaks.future),
    "padding": ("padding-leaks", leaks.padding),
    "source": ("encoder-unread", leaks.source),
    "weight decay": ("gains-decayed", options.decay),
    "options": ("option-inert", options.inert),
}
CODES = frozenset(code for codes, _ in RULES.values() for code in codes.split()) | {"not-found"}
GRAVITY = {"error": 0, "warning": 1, "info": 2}


def check(
    model: nn.Module,
    batch: Any = None,
    *,
    lr: float | None = None,
    warmup: int | None = None,
    ignore: Iterable[str] = (),
    name: str | None = None,
) -> Findings:
    """Look for faults of wiring and start in a Transformer, in seconds and without training it.

    The model is copied, and never changed.

    Args:
        model: any `nn.Module`.
        batch: what `forward` takes (a tensor, a tuple or a dict); guessed from the model where None.
        lr, warmup: peak learning rate and warm-up steps to come; with them a Post-LN stack is judged.
        ignore: codes that are not reported.
        name: what to call the model.

    Raises:
        InputsError: no inputs given, and none that can be guessed.
        ValueError: an unknown code in `ignore`.
    """
    ignored = known_codes(ignore)
    inputs = guess_inputs(model) if batch is None else as_inputs(batch)
    found = anatomy(model, inputs)
    subject = Subject(model, inputs, found, lr, warmup)
    said: list[Finding] = []
    missed: list[str] = []
    for what, (codes, rule) in RULES.items():
        if ignored.issuperset(codes.split()):
            continue
        try:
            said += rule(subject)
            subject.said.update(finding.code for finding in said)
        except Exception as error:  # one rule that cannot look at an unusual model leaves the others their say
            missed.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}"[:200])
    if not found.towers:
        said.append(_nothing_found(found))
    said = [finding for finding in dict.fromkeys(said) if finding.code not in ignored]
    return Findings(
        model=name or type(model).__name__,
        placements=found.placements,
        formulas={s.address: formula(s) for s in found.sublayers},
        findings=tuple(sorted(said, key=lambda f: GRAVITY[f.severity])),
        missed=tuple(missed),
    )


def known_codes(codes: Iterable[str]) -> frozenset[str]:
    """The codes, all of them known.

    Raises:
        ValueError: one is not.
    """
    for code in codes:
        if code not in CODES:
            near = difflib.get_close_matches(code, sorted(CODES), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(CODES))}"
            raise ValueError(f"unknown code {code!r}: {hint}")
    return frozenset(codes)


def formula(sublayer: FoundSublayer) -> str:
    """As in `isograd show`: post(skip x + gain out(f(pre(x))))."""
    inner = "pre(x)" if "pre" in sublayer.norms else "x"
    branch = f"{sublayer.kind}({inner})"
    if "mid" in sublayer.norms:
        branch = f"{sublayer.kind}[mid]({inner})"
    if "out" in sublayer.norms:
        branch = f"out({branch})"
    total = f"{_times(sublayer.skip, 'skip')}x + {_times(sublayer.gain, 'gain')}{branch}"
    return f"post({total})" if "post" in sublayer.norms else total


def _times(coefficient: Any, name: str) -> str:
    if coefficient.learned:
        return f"{name}*"
    return "" if not abs(coefficient.value - 1) >= 1e-3 else f"{coefficient.value:.3g} "


def _nothing_found(found: Anatomy) -> Finding:
    operations = len(found.trace.operations)
    return Finding(
        code="not-found",
        severity="warning",
        address="",
        measured=float(operations),
        message=f"no sum of a stream with a branch that was computed from it, in {operations} operations",
        remedy="is it a Transformer? If so, give --batch: the inputs may not run through its layers"
        if any(found.flow.is_product(operation) for operation in found.trace.operations)
        else "no weight that multiplies is seen: check a quantised model before it is quantised",
    )
