"""What a rule is: the codes it may report, the phase in which it is asked, and what else its findings explain.

    @rule(Phase.NORMS, "norm-axis", hides=(Phase.NORMS, Phase.WIRING, Phase.MASKS))
    def axis(checked): ...

Every code is of one of two kinds. A fact is shown by a computation that anybody can repeat: a value changed here moves
an output there. A suspicion says that a design is unwise; it is an error only when `isograd.lint.proof.trial` has tried
the change and seen the model train better.

A consequence is not reported beside its cause: heads that are split by a view seem to have masks that leak. A new rule
is a function with this line above it, a page docs/check/CODE.md and a test.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from functools import cache, wraps

from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding


class Phase(IntEnum):
    """What a rule is about, in the order in which rules are asked."""

    FINITE = auto()
    VALUES = auto()  # of parameters, and of the output: not zero, not copies
    REGISTERED = auto()  # modules that are where they seem to be, and give the same twice
    HEADS = auto()  # how an attention splits, scales and joins
    MASKS = auto()  # which positions a position reads
    NORMS = auto()
    BRANCHES = auto()  # activations, and what a model returns
    WIRING = auto()  # where norms and shortcuts stand
    POSITIONS = auto()
    DATA = auto()  # what an output depends on
    INIT = auto()
    GRADIENTS = auto()
    OPTIMIZER = auto()


READ = (Phase.MASKS, Phase.POSITIONS, Phase.DATA, Phase.WIRING)  # what is seen where positions are mixed
RUN = (Phase.HEADS, *READ, Phase.INIT)  # what is seen in a run
Effects = tuple[Phase | str, ...]
Run = Callable[[CheckedModel], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """A function of the model that is checked, and what is known of its findings.

    Attributes:
        codes: what it may report.
        hides: code -> whole phases, and single codes, that are its consequences.
        stops: those of its codes that end training at once, or leave it where it began: first among the errors.
        suspicions: those of its codes that are no facts.
    """

    phase: Phase
    codes: tuple[str, ...]
    run: Run
    hides: Mapping[str, Effects]
    stops: tuple[str, ...] = ()
    suspicions: frozenset[str] = frozenset()


RULES: list[Rule] = []  # of all modules that are loaded, in no order: see `in_order`


def rule(
    phase: Phase,
    *codes: str,
    hides: Effects | Mapping[str, Effects] = (),
    stops: tuple[str, ...] = (),
    suspicions: bool | tuple[str, ...] = False,
) -> Callable[[Run], Run]:
    """The function below is a rule. `hides` is of all its codes, or a mapping where they explain different things;
    `suspicions` are all of them, or those named. A finding without a code has the first.
    """

    def add(run: Run) -> Run:
        @wraps(run)
        def named(checked: CheckedModel) -> Iterator[Finding]:
            yield from (finding if finding.code else replace(finding, code=codes[0]) for finding in run(checked))

        effects = hides if isinstance(hides, Mapping) else dict.fromkeys(codes, hides)
        doubtful = frozenset(codes if suspicions is True else suspicions or ())
        RULES.append(Rule(phase, codes, named, effects, stops, doubtful))
        return named

    return add


@cache  # asked before each rule; `isograd.lint.check` has loaded all of them
def in_order() -> tuple[Rule, ...]:
    """By phase, in it what explains most first, then by name: no import decides."""

    def key(one: Rule) -> tuple[Phase, int, tuple[str, ...]]:
        effects = [what for whats in one.hides.values() for what in whats]
        return one.phase, -sum(len(Phase) if isinstance(what, Phase) else 1 for what in effects), one.codes

    return tuple(sorted(RULES, key=key))


def explained(codes: set[str]) -> frozenset[str]:
    """The codes that are consequences of those found; what is a consequence itself explains nothing.

    >>> import isograd.lint.check
    >>> sorted(explained({"not-finite", "output-not-finite", "future-leaks"}))[:2]
    ['attention-flat', 'attention-scale']
    >>> "shortcut-missing" in explained({"shortcut-missing"})
    False
    """
    rules = in_order()
    phases: dict[Phase, set[str]] = {}
    for one in rules:
        phases.setdefault(one.phase, set()).update(one.codes)
    hidden: set[str] = set()
    for one in rules:
        for cause, effects in one.hides.items():
            if cause in codes and cause not in hidden:
                found = (phases[what] if isinstance(what, Phase) else {what} for what in effects)
                hidden |= set().union(*found) - {cause}
    return frozenset(hidden)
