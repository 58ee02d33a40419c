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
    "positions-missing": ("positions-missing", "parameter-unread"),
    "positions-equal": ("positions-missing", "rotary-wrong"),
    "rotary-on-values": ("rotary-wrong",),
    "rotary-one-side": ("rotary-wrong",),
    "projection-unused": ("parameter-unread",),
    "residual-dropped": ("shortcut-missing",),
    "residual-doubled": ("shortcut-doubled",),
    "residual-after-norm": ("shortcut-after-norm",),
    "scale-stray": ("factor-unexplained",),
    "final-norm-missing": ("final-norm-missing",),
    "norm-missing": ("norm-bypassed", "placement-mixed", "parameter-unread"),
    "norm-wrong-one": ("norm-bypassed", "parameter-unread"),
    "norm-axis": ("norm-axis",),
    "norm-scale": ("norm-scale",),
    "norm-weight": ("norm-weights",),
    "norm-eps": ("norm-eps",),
    "no-activation": ("ffn-linear",),
    "activation-on-stream": ("stream-bent",),
    "dropout-high": ("dropout-high",),
    "dropout-always": ("random-in-eval",),
    "layers-shared": ("layers-identical", "layers-shared"),
    "layers-skipped": ("parameter-unread",),
    "unregistered": ("unregistered",),
    "init-zero": ("weights-zero", "start-std"),
    "init-large": ("init-large", "start-std"),
    "init-small": ("init-small", "start-std"),
    "init-depth": ("init-depth", "start-std"),
    "init-constant": ("weights-constant", "weights-partial"),
    "init-mean": ("weights-mean",),
    "init-partial": ("weights-partial",),
    "embedding-zero": ("weights-zero",),
    "embedding-large": ("init-large", "start-std", "embedding-std"),
    "position-large": ("positions-large",),
    "logit-scale": ("initial-loss", "embedding-std"),
    "non-finite": ("not-finite", "output-not-finite"),
    "gradient-cut": ("gradient-cut",),
    "frozen": ("frozen",),
    "last-only": ("last-position-only",),
    "probabilities": ("probabilities",),
    "optimizer-missing": ("optimizer-missing",),
    "optimizer-other": ("optimizer-other",),
    "rate-zero": ("rate-zero",),
    "rate-high": ("rate-high",),
    "norms-decayed": ("norms-decayed", "gains-decayed"),
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
