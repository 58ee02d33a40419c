"""A translator or a causal language model as a folder that CTranslate2 runs: C++, int8, no torch.

    export_ctranslate2(model, tokenizer, "model-ct2", quantization="int8")
    ctranslate2.Translator("model-ct2").translate_batch([tokens], beam_size=5)

CTranslate2 knows two placements, post-ln and pre-ln (its `pre_norm`), with LayerNorm or RMSNorm, and norms on the
queries and keys of each head in self-attention; of a causal model also grouped heads of any width and scale, and rotary
positions in a part of their features. Coefficients are folded first, and a norm anywhere else is refused. Its beam
search is fairseq's, as ours is with `early_stopping=True`: the same scores, </s> counted in the length.

| ours | CTranslate2's |
| --- | --- |
| `embedding.tokens`, its scale, `embedding.norm` | `embeddings`, `scale_embeddings`, `layernorm_embedding` |
| positions, learned or computed, and token type 0 | `position_encodings.encodings`, a table from position 0 on |
| `attn.branch.query`, `key`, `value`; `out` | `self_attention.linear[0]`, one matrix; `[1]` |
| `cross.branch.query`; `key`, `value`; `out` | `attention.linear[0]`; `[1]`; `[2]` |
| `ffn.branch.into`, `out`; with a gate `gate`, `into` | `ffn.linear_0`, `linear_1`; `linear_0`, `linear_0_noact` |
| `query_norm`, `key_norm` of an attention | its `q_norm`, `k_norm`, over each head |
| `pre` or `post` of a sublayer; the stack's `norm` | its `layer_norm`; `layer_norm` |
| `embedding.project`, `project` of a decoder | `project_in`, `project_out` |
| `lm_head` | `decoder.projection` |
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from isograd.convert.checkpoints.folder import Source, Written
from isograd.convert.checkpoints.vocabulary import pieces, save_tokenizer, sides, special
from isograd.convert.folding import fold
from isograd.convert.hf.family import beyond
from isograd.convert.parity import ParityPart, ParityReport, Runner, hashes, measure
from isograd.convert.pretrained import ELSEWHERE
from isograd.convert.sample import Batch, Sample, random_sample
from isograd.errors import InteropError, needed
from isograd.files import new_folder
from isograd.models import IsogradForCausalLM, IsogradForSeq2SeqLM, IsogradModel, IsogradPreTrainedModel
from isograd.models.search import search
from isograd.transformer.attention import Attention
from isograd.transformer.feedforward import FeedForward, GatedFeedForward
from isograd.transformer.norms import LayerNorm, RMSNorm
from isograd.transformer.parameters import Coefficient
from isograd.transformer.stack import Layer
from isograd.transformer.sublayer import Constant, ScaledAdd, Sublayer

Quantization = Literal["int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"]
Holds = IsogradForSeq2SeqLM | IsogradForCausalLM

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "swiglu": "SWISH"}
LONGEST = 1024  # tokens that CTranslate2 reads of a source by default
EXACT = 1e-5
QUANTIZED = 0.2  # of the largest logit: weights of 8 bits move it by some hundredths
EXTRA = 50  # tokens beyond the source that a translation may have, on both sides


def export_ctranslate2(
    model: IsogradPreTrainedModel, tokenizer: Any, folder: str | Path, *, quantization: Quantization | None = None
) -> Path:
    """Write the model, its vocabularies and its tokenizer into a new folder; coefficients are folded on the way.

    Args:
        model: an encoder-decoder, or a causal language model; it stays as it is.
        tokenizer: a `PairTokenizer`, or one of the `tokenizers` library or of transformers.
        quantization: how the weights are stored; None keeps float32.

    Raises:
        InteropError: a model that CTranslate2 cannot hold, or a folder that is there already.
        FoldError: coefficients that cannot be folded.
        ImportError: ctranslate2 is missing; the message names the extra.
    """
    needed("export", "ctranslate2")
    plain = held(model)
    spec = _specification(plain)
    _set_vocabularies(spec, plain, tokenizer)
    spec.config.layer_norm_epsilon = plain.config.norm_eps
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(folder) as part:
        spec.save(str(part))
        save_tokenizer(tokenizer, part)
    return Path(folder)


def write(source: Source, folder: Path, quantization: Quantization | None = None) -> Written:
    """The folder that CTranslate2's Translator or Generator reads."""
    tokenizer, model = source.vocabulary("CTranslate2"), source.model
    export_ctranslate2(model, tokenizer, folder, quantization=quantization)
    assert isinstance(model, Holds)
    report = measure_ctranslate2(model, tokenizer, folder, source.sample, quantization=quantization, **source.facts)
    pair = isinstance(model, IsogradForSeq2SeqLM)
    name, call = ("Translator", "translate_batch") if pair else ("Generator", "generate_batch")
    use = f"import ctranslate2\n\nresults = ctranslate2.{name}(FOLDER).{call}([tokens])"
    to = f"ctranslate2-{quantization}" if quantization else "ctranslate2"
    return Written(to=to, form="CTranslate2", library="ctranslate2", use=use, report=report)


