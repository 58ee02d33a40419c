"""Which finding explains which: a consequence is not reported beside its cause."""

_MASKS = frozenset(("future-leaks", "both-ways", "mask-hides-itself", "masks-differ"))
_RUNS = frozenset(("batch-leaks", "padding-leaks", "encoder-unread", "option-inert", "positions-missing"))
_PLACES = frozenset((
    "placement-mixed", "placement-unsure", "final-norm-missing", "final-norm-doubled", "shortcut-missing",
    "shortcut-after-norm", "norm-bypassed", "factor-unexplained", "not-found", "deepnorm-swapped", "skips-flat",
))  # fmt: skip
_INITS = frozenset((
    "initial-loss", "embedding-std", "start-std", "value-start", "init-depth", "gradient-zero", "collapse-predicted",
))  # fmt: skip
_ATTENTION = _MASKS | {
    "branch-shifted",
    "softmax-axis",
    "mask-after-softmax",
    "heads-mixed",
    "attention-scale",
    "rotary-wrong",
}

EXPLAINS: dict[str, frozenset[str]] = {
    "not-finite": _ATTENTION | _RUNS | _PLACES | _INITS | {"output-not-finite", "random-in-eval", "gradient-cut"},
    "unregistered": _ATTENTION | _RUNS | _PLACES | _INITS | {"gradient-cut", "parameter-unread"},
    "layers-shared": frozenset(("layers-identical", "weights-copied", "start-std")),
    "random-in-eval": _ATTENTION | _RUNS | _PLACES | _INITS | {"gradient-cut"},
    "output-not-finite": _RUNS | _PLACES | _INITS | {"gradient-cut", "attention-scale"},
    "heads-mixed": _MASKS | _RUNS | _PLACES | {"axes-mixed", "branch-shifted"},
    "axes-mixed": _MASKS | _RUNS | _PLACES | {"branch-shifted"},
    "softmax-axis": _MASKS | _RUNS | _PLACES | {"output-not-finite", "initial-loss"},
    "mask-after-softmax": _MASKS,
    "mask-hides-itself": frozenset(("output-not-finite", *_RUNS)),
    "future-leaks": frozenset(("output-not-finite", "padding-leaks", "positions-missing")),
    "norm-axis": _PLACES | _MASKS | _RUNS | {"norm-scale", "norm-weights", "norm-eps"},
    "norm-scale": _PLACES | {"norm-weights", "initial-loss", "norm-eps"},
    "norm-weights": _INITS | {"placement-unsure", "gradient-cut", "gradient-zero", "initial-loss"},
    "stream-bent": _PLACES | {"start-std", "init-depth"},
    "ffn-linear": frozenset(("placement-unsure",)),
    "probabilities": _INITS,
    "weights-zero": _INITS
    | _PLACES
    | {
        "embedding-untied",
        "weights-constant",
        "weights-partial",
        "option-inert",
        "positions-missing",
        "encoder-unread",
        "weights-copied",
    },
    "weights-constant": _INITS | {"weights-mean", "weights-partial", "weights-copied", "layers-identical"},
    "weights-mean": _INITS | {"init-large", "init-small"},
    "init-large": frozenset(("start-std", "init-depth", "initial-loss", "embedding-std", "gradient-cut")),
    "init-small": frozenset(("start-std", "init-depth", "gradient-zero", "parameter-unread")),
    "value-start": frozenset(("start-std",)),
    "weights-partial": frozenset(("start-std", "init-depth", "weights-copied")),
    "parameter-unread": frozenset(("placement-mixed", "gradient-cut", "shortcut-doubled", "start-std")),
    "optimizer-other": frozenset(("optimizer-missing",)),
    "norms-decayed": frozenset(("gains-decayed",)),
    "encoder-unread": _MASKS | {"norm-bypassed", "parameter-unread", "gradient-cut"},
    "shortcut-missing": _PLACES | _INITS | {"shortcut-doubled", "gradient-cut"},
    "shortcut-doubled": frozenset(("placement-mixed", "placement-unsure", "deepnorm-swapped", "factor-unexplained")),
    "shortcut-after-norm": frozenset(
        ("placement-mixed", "placement-unsure", "final-norm-doubled", "collapse-predicted")
    ),
    "norm-bypassed": frozenset(("placement-mixed", "placement-unsure", "final-norm-missing", "parameter-unread")),
    "rotary-wrong": frozenset(("positions-missing",)),
    "positions-missing": frozenset(("parameter-unread",)),
    "batch-leaks": _MASKS | {"gradient-zero", "gradient-cut", "padding-leaks", "positions-missing", "encoder-unread"},
}


def explained(codes: set[str]) -> frozenset[str]:
    """The codes that are consequences of those found; what is a consequence itself explains nothing.

    >>> sorted(explained({"not-finite", "output-not-finite", "future-leaks"}))[:2]
    ['attention-scale', 'batch-leaks']
    >>> "shortcut-missing" in explained({"shortcut-missing"})
    False
    """
    hidden: set[str] = set()
    for cause, effects in EXPLAINS.items():
        if cause in codes and cause not in hidden:
            hidden |= effects - {cause}
    return frozenset(hidden)
