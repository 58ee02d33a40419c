"""A translator or a causal language model as a folder that CTranslate2 runs: C++, int8, no torch.

    export_ctranslate2(model, tokenizer, "model-ct2", quantization="int8")
    ctranslate2.Translator("model-ct2").translate_batch([tokens], beam_size=5)

CTranslate2 knows two placements, post-ln and pre-ln (its `pre_norm`), with LayerNorm or RMSNorm, and norms on the
queries and keys of each head in self-attention; coefficients are folded first, and a norm anywhere else is refused. Its
beam search is fairseq's, as ours is with `early_stopping=True`: the same scores, </s> counted in the length.
"""

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from isograd.errors import ExportError, needed
from isograd.files import new_folder
from isograd.interop.ctranslate2_spec import ACTIVATIONS, specification
from isograd.interop.fold import fold
from isograd.interop.vocabulary import pieces, save_tokenizer, sides, special
from isograd.models import IsogradForCausalLM, IsogradForSeq2SeqLM, IsogradModel, IsogradPreTrainedModel
from isograd.transformer.attention import Attention
from isograd.transformer.norms import LayerNorm, RMSNorm
from isograd.transformer.parameters import Coefficient
from isograd.transformer.sublayer import Constant, ScaledAdd, Sublayer

Quantization = Literal["int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"]
Holds = IsogradForSeq2SeqLM | IsogradForCausalLM

ELSEWHERE = "export it to onnx, or as isograd's own class"


def export_ctranslate2(
    model: IsogradPreTrainedModel, tokenizer: Any, folder: str | Path, *, quantization: Quantization | None = None
) -> Path:
    """Write the model, its vocabularies and its tokenizer into a new folder; coefficients are folded on the way.

    Args:
        model: an encoder-decoder, or a causal language model; it stays as it is.
        tokenizer: a `PairTokenizer`, or one of the `tokenizers` library or of transformers.
        quantization: how the weights are stored; None keeps float32.

    Raises:
        ExportError: a model that CTranslate2 cannot hold, or a folder that is there already.
        FoldError: coefficients that cannot be folded.
        ImportError: ctranslate2 is missing; the message names the extra.
    """
    needed("export", "ctranslate2")
    plain = held(model)
    spec = specification(plain)
    _set_vocabularies(spec, plain, tokenizer)
    spec.config.layer_norm_epsilon = plain.config.norm_eps
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(folder) as part:
        spec.save(str(part))
        save_tokenizer(tokenizer, part)
    return Path(folder)


def held(model: IsogradPreTrainedModel) -> Holds:
    """The model as CTranslate2 can hold it: folded where it has coefficients, in float32 at least.

    Raises:
        ExportError: CTranslate2 has no place for a part of it; the message names the part.
    """
    if not isinstance(model, IsogradForSeq2SeqLM | IsogradForCausalLM):
        raise ExportError(f"CTranslate2 translates and generates, and {type(model).__name__} does neither; {ELSEWHERE}")
    config = model.config
    if config.hidden_act not in ACTIVATIONS:
        raise ExportError(f"CTranslate2 has no activation {config.hidden_act!r}; {ELSEWHERE}")
    _refuse_norms(model)
    if torch.promote_types(model.dtype, torch.float32) != model.dtype:
        model = copy.deepcopy(model).float()  # folded weights are not rounded to 8 bits again
    return fold(model, untie=True) if _has_coefficients(model) else model


def _has_coefficients(model: nn.Module) -> bool:
    return any(isinstance(module, Coefficient | Constant | ScaledAdd) for module in model.modules())


def _refuse_norms(model: Holds) -> None:
    for tower in [module for module in model.modules() if isinstance(module, IsogradModel)]:
        if tower.stack == "encoder" and not isinstance(tower.embedding.project, nn.Identity):
            raise ExportError(f"CTranslate2's encoder reads token vectors of its own width only; {ELSEWHERE}")
        sublayers = [module for module in tower.modules() if isinstance(module, Sublayer)]
        for sublayer in sublayers:
            _refuse_norms_of(sublayer)
        if len({type(sublayer.post) for sublayer in sublayers}) > 1:
            raise ExportError(
                f"the {tower.stack} has norms before the branch in some sublayers and on the sum in others, and"
                f" CTranslate2 has one flag for all; {ELSEWHERE}"
            )
        if len({type(module) for module in tower.modules() if isinstance(module, LayerNorm | RMSNorm)}) > 1:
            raise ExportError(f"the {tower.stack} has LayerNorm and RMSNorm side by side; {ELSEWHERE}")


def _refuse_norms_of(sublayer: Sublayer) -> None:
    branch, site = sublayer.branch, sublayer.site
    inside = {"mid": branch.mid, "out": sublayer.out}
    if isinstance(branch, Attention):
        inside["value"] = branch.value_norm
        if branch.is_cross or not branch.normed_by_head:  # its cross-attention leaves such norms out without a word
            inside |= {"query": branch.query_norm, "key": branch.key_norm}
    for name, norm in inside.items():
        if not isinstance(norm, nn.Identity):
            where = {"mid": "before the last projection", "out": "on the branch's output"}.get(name, f"on each {name}")
            raise ExportError(
                f"{site.kind} in layer {site.layer} of the {site.stack} has a norm {where} ({name}), which CTranslate2"
                f" has no place for; {ELSEWHERE}"
            )
    if isinstance(sublayer.pre, nn.Identity) == isinstance(sublayer.post, nn.Identity):
        both = "no norm" if isinstance(sublayer.pre, nn.Identity) else "norms before the branch and on the sum"
        raise ExportError(
            f"{site.kind} in layer {site.layer} of the {site.stack} has {both}; CTranslate2 wants one or the other:"
            f" {ELSEWHERE}"
        )


def _set_vocabularies(spec: Any, model: Holds, tokenizer: Any) -> None:
    """Tokens by id, and which of them are special."""
    source, target = sides(tokenizer)
    tokens = pieces(target, model.config.vocab_size)
    config = spec.config
    config.eos_token = special(tokens, model.config.eos_token_id, "eos_token")
    config.bos_token = special(tokens, model.config.bos_token_id, "bos_token")
    config.unk_token = "<unk>" if "<unk>" in tokens else config.eos_token
    if isinstance(model, IsogradForCausalLM):
        spec.register_vocabulary(tokens)
        return
    spec.register_source_vocabulary(pieces(source, model.encoder.embedding.tokens.num_embeddings))
    spec.register_target_vocabulary(tokens)
    config.decoder_start_token = special(tokens, model.config.decoder_start_token_id, "eos_token")