def measure_ctranslate2(
    model: Holds,
    tokenizer: Any,
    folder: str | Path,
    sample: Sample | None = None,
    *,
    quantization: Quantization | None = None,
    **facts: Any,
) -> ParityReport:
    """The model against the folder that `export_ctranslate2` wrote from it, in float32 on one thread of the CPU.

    A generator gives logits. A translator gives no logits of a given target but its log-probabilities, so these are
    compared, and what both generate by the same rules: greedy, and on real sentences beam 5 with `early_stopping=True`,
    which is CTranslate2's rule. Any length is allowed: it would shut </s> out before the softmax, ours does after it.

    Args:
        sample: None draws random ids.
        quantization: what the folder was written with; then logits may differ by `QUANTIZED`, and nothing is written.
        facts: of `measure`.
    """
    (library,) = needed("export", "ctranslate2")
    sample = random_sample(model) if sample is None else sample
    options = {"device": "cpu", "inter_threads": 1, "intra_threads": 1}
    options["compute_type"] = "default" if quantization else "float32"
    pair = isinstance(model, IsogradForSeq2SeqLM)
    if isinstance(model, IsogradForSeq2SeqLM):
        ours: ParityPart = _ours(copy.deepcopy(model).float())
        theirs = _translator(model, tokenizer, library.Translator(str(folder), **options))
    else:
        ours = model
        theirs = _generator(model, tokenizer, library.Generator(str(folder), **options))
    if quantization:
        sample = replace(sample, prompts=())
    beams = (1, 5) if pair and sample.kind != "random ids" else (1,)
    notes = ["Compared are the log-probabilities of given targets."] if pair else []
    return measure(
        {"fp32": ours},
        {"fp32": theirs},
        sample,
        about=f"{type(model).__name__} and CTranslate2" + (f" ({quantization})" if quantization else ""),
        limits={"fp32": QUANTIZED if quantization else EXACT},
        beams=beams,
        files=hashes(folder),
        versions={"ctranslate2": library.__version__},
        notes=notes,
        **facts,
    )


def held(model: IsogradPreTrainedModel) -> Holds:
    """The model as CTranslate2 can hold it: folded where it has coefficients, in float32 at least.

    Raises:
        InteropError: CTranslate2 has no place for a part of it; the message names the part.
    """
    if not isinstance(model, IsogradForSeq2SeqLM | IsogradForCausalLM):
        raise InteropError(
            f"CTranslate2 translates and generates, and {type(model).__name__} does neither; {ELSEWHERE}"
        )
    config = model.config
    if config.hidden_act not in ACTIVATIONS:
        raise InteropError(f"CTranslate2 has no activation {config.hidden_act!r}; {ELSEWHERE}")
    _refuse_norms(model)
    if torch.promote_types(model.dtype, torch.float32) != model.dtype:
        model = copy.deepcopy(model).float()  # folded weights are not rounded to 8 bits again
    return fold(model, untie=True) if _has_coefficients(model) else model


def _has_coefficients(model: nn.Module) -> bool:
    return any(isinstance(module, Coefficient | Constant | ScaledAdd) for module in model.modules())


def _said(model: Holds) -> set[str]:
    """Options of attention and positions that its decoder has too, where it reads nothing but itself."""
    if not isinstance(model, IsogradForCausalLM):
        return set()
    rules = model.config.rope_rules().values()
    plain = all(rule.get("rope_type", "default") == "default" for rule in rules) and len(rules) <= 1
    said = {
        "num_key_value_heads",
        "head_dim",
        "attention_multiplier",
        "rope_interleaved",
        "scale_embedding",
        "bias_roles",
    }
    return said | ({"rope_parameters"} if plain and model.config.rotary_layers is None else set())


