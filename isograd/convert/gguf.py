"""A causal language model as one GGUF file, for llama.cpp and what is built on it.

    export_gguf(model, tokenizer, "model-gguf")          model-gguf/model.gguf

| architecture | model |
| --- | --- |
| gpt2 | pre-ln (or what folds into it) with LayerNorm, added positions, gelu_tanh |
| llama | pre-ln with RMSNorm, rotary positions, swiglu, no biases |

llama.cpp has no architecture for norms on the sum or inside a branch. Weights go through the class of transformers that
its own converter reads (GPT2LMHeadModel, LlamaForCausalLM), names through the table of the gguf library; GPT-2's
matrices are turned back, and the rows of LLaMA's W_Q and W_K put in pairs, as llama.cpp rotates neighbours.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from isograd.convert.checkpoints.folder import Source, Written
from isograd.convert.checkpoints.subwords import Subwords
from isograd.convert.checkpoints.vocabulary import pieces, save_tokenizer, special
from isograd.convert.hf.family import later
from isograd.convert.parity import ParityReport, hashes, measure
from isograd.convert.pretrained import ELSEWHERE, Fit, built, fit, silent
from isograd.convert.sample import Sample
from isograd.errors import InteropError, needed
from isograd.files import new_folder
from isograd.hub import from_pretrained
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradPreTrainedModel

FILE = "model.gguf"
EXACT = 1e-5
HALF = 1e-2  # of the largest logit: float16 keeps three digits of a weight
TURNED = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")  # of GPT-2, stored as (in, out)
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5  # llama.cpp's kinds of tokens
WHOLE = ("_norm.weight", ".bias", "position_embd.weight")  # in float32 also where matrices are in float16


def export_gguf(model: IsogradPreTrainedModel, tokenizer: Any, folder: str | Path, *, half: bool = False) -> Path:
    """Write model.gguf and the tokenizer's own files into a new folder; the model stays as it is.

    Args:
        tokenizer: a byte-level BPE that splits words as GPT-2 does (`level: bpe` of a recipe).
        half: matrices in float16.

    Raises:
        InteropError: a model or a tokenizer that llama.cpp has no place for, or a folder that is there already.
        ImportError: gguf is missing; the message names the extra.
    """
    (library,) = needed("export", "gguf")
    done = held(model)
    text = _byte_level(tokenizer)
    tensors = _tensors(done, library)
    with new_folder(folder) as part:
        writer = library.GGUFWriter(part / FILE, done.family.name)
        _add_shape(writer, done, library, half)
        _add_vocabulary(writer, tokenizer, text, done.model.config)
        for name, values in tensors.items():
            writer.add_tensor(name, values.astype(np.float16) if half and not name.endswith(WHOLE) else values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        save_tokenizer(tokenizer, part)
    return Path(folder)


def write(source: Source, folder: Path) -> Written:
    """One file for llama.cpp."""
    export_gguf(source.model, source.vocabulary("llama.cpp"), folder)
    report = measure_gguf(source.model, folder, source.sample, **source.facts)
    use = f'from llama_cpp import Llama\n\nprint(Llama(f"{{FOLDER}}/{FILE}")("text", max_tokens=50))'
    return Written(to="gguf", form="GGUF", library="gguf", use=use, report=report)


def measure_gguf(
    model: IsogradPreTrainedModel,
    folder: str | Path,
    sample: Sample | None = None,
    *,
    half: bool = False,
    **facts: Any,
) -> ParityReport:
    """The model against the file that `export_gguf` wrote, in float32, as transformers' own reader understands it.

    That reader was not written by us and undoes what llama.cpp's converter does. llama.cpp itself is not run here.

    Args:
        sample: None draws random ids.
        half: the file holds float16; then logits may differ by `HALF`.
        facts: of `measure`.
    """
    needed("export", "gguf")
    done = held(model)
    config = built(done).config  # the reader would take GPT-2's inner width and positions for the usual ones
    with silent():
        loaded = from_pretrained(getattr(transformers, done.class_name), folder, gguf_file=FILE, config=config)
    return measure(
        {"fp32": model},
        {"fp32": loaded.eval()},
        sample,
        about=f"{type(model).__name__} ({model.config.placement}) and a GGUF file ({done.family.name})",
        limits={"fp32": HALF if half else EXACT},
        files=hashes(folder),
        versions={"gguf": version("gguf")},
        notes=(*done.notes, "The file was read by transformers; llama.cpp was not run."),
        **facts,
    )


def held(model: IsogradPreTrainedModel) -> Fit:
    """The class of transformers that llama.cpp has an architecture for, coefficients folded.

    Raises:
        InteropError: it has none for this model.
    """
    if not isinstance(model, IsogradForCausalLM):
        raise InteropError(f"llama.cpp generates text from left to right, {type(model).__name__} does not; {ELSEWHERE}")
    config = model.config
    name = "llama" if config.position_embedding_type == "rotary" else "gpt2"
    if name == "gpt2" and config.hidden_act != "gelu_tanh":
        raise InteropError(f"llama.cpp's gpt2 computes gelu_tanh, and this model {config.hidden_act}; {ELSEWHERE}")
    if name == "llama":
        _refuse_beyond_llama(config)
    try:
        return fit(model, name)
    except InteropError as error:
        raise InteropError(f"llama.cpp's architecture {error}") from error


def _refuse_beyond_llama(config: IsogradConfig) -> None:
    if config.bias or config.bias_roles:
        raise InteropError(f"llama.cpp's llama has no biases, and this model has (bias=True); {ELSEWHERE}")
    if config.hidden_act != "swiglu":
        raise InteropError(
            f"llama.cpp's llama: its activation is one of swiglu, this model's is {config.hidden_act}; {ELSEWHERE}"
        )
    if others := sorted(set(later(config)) - {"num_key_value_heads"}):
        raise InteropError(f"llama.cpp's llama is written here without {', '.join(others)}; {ELSEWHERE}")


def _tensors(done: Fit, library: Any) -> dict[str, np.ndarray]:
    """Name in the file -> values in float32."""
    native: Any = built(done).float()
    config = done.model.config
    architecture = library.MODEL_ARCH.GPT2 if done.family.name == "gpt2" else library.MODEL_ARCH.LLAMA
    names = library.get_tensor_name_map(architecture, config.num_hidden_layers)
    out = {}
    for theirs, value in native.state_dict().items():
        if theirs == "lm_head.weight" and native.config.tie_word_embeddings:
            continue
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert name is not None, theirs
        if done.family.name == "gpt2" and name.endswith(TURNED):
            value = value.t()
        if done.family.name == "llama" and (which := name.rpartition(".attn_")[2]) in ("q.weight", "k.weight"):
            value = _paired(value, config.num_attention_heads if which == "q.weight" else config.key_value_heads)
        out[name] = value.contiguous().numpy()
    return out


def _paired(weight: Tensor, heads: int) -> Tensor:
    """Rows (first half, second half) of each head -> (first of both, second of both, ..)."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def _add_shape(writer: Any, done: Fit, library: Any, half: bool) -> None:
    config = done.model.config
    writer.add_name(f"isograd {done.model.config.placement}")
    writer.add_context_length(_positions(done))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(library.LlamaFileType.MOSTLY_F16 if half else library.LlamaFileType.ALL_F32)
    if done.family.name == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer.add_head_count_kv(config.key_value_heads)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
        writer.add_rope_freq_base(config.rope_theta)


