"""Which codes name which cause: read from the codes' names and titles, judged by the cause and not by any result."""

ACCEPTED: dict[str, tuple[str, ...]] = {
    "no-mask": ("future-leaks", "masks-differ"),
    "mask-shifted": ("future-leaks", "mask-hides-itself"),
    "mask-turned": ("future-leaks",),
    "mask-weak": ("future-leaks", "mask-after-softmax"),
    "softmax-axis": ("softmax-axis",),
    "batch-mixed": ("batch-leaks",),
    "attention-scale": ("attention-scale",),
    "head-order": ("heads-mixed",),
    "layers-shared": ("layers-identical", "layers-shared"),
    "layers-skipped": ("parameter-unread",),
    "projection-unused": ("parameter-unread",),
    "positions-missing": ("positions-missing", "parameter-unread"),
    "positions-equal": ("positions-missing", "rotary-wrong"),
    "rotary-on-values": ("rotary-wrong",),
    "rotary-one-side": ("rotary-wrong",),
    "norm-missing": ("norm-bypassed", "placement-mixed"),
    "norm-wrong-one": ("norm-bypassed", "parameter-unread"),
    "final-norm-missing": ("final-norm-missing",),
    "norm-eps": ("norm-eps",),
    "non-finite": ("not-finite", "output-not-finite"),
    "norms-decayed": ("gains-decayed",),
    "init-large": ("start-std",),
    "init-small": ("start-std",),
    "init-depth": ("start-std",),
    "init-zero": ("start-std",),
    "logit-scale": ("initial-loss", "embedding-std"),
    "embedding-large": ("start-std", "embedding-std"),
    "residual-dropped": ("shortcut-missing",),
    "residual-doubled": ("shortcut-doubled",),
    "residual-after-norm": ("shortcut-after-norm",),
    "scale-stray": ("factor-unexplained",),
    "dropout-high": ("dropout-high",),
    "dropout-always": ("random-in-eval",),
    "gradient-cut": ("gradient-cut", "gradient-zero"),
    "frozen": ("frozen",),
    "last-only": ("last-position-only",),
}


def accepts(cause: str) -> tuple[str, ...]:
    return ACCEPTED.get(cause, ())


# The same of `watch`: its signals and the causes that its page gives them.
SIGNALS: dict[str, tuple[str, ...]] = {
    "zero-grad": ("zero-grad",),
    "same-batch": ("same-batch",),
    "labels-seen": ("labels", "low"),
    "labels-misaligned": ("labels",),
    "rate-spike": ("rise",),
    "rate-high": ("rise", "stall", "gradients", "unigram"),
    "rate-zero": ("updates", "stall"),
    "optimizer-other": ("updates",),
    "optimizer-missing": ("frozen",),
    "no-step": ("updates",),
    "frozen": ("frozen",),
    "gradient-cut": ("gradient",),
    "empty-batch": ("nonfinite",),
    "overflow": ("nonfinite",),
    "collapse": ("gradients", "unigram"),
}


def signals(cause: str) -> tuple[str, ...]:
    return SIGNALS.get(cause, ())