def _refuse_norms(model: Holds) -> None:
    if reason := next(beyond(model.config, _said(model)), None):
        raise InteropError(f"CTranslate2 cannot hold it: {reason}; {ELSEWHERE}")
    for stack in [module for module in model.modules() if isinstance(module, IsogradModel)]:
        if stack.stack == "encoder" and not isinstance(stack.embedding.project, nn.Identity):
            raise InteropError(f"CTranslate2's encoder reads token vectors of its own width only; {ELSEWHERE}")
        sublayers = [module for module in stack.modules() if isinstance(module, Sublayer)]
        for sublayer in sublayers:
            _refuse_norms_of(sublayer)
        if len({type(sublayer.post) for sublayer in sublayers}) > 1:
            raise InteropError(
                f"the {stack.stack} has norms before the branch in some sublayers and on the sum in others, and"
                f" CTranslate2 has one flag for all; {ELSEWHERE}"
            )
        if len({type(module) for module in stack.modules() if isinstance(module, LayerNorm | RMSNorm)}) > 1:
            raise InteropError(f"the {stack.stack} has LayerNorm and RMSNorm side by side; {ELSEWHERE}")


def _refuse_norms_of(sublayer: Sublayer) -> None:
    branch, site = sublayer.branch, sublayer.site
    inside = {"mid": branch.mid, "out": sublayer.out}
    if isinstance(branch, Attention):
        inside["value"] = branch.value_norm
        if branch.is_cross or not branch.norm_per_head:  # its cross-attention leaves such norms out without a word
            inside |= {"query": branch.query_norm, "key": branch.key_norm}
    for name, norm in inside.items():
        if not isinstance(norm, nn.Identity):
            where = {"mid": "before the last projection", "out": "on the branch's output"}.get(name, f"on each {name}")
            raise InteropError(
                f"{site.kind} in layer {site.layer} of the {site.stack} has a norm {where} ({name}), which CTranslate2"
                f" has no place for; {ELSEWHERE}"
            )
    if isinstance(sublayer.pre, nn.Identity) == isinstance(sublayer.post, nn.Identity):
        both = "no norm" if isinstance(sublayer.pre, nn.Identity) else "norms before the branch and on the sum"
        raise InteropError(
            f"{site.kind} in layer {site.layer} of the {site.stack} has {both}; CTranslate2 wants one or the other;"
            f" {ELSEWHERE}"
        )


def _specification(model: IsogradForSeq2SeqLM | IsogradForCausalLM) -> Any:
    """CTranslate2's specification with the model's weights in float32; vocabularies are not in it yet."""
    (specs,) = needed("export", "ctranslate2.specs.transformer_spec")
    if isinstance(model, IsogradForSeq2SeqLM):
        encoder, decoder = _stack(model.encoder), _stack(model.decoder)
        _set_linear(decoder.projection, model.lm_head)
        return specs.TransformerSpec(encoder, decoder)
    decoder = _stack(model.model)
    _set_linear(decoder.projection, model.lm_head)
    return specs.TransformerDecoderModelSpec(decoder)


def _stack(stack: IsogradModel) -> Any:
    common, specs = needed("export", "ctranslate2.specs.common_spec", "ctranslate2.specs.transformer_spec")
    config, embedding = stack.config, stack.embedding
    options: dict[str, Any] = {
        "pre_norm": True,  # here only: whether there is a final norm is asked beside it
        "no_final_norm": isinstance(stack.norm, nn.Identity),
        "activation": getattr(common.Activation, ACTIVATIONS[config.hidden_act]),
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.hidden_act == "swiglu",
        "rms_norm": any(isinstance(module, RMSNorm) for module in stack.modules()),
        "qk_norm": True,  # taken out where there is none
    }
    if stack.rotary:
        share = config.rope_of("full_attention").get("partial_rotary_factor", 1.0)
        turned = 0 if share == 1.0 else int(config.head_size * share)
        options |= {"rotary_dim": turned, "rotary_interleave": config.rope_interleaved}
        options["rotary_base"] = config.rope_theta
    layers = [layer for layer in stack.layers if isinstance(layer, Layer)]
    depth, heads = len(layers), config.num_attention_heads
    if stack.causal:
        cross = layers[0].cross is not None
        options |= {"with_encoder_attention": cross, "project_in_out": True}
        if config.key_value_heads != heads:
            options["num_heads_kv"] = config.key_value_heads
        if config.head_size * heads != config.hidden_size:
            options["head_dim"] = config.head_size
        spec = specs.TransformerDecoderSpec(depth, heads, **options)
        table = spec.embeddings
        _set_projection(spec, "project_in", embedding.project)
        _set_projection(spec, "project_out", stack.project)
    else:
        spec = specs.TransformerEncoderSpec(depth, heads, **options)
        table = spec.embeddings[0]
    spec.pre_norm = isinstance(layers[0].attn.post, nn.Identity)
    table.weight = _values(embedding.tokens.weight)
    spec.scale_embeddings = False if embedding.scale == 1.0 else float(embedding.scale)
    if not stack.rotary:
        spec.position_encodings.encodings = _positions(stack)
    _set_norm(getattr(spec, "layernorm_embedding", None), embedding.norm)
    _set_norm(getattr(spec, "layer_norm", None), stack.norm)
    for ours, theirs in zip(layers, spec.layer, strict=True):
        _set_attention(theirs.self_attention, ours.attn)
        if ours.cross is not None:
            _set_attention(theirs.attention, ours.cross)
        _set_feedforward(theirs.ffn, ours.ffn)
    return spec


