"""Which codes name which cause: read from the codes' names and titles, judged by the cause and not by any result."""

from re import search
from typing import Any

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


# The same of `watch`: a signal, and what its cause has to say; words that any list of suspects holds do not count.
SIGNALS: dict[str, dict[str, str]] = {
    "zero-grad": {"zero-grad": r"zero_grad"},
    "same-batch": {"same-batch": r"one batch"},
    "labels-seen": {"labels": r"wrong way", "low": r"not shifted"},
    "labels-misaligned": {"labels": r"same samples|wrong place"},
    "rate-spike": {"rise": r"rate jumped|a rate that was too much"},
    "rate-high": {"rise": r"rate is (far )?too high", "stall": r"rate is too high", "gradients": r"learning rate"},
    "rate-zero": {"updates": r"rate is 0", "stall": r"learning rate is"},
    "optimizer-other": {"updates": r"holds none|holds other"},
    "optimizer-missing": {"frozen": r"does not hold"},
    "no-step": {"updates": r"step\(\) is not called"},
    "frozen": {"frozen": r"requires_grad"},
    "gradient-cut": {"gradient": r"detach"},
    "empty-batch": {"nonfinite": r"0 / 0"},
    "overflow": {"nonfinite": r"overflow"},
    "loss-sum": {"loss-sum": r"summed"},
    "decay-high": {"decay": r"weight"},
    "sign": {"rise": r"maximized"},
    "optimizer-eps": {"stall": r"eps"},
    "clip": {"stall": r"clip"},
    "data": {"rise": r"data"},
    "weights-lost": {"rise": r"other weights"},
    "collapse": {"gradients": r"norms", "unigram": r"no context"},
}


def signals(cause: str) -> tuple[str, ...]:
    return tuple(SIGNALS.get(cause, ()))


def named(cause: str, warning: dict[str, Any]) -> bool:
    """Whether a warning of `watch` names the cause."""
    pattern = SIGNALS.get(cause, {}).get(str(warning["signal"]))
    return pattern is not None and search(pattern, str(warning["cause"])) is not None
