"""Which codes name which cause: read from the codes' names and titles, judged by the cause and not by any result."""

ACCEPTED: dict[str, tuple[str, ...]] = {
    "no-mask": ("future-leaks",),
    "mask-shifted": ("future-leaks",),
    "mask-turned": ("future-leaks",),
    "mask-weak": ("future-leaks",),
    "softmax-axis": ("softmax-axis",),
    "layers-shared": ("layers-identical", "layers-shared"),
    "layers-skipped": ("parameter-unread",),
    "projection-unused": ("parameter-unread",),
    "positions-missing": ("parameter-unread",),
    "norm-missing": ("placement-mixed",),
    "norm-wrong-one": ("parameter-unread",),
    "final-norm-missing": ("final-norm-missing",),
    "norm-eps": ("norm-eps",),
    "non-finite": ("not-finite",),
    "norms-decayed": ("gains-decayed",),
    "init-large": ("start-std",),
    "init-small": ("start-std",),
    "init-depth": ("start-std",),
    "init-zero": ("start-std",),
    "logit-scale": ("initial-loss", "embedding-std"),
    "embedding-large": ("start-std", "embedding-std"),
    "residual-dropped": ("placement-mixed", "not-found"),
}


def accepts(cause: str) -> tuple[str, ...]:
    return ACCEPTED.get(cause, ())