def _positions(stack: IsogradModel) -> Tensor:
    """What is added at position 0, 1, ..: without a table here CTranslate2 would add sinusoids of its own."""
    config, embedding = stack.config, stack.embedding
    rows = config.max_position_embeddings if stack.longest else max(config.max_position_embeddings, LONGEST)
    table = torch.zeros(rows, config.hidden_size)
    if embedding.positions is not None:
        table += _values(embedding.positions(torch.arange(rows) + config.position_offset))
    if embedding.types is not None:
        table += _values(embedding.types.weight[0])
    return table


def _set_attention(spec: Any, sublayer: Sublayer) -> None:
    branch = sublayer.branch
    assert isinstance(branch, Attention)
    _set_norm(spec.layer_norm, sublayer.pre if isinstance(sublayer.post, nn.Identity) else sublayer.post)
    groups = (
        [[branch.query], [branch.key, branch.value]] if branch.is_cross else [[branch.query, branch.key, branch.value]]
    )
    for linear, group in zip(spec.linear, [*groups, [branch.out]], strict=True):
        _set_linear(linear, *group)
    if branch.scaling != branch.head_size**-0.5:
        spec.queries_scale = np.float32(branch.scaling)
    (common,) = needed("export", "ctranslate2.specs.common_spec")
    for name, norm in (("q_norm", branch.query_norm), ("k_norm", branch.key_norm)):
        if isinstance(norm, nn.Identity):
            delattr(spec, name)
        else:
            setattr(spec, name, common.LayerNormSpec(rms_norm=isinstance(norm, RMSNorm)))
            _set_norm(getattr(spec, name), norm)


def _set_feedforward(spec: Any, sublayer: Sublayer) -> None:
    branch = sublayer.branch
    assert isinstance(branch, FeedForward)
    _set_norm(spec.layer_norm, sublayer.pre if isinstance(sublayer.post, nn.Identity) else sublayer.post)
    if isinstance(branch, GatedFeedForward):
        _set_linear(spec.linear_0, branch.gate)
        _set_linear(spec.linear_0_noact, branch.into)
    else:
        _set_linear(spec.linear_0, branch.into)
    _set_linear(spec.linear_1, branch.out)


def _set_linear(spec: Any, *projections: nn.Linear) -> None:
    """The projections on top of each other."""
    spec.weight = _values(torch.cat([projection.weight for projection in projections]))
    if any(projection.bias is not None for projection in projections):
        biases: list[Tensor] = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in projections]
        spec.bias = _values(torch.cat(biases))


def _set_projection(spec: Any, name: str, projection: nn.Module) -> None:
    """Between token vectors, or the head, of another width and the decoder; CTranslate2's encoder has none."""
    if isinstance(projection, nn.Linear):
        _set_linear(getattr(spec, name), projection)
    else:
        delattr(spec, name)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    if isinstance(norm, nn.Identity):
        return
    spec.gamma = _values(norm.weight)
    if hasattr(spec, "beta"):
        spec.beta = _values(norm.bias)


def _values(tensor: Any) -> Tensor:
    """A copy: CTranslate2 quantises in place."""
    return torch.as_tensor(tensor).detach().to("cpu", torch.float32, copy=True).contiguous()


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


