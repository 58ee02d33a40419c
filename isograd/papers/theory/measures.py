"""How each claim's number is measured: a function of (subject, seeds). Loads torch, which the claims do not."""

import math

from isograd.papers.theory import amplification, gradients, lemmas, residuals
from isograd.papers.theory.claim import Measure

MEASURES: dict[str, Measure] = {  # by the claim's name, in the order of the claims
    "lemma-1": lemmas.lemma_1,
    "lemma-2-post-ln": lemmas.lemma_2_level,
    "lemma-2-pre-ln": lemmas.lemma_2_growth,
    "lemma-3": lemmas.lemma_3,
    "theorem-1": gradients.theory_exponent,
    "theorem-1-attention": gradients.attention_exponent,
    "last-layer-exponents": gradients.attention_exponent,
    "hidden-state-growth": gradients.stream_exponent,
    "decoder-vanishing": gradients.per_layer("decoder"),
    "decoder-vanishing-xavier": gradients.per_layer("decoder"),
    "encoder-level": gradients.per_layer("encoder"),
    "mismatch-12": gradients.first_over_last(12),
    "mismatch-48": gradients.first_over_last(48),
    "admin-skip": amplification.skip_exponent,
    "amplification": amplification.dependency,
    "amplification-depth": amplification.amplification,
    "amplification-linear": amplification.explained(float),
    "amplification-log": amplification.explained(math.log),
    "amplification-log-or-root": amplification.log_over_root,
    "keel-shares": residuals.shares_of_branches,
    "keel-gradients": gradients.first_over_last(48),
    "keel-sensitivity": amplification.amplification,
    "branch-norm-scale": residuals.worst(12, residuals.outputs_enlarged),
    "branch-norm-growth": residuals.worst_mean(12, residuals.growth, 1, 1),
    "layernorm-scaling-growth": lemmas.last_level,
    "layerscale-sensitivity": residuals.layerscale_square,
    "identity-at-init": residuals.worst(12, residuals.deeper),
    "variance-gate-level": residuals.worst_mean(
        12, residuals.drift, 0, 0, position_embedding_type="none", hidden_size=128
    ),
    "residual-gradients": residuals.first_of_one_stack,
    "residual-decoder-gradients": residuals.first_of_decoder,
    "siamesenorm-limits": residuals.one_of_two_streams,
    "first-input-direction": residuals.worst(12, residuals.turned),
    "begins-as-pre-ln": residuals.as_pre_ln(residuals.COPIES),
    "affine-begins-as-pre-ln": residuals.as_pre_ln(),
    "mhc-doubly-stochastic": residuals.worst(12, residuals.sums_of_mixes, 1, 1),
    "mhc-product": residuals.worst(48, residuals.sums_of_product, 1, 1),
    "streams-without-a-mix": residuals.level_exponent(48),
    "attention-over-depth": residuals.worst(6, residuals.unequal_sources),
    "qk-norm-bound": residuals.worst(6, residuals.logits_over_bound),
    "gate-variance": residuals.mean(6, residuals.gate_shares),
    "qk-clip": residuals.worst(1, residuals.clipped, 0, 1),
    "qk-clip-stack": residuals.worst(6, residuals.clipped, 0, 1),
    "qk-clip-idle": residuals.worst(6, residuals.touched),
    "ngpt-sphere": residuals.worst(6, residuals.lengths),
    "ngpt-angle": residuals.worst_mean(6, residuals.angles, 3, 3),
}
