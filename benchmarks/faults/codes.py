"""Which codes name which cause: read from the codes' names and titles, judged by the cause and not by any result."""

from re import search
from typing import Any

ACCEPTED: dict[str, tuple[str, ...]] = {
    "no-mask": ("future-leaks",),
    "mask-shifted": ("future-leaks", "mask-blocks-self"),
    "mask-turned": ("future-leaks",),
    "mask-weak": ("future-leaks", "mask-after-softmax"),
    "softmax-axis": ("softmax-axis",),
    "batch-mixed": ("batch-leaks",),
    "attention-scale": ("attention-scale",),
    "head-order": ("heads-mixed",),
    "positions-missing": ("positions-missing", "parameter-unused"),
    "positions-equal": ("positions-missing", "rotary-wrong"),
    "rotary-on-values": ("rotary-wrong",),
    "rotary-one-side": ("rotary-wrong",),
    "projection-unused": ("parameter-unused",),
    "residual-dropped": ("shortcut-missing",),
    "residual-doubled": ("shortcut-doubled",),
    "residual-after-norm": ("shortcut-after-norm",),
    "scale-stray": ("factor-unexplained",),
    "final-norm-missing": ("final-norm-missing",),
    "norm-missing": ("norm-bypassed", "placement-mixed", "parameter-unused"),
    "norm-wrong-one": ("norm-bypassed", "parameter-unused"),
    "norm-axis": ("norm-axis",),
    "norm-scale": ("norm-scale",),
    "norm-weight": ("norm-weights",),
    "norm-eps": ("norm-eps",),
    "no-activation": ("ffn-linear",),
    "activation-on-stream": ("activation-on-stream",),
    "dropout-high": ("dropout-high",),
    "dropout-always": ("random-in-eval",),
    "layers-shared": ("layers-shared",),
    "layers-skipped": ("parameter-unused",),
    "unregistered": ("unregistered",),
    "init-zero": ("weights-zero", "init-std"),
    "init-large": ("init-large", "init-std"),
    "init-small": ("init-small", "init-std"),
    "init-depth": ("init-std",),
    "init-constant": ("weights-constant", "weights-partial"),
    "init-mean": ("weights-mean",),
    "init-partial": ("weights-partial",),
    "embedding-zero": ("weights-zero",),
    "embedding-large": ("init-large", "init-std", "initial-loss"),
    "position-large": ("positions-large",),
    "logit-scale": ("initial-loss",),
    "non-finite": ("not-finite", "output-not-finite"),
    "gradient-cut": ("gradient-cut",),
    "frozen": ("frozen",),
    "last-only": ("last-position-only",),
    "softmax-output": ("softmax-output",),
    "optimizer-lacks-parameters": ("optimizer-lacks-parameters",),
    "optimizer-of-another-model": ("optimizer-of-another-model",),
    "lr-zero": ("lr-zero",),
    "lr-high": ("lr-high",),
    "norms-decayed": ("norms-decayed",),
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
    "lr-high": {"rise": r"rate is (far )?too high", "stall": r"rate is too high", "gradients": r"learning rate"},
    "lr-zero": {"updates": r"rate is 0", "stall": r"learning rate is"},
    "optimizer-of-another-model": {"updates": r"holds none|holds other"},
    "optimizer-lacks-parameters": {"frozen": r"does not hold|no optimizer holds"},
    "no-step": {"updates": r"step\(\) is not called"},
    "frozen": {"frozen": r"requires_grad"},
    "gradient-cut": {"gradient": r"detach"},
    "empty-batch": {"nonfinite": r"0 / 0"},
    "overflow": {"nonfinite": r"overflow"},
    "loss-sum": {"loss-sum": r"summed"},
    "weight-decay-high": {"decay": r"weight"},
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