def _ours(model: IsogradForSeq2SeqLM) -> Runner:
    def logits(batch: Batch) -> Tensor:
        with torch.inference_mode():
            logits = model(**batch).logits
        return logits.log_softmax(dim=-1).gather(2, _next(model, batch)[..., None])

    def generate(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        ids, mask, limit = prompt["input_ids"], prompt["attention_mask"], _limit(model, prompt)
        options: dict[str, Any] = {"min_length": 0, "early_stopping": True, "stretch": 0.0, "extra": limit}
        found = search(model, ids, mask, beam=beams, limit=limit, **options)
        return [_shortened(best.tokens[:-1], beams, new_tokens, limit) for best, *_ in found]

    return Runner(logits=logits, generate=generate)


def _translator(model: IsogradForSeq2SeqLM, tokenizer: Any, library: Any) -> Runner:
    source, target = sides(tokenizer)
    read = pieces(source, model.encoder.embedding.tokens.num_embeddings)
    written = pieces(target, model.config.vocab_size)
    own = model.config
    pad = None if own.pad_token_id in (None, own.eos_token_id) else [[written[own.pad_token_id]]]

    def logits(batch: Batch) -> Tensor:
        """Log-probabilities of the next tokens, </s> after the last one: (batch, time, 1)."""
        sources = _tokens(batch["input_ids"], batch["attention_mask"], read)
        targets = _tokens(batch["decoder_input_ids"], batch["decoder_attention_mask"], written)
        out = torch.zeros(*batch["decoder_input_ids"].shape, 1)
        for row, found in enumerate(library.score_batch(sources, [tokens[1:] for tokens in targets])):
            out[row, : len(found.log_probs), 0] = torch.tensor(found.log_probs)
        return out

    def generate(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        limit = _limit(model, prompt)
        found = library.translate_batch(
            _tokens(prompt["input_ids"], prompt["attention_mask"], read),
            beam_size=beams,
            length_penalty=1.0,
            max_decoding_length=limit,
            min_decoding_length=0,
            return_end_token=True,
            suppress_sequences=pad if beams == 1 else None,  # in a beam it would change the probabilities of the others
        )
        end = model.config.eos_token_id
        ids = [[written.index(token) for token in result.hypotheses[0]] for result in found]
        return [_shortened(row[:-1] if row[-1] == end else row, beams, new_tokens, limit) for row in ids]

    return Runner(logits=logits, generate=generate)


def _generator(model: Holds, tokenizer: Any, library: Any) -> Runner:
    tokens = pieces(sides(tokenizer)[1], model.config.vocab_size)

    def logits(batch: Batch) -> Tensor:
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        rows = [row[:length] for row, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        out = torch.zeros(*batch["input_ids"].shape, len(tokens))
        found = torch.from_numpy(np.array(library.forward_batch(rows)))
        out[:, : found.shape[1]] = found
        return out

    def generate(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        prompts = _tokens(prompt["input_ids"], prompt["attention_mask"], tokens)
        options = {"beam_size": beams, "max_length": new_tokens, "include_prompt_in_result": False}
        return [result.sequences_ids[0] for result in library.generate_batch(prompts, **options)]

    return Runner(logits=logits, generate=generate)


def _next(model: IsogradForSeq2SeqLM, batch: Batch) -> Tensor:
    """What each place of the decoder is to write: (batch, time), </s> at the last one that counts."""
    ids, lengths = batch["decoder_input_ids"], batch["decoder_attention_mask"].sum(dim=1)
    ids = ids.roll(-1, dims=1)
    ids[torch.arange(len(ids)), lengths - 1] = model.config.eos_token_id
    return ids


def _tokens(ids: Tensor, mask: Tensor, known: list[str]) -> list[list[str]]:
    """Rows of strings, without padding."""
    return [
        [known[i] for i in row[:length]] for row, length in zip(ids.tolist(), mask.sum(dim=1).tolist(), strict=True)
    ]


def _limit(model: IsogradForSeq2SeqLM, prompt: Batch) -> int:
    """Tokens before </s> that either search may write for these sources."""
    return min(int(prompt["attention_mask"].sum(dim=1).max()) + EXTRA, model.config.max_position_embeddings - 1)


def _shortened(ids: list[int], beams: int, new_tokens: int, limit: int) -> list[int]:
    """The beginning of what is written greedily, which may never end; a hypothesis of a beam as a whole.

    One that was stopped at the limit is none: ours ends it with </s> there and scores that, CTranslate2 does not.
    """
    return ids[:new_tokens] if beams == 1 else ids if len(ids) < limit else []
