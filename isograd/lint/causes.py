"""Which finding explains which: a consequence is not reported beside its cause."""

_MASKS = frozenset(("future-leaks", "mask-hides-itself", "masks-differ"))
_RUNS = frozenset(("batch-leaks", "padding-leaks", "encoder-unread", "option-inert", "positions-missing"))
_PLACES = frozenset((
    "placement-mixed", "placement-unsure", "final-norm-missing", "final-norm-doubled", "shortcut-missing",
    "shortcut-after-norm", "norm-bypassed", "factor-unexplained", "not-found", "deepnorm-swapped", "skips-flat",
))  # fmt: skip
_INITS = frozenset((
    "initial-loss", "embedding-std", "start-std", "value-start", "init-depth", "gradient-zero", "collapse-predicted",
))  # fmt: skip
_ATTENTION = _MASKS | {"softmax-axis", "mask-after-softmax", "heads-mixed", "attention-scale", "rotary-wrong"}

EXPLAINS: dict[str, frozenset[str]] = {
    "not-finite": _ATTENTION | _RUNS | _PLACES | _INITS | {"output-not-finite", "random-in-eval", "gradient-cut"},
    "random-in-eval": _ATTENTION | _RUNS | _PLACES | _INITS | {"gradient-cut"},
    "output-not-finite": _RUNS | _PLACES | _INITS | {"gradient-cut", "attention-scale"},
    "heads-mixed": _MASKS | _RUNS | _PLACES,
    "softmax-axis": _MASKS | _RUNS | _PLACES | {"output-not-finite", "initial-loss"},
    "mask-after-softmax": _MASKS,
    "mask-hides-itself": frozenset(("output-not-finite", *_RUNS)),
    "future-leaks": frozenset(("output-not-finite", "padding-leaks", "positions-missing")),
    "batch-leaks": _MASKS | {"padding-leaks", "positions-missing", "encoder-unread"},
}


def explained(codes: set[str]) -> frozenset[str]:
    """The codes that are consequences of those found."""
    return frozenset().union(*(EXPLAINS.get(code, frozenset()) for code in codes))