def _positions(done: Fit) -> int:
    config = done.model.config
    return config.max_position_embeddings if done.family.name == "llama" else done.family.rows(config)


def _add_vocabulary(writer: Any, tokenizer: Any, text: Mapping[str, Any], config: Any) -> None:
    tokens = pieces(tokenizer, config.vocab_size)
    known = len(text["model"]["vocab"])
    controls = {entry["id"] for entry in text.get("added_tokens", []) if entry["special"]}
    kinds = [CONTROL if i in controls else NORMAL if i < known else UNUSED for i in range(len(tokens))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in text["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([UNKNOWN if token == "<unk>" else kind for token, kind in zip(tokens, kinds, strict=True)])
    writer.add_token_merges(merges)
    ends = {
        role: tokens.index(special(tokens, getattr(config, f"{role}_id"), role)) for role in ("bos_token", "eos_token")
    }
    writer.add_bos_token_id(ends["bos_token"])
    writer.add_eos_token_id(ends["eos_token"])
    if config.pad_token_id is not None:
        writer.add_pad_token_id(config.pad_token_id)
    writer.add_add_bos_token(False)


def _byte_level(tokenizer: Any) -> dict[str, Any]:
    """What tokenizer.json says of a byte-level BPE as GPT-2's.

    Raises:
        InteropError: another kind.
    """
    own = tokenizer.tokenizer if isinstance(tokenizer, Subwords) else tokenizer
    own = own if isinstance(own, Tokenizer) else getattr(own, "backend_tokenizer", None)
    if own is None:
        raise InteropError(f"llama.cpp's file holds its vocabulary, and {type(tokenizer).__name__} has none to write")
    text: dict[str, Any] = json.loads(own.to_str())
    splits = text["pre_tokenizer"] or {}
    wanted = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    if text["model"]["type"] != "BPE" or text["normalizer"] or any(splits.get(k) != v for k, v in wanted.items()):
        raise InteropError(
            f"llama.cpp reads a byte-level BPE that splits words as GPT-2 does, and this vocabulary is another"
            f" ({text['model']['type']}); {ELSEWHERE}"
        )
    return text
