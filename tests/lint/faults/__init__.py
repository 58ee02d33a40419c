"""Known faults of Transformers, rebuilt small, each with a twin that differs in the fault alone.

FAULTS names them: builder of the faulty model, builder of its healthy twin, the code that `isograd check` must give.
OPTIONS are what `check` needs to detect one; BESIDES are codes that come with a fault and are right.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tests.lint.faults import initialization, options, reading, wiring
from tests.lint.faults.plain import post, pre, xavier
from tests.lint.faults.pretrained import SmallForMaskedLM, SmallForSeq2SeqLM, small

Builder = Callable[[], nn.Module]
Pair = tuple[Builder, Builder, str]

_WIRING: dict[str, Pair] = {
    "torch-encoder-without-norm": (
        lambda: wiring.torch_encoder(norm_first=True, final=False),
        lambda: wiring.torch_encoder(norm_first=True, final=True),
        "final-norm-missing",
    ),
    "torch-decoder-without-norm": (
        lambda: wiring.torch_decoder(final=False),
        lambda: wiring.torch_decoder(final=True),
        "final-norm-missing",
    ),
    "decoder-without-final-norm": (wiring.without_final, pre, "final-norm-missing"),
    "qk-norm-not-applied": (
        lambda: pre(layer=wiring.ForgottenNormLayer),
        lambda: pre(layer=wiring.NormedLayer),
        "parameter-unused",
    ),
    "one-post-among-pre": (wiring.one_post_among_pre, pre, "placement-mixed"),
    "no-transformer": (wiring.no_transformer, pre, "not-found"),
}
_STARTS: dict[str, Pair] = {
    "embedding-of-torch": (initialization.torchs_embedding, pre, "initial-loss"),
    "feedforward-of-torch": (initialization.torchs_feedforward, pre, "init-std"),
    "one-large-out": (initialization.one_large_out, pre, "init-std"),
    "head-of-one": (lambda: initialization.own_head(1.0), lambda: initialization.own_head(0.02), "initial-loss"),
}
_READING: dict[str, Pair] = {
    "causal-unmasked": (lambda: small(reading.UnmaskedForCausalLM), small, "future-leaks"),
    "causal-off-by-one": (lambda: small(reading.OffByOneForCausalLM), small, "future-leaks"),
    "causal-off-by-one-plain": (reading.off_by_one, pre, "future-leaks"),
    "causal-convolution": (lambda: reading.convolved(1), lambda: reading.convolved(2), "future-leaks"),
    "padding-ignored": (
        lambda: small(reading.DeafForMaskedLM),
        lambda: small(SmallForMaskedLM),
        "padding-leaks",
    ),
    "padding-as-factor": (
        lambda: small(reading.FactorForMaskedLM),
        lambda: small(SmallForMaskedLM),
        "padding-leaks",
    ),
    "encoder-not-handed-on": (
        lambda: small(reading.SelfishForSeq2SeqLM),
        lambda: small(SmallForSeq2SeqLM),
        "encoder-unused",
    ),
    "translator-not-handed-on": (
        lambda: reading.SelfishTranslator().eval(),
        lambda: reading.Translator().eval(),
        "encoder-unused",
    ),
}
_OPTIONS: dict[str, Pair] = {
    "embedding-not-tied": (lambda: small(options.UntiedForCausalLM), small, "embedding-untied"),
    "eps-large": (lambda: options.eps(1e-2), lambda: options.eps(1e-5), "norm-eps"),
    "post-ln-36": (lambda: xavier(post(36)), lambda: xavier(pre(36)), "collapse-predicted"),
}
FAULTS: dict[str, Pair] = _WIRING | _STARTS | _READING | _OPTIONS

OPTIONS: Mapping[str, dict[str, Any]] = {"post-ln-36": {"lr": 1e-3}}
BESIDES: Mapping[str, frozenset[str]] = {
    "encoder-not-handed-on": frozenset({"parameter-unused"}),
    "translator-not-handed-on": frozenset({"parameter-unused"}),
}
