"""The classes of transformers that isograd's models fit into, and what each of them can hold.

A row is read from the class's own code: where its norms stand, whether their eps can be set, from which row of its
position table the first token reads, whether it multiplies token vectors by sqrt(d), which activations it knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isograd.interop import native_configs as configs
from isograd.interop.renaming import Norms
from isograd.models import IsogradConfig

Kind = Literal["causal", "masked", "classifier", "pair"]

KINDS: dict[Kind, str] = {
    "causal": "a causal language model",
    "masked": "a masked language model",
    "classifier": "a sequence classifier",
    "pair": "an encoder-decoder",
}
_PLAIN = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu_squared": "relu2"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A family of classes, and what it can hold.

    Args:
        model_type: transformers' name of it, the key of `isograd.interop.names.NAMES`.
        classes: kind of model -> class.
        options: our configuration -> the options of its own, but for those that all share.
        norms: where the norms of its layers may stand.
        rms: its norms are RMSNorm, else LayerNorm.
        eps: of its norms; None where its configuration sets it.
        embedding_norm: whether it has a norm on the embedding.
        positions: "table" holds any position that is added, "fixed" computes fairseq's sinusoids, "rotary".
        first: the row of the first position; "pad" is the one behind the pad token's id, and positions are then
            counted over the ids that are not pad.
        scales: it can multiply token vectors by sqrt(d).
        acts: our activations -> its names of them.
        head_act: the activation of its masked head, where that is not the layers'.
        projections: our projection norms it has.
        two_tables: the vocabularies of encoder and decoder may differ.
        head_bias: as an encoder-decoder it adds an offset to each logit.
        second_head: the class that says whether a second segment follows the first.
        unused: modules that it has, and that such a model never runs: they are filled with zeros.
    """

    model_type: str
    classes: Mapping[Kind, str]
    options: Callable[[IsogradConfig], dict[str, Any]]
    norms: tuple[Norms, ...]
    rms: bool = False
    eps: float | None = None
    embedding_norm: bool = False
    positions: Literal["table", "fixed", "permuted", "rotary"] = "table"
    first: int | Literal["pad"] = 0
    scales: bool = False
    acts: Mapping[str, str] = field(default_factory=lambda: _PLAIN)
    head_act: str | None = None
    projections: bool = False
    two_tables: bool = False
    head_bias: bool = False
    second_head: str | None = None
    unused: str | None = None

    @property
    def by_ids(self) -> bool:
        """Whether positions are counted over the ids that are not pad."""
        return self.first == "pad"


def _causal(name: str) -> dict[Kind, str]:
    return {"causal": name}


def _reads_both_ways(name: str) -> dict[Kind, str]:
    return {"masked": f"{name}ForMaskedLM", "classifier": f"{name}ForSequenceClassification"}


TARGETS: dict[str, Target] = {  # in the order in which "auto" looks at them
    "gpt2": Target(model_type="gpt2", classes=_causal("GPT2LMHeadModel"), options=configs.gpt2, norms=("pre",)),
    "opt": Target(
        model_type="opt",
        classes=_causal("OPTForCausalLM"),
        options=configs.opt,
        norms=("pre", "post"),
        eps=1e-5,
        first=2,
    ),
    "llama": Target(
        model_type="llama",
        classes=_causal("LlamaForCausalLM"),
        options=configs.llama,
        norms=("pre",),
        rms=True,
        positions="rotary",
        acts={"swiglu": "silu"},
    ),
    "qwen3": Target(
        model_type="qwen3",
        classes=_causal("Qwen3ForCausalLM"),
        options=configs.qwen3,
        norms=("pre",),
        rms=True,
        positions="rotary",
        acts={"swiglu": "silu"},
        projections=True,
    ),
    "gpt-neox": Target(
        model_type="gpt_neox",
        classes=_causal("GPTNeoXForCausalLM"),
        options=configs.gpt_neox,
        norms=("pre",),
        positions="rotary",
    ),
    "bert": Target(
        model_type="bert",
        classes=_reads_both_ways("Bert"),
        options=configs.bert,
        norms=("post",),
        embedding_norm=True,
        second_head="BertForPreTraining",
    ),
    "roberta": Target(
        model_type="roberta",
        classes=_reads_both_ways("Roberta"),
        options=configs.bert,
        norms=("post",),
        embedding_norm=True,
        first="pad",
        head_act="gelu",
    ),
    "roberta-prelayernorm": Target(
        model_type="roberta-prelayernorm",
        classes=_reads_both_ways("RobertaPreLayerNorm"),
        options=configs.bert,
        norms=("pre",),
        embedding_norm=True,
        first="pad",
        head_act="gelu",
    ),
    "megatron-bert": Target(
        model_type="megatron-bert",
        classes=_reads_both_ways("MegatronBert"),
        options=configs.bert,
        norms=("pre",),
        second_head="MegatronBertForPreTraining",
    ),
    "bart": Target(
        model_type="bart",
        classes={"pair": "BartForConditionalGeneration", "causal": "BartForCausalLM"},
        options=configs.bart,
        norms=("post",),
        eps=1e-5,
        embedding_norm=True,
        first=2,
        scales=True,
        head_bias=True,
        unused="encoder_attn",
    ),
    "mbart": Target(
        model_type="mbart",
        classes={"pair": "MBartForConditionalGeneration", "causal": "MBartForCausalLM"},
        options=configs.bart,
        norms=("pre",),
        eps=1e-5,
        embedding_norm=True,
        first=2,
        scales=True,
        head_bias=True,
        unused="encoder_attn",
    ),
    "fsmt": Target(
        model_type="fsmt",
        classes={"pair": "FSMTForConditionalGeneration"},
        options=configs.fsmt,
        norms=("post",),
        eps=1e-5,
        first="pad",
        scales=True,
        two_tables=True,
    ),
    "marian": Target(
        model_type="marian",
        classes={"pair": "MarianMTModel"},
        options=configs.marian,
        norms=("post",),
        eps=1e-5,
        positions="permuted",
        scales=True,
        head_bias=True,
        two_tables=True,
    ),
    "m2m100": Target(
        model_type="m2m_100",
        classes={"pair": "M2M100ForConditionalGeneration"},
        options=configs.bart,
        norms=("pre",),
        eps=1e-5,
        positions="fixed",
        first="pad",
        scales=True,
    ),
    "blenderbot": Target(
        model_type="blenderbot",
        classes={"pair": "BlenderbotForConditionalGeneration"},
        options=configs.bart,
        norms=("pre",),
        eps=1e-5,
        scales=True,
        head_bias=True,
    ),
}
