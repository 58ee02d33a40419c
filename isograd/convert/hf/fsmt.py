"""FSMT: fairseq's translators of two vocabularies; it reads one token at a time where it has a cache."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from isograd.convert.hf.bart import BART, COUNTS, ROW, names
from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.kinds import PAIR
from isograd.models import IsogradConfig
from isograd.models.base import CACHE


def _write(config: IsogradConfig) -> dict[str, Any]:
    return {
        "src_vocab_size": config.encoder_vocab_size or config.vocab_size,
        "tgt_vocab_size": config.vocab_size,
        "langs": ["source", "target"],
        "num_beams": 1,
        "max_length": config.max_position_embeddings,
        "use_cache": False,  # with it FSMT reads one token; generate asks for it
    }


class _Fsmt(Family):
    def head(self, theirs: Any) -> Any:
        """Not its `get_output_embeddings`, which is the decoder's table, tied or not."""
        return theirs.model.decoder.output_projection

    def complete(self, native: Any) -> None:
        """Rows before pad are never read, and what the class computes there."""
        for stack in (native.model.encoder, native.model.decoder):
            table = stack.embed_positions
            own = table.get_embedding(*table.weight.shape, table.padding_idx)
            with torch.no_grad():
                table.weight[: table.padding_idx] = own[: table.padding_idx].to(table.weight)

    def in_fp64(self, native: PreTrainedModel) -> nn.Module:
        """Its causal mask overflows in fp64."""
        return Stepwise(native)

    def comparable(self, native: PreTrainedModel) -> nn.Module:
        return Stepwise(native)


class Stepwise(nn.Module):
    """An encoder-decoder whose decoder reads one token after the other, with a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, **_: Any) -> Any:
        memory = self.model.get_encoder()(input_ids, attention_mask=attention_mask)
        past, found = None, []
        for token in decoder_input_ids.split(1, dim=1):
            out = self.model(
                encoder_outputs=memory,
                attention_mask=attention_mask,
                decoder_input_ids=token,
                use_cache=True,
                **{CACHE: past},
            )
            past = getattr(out, CACHE)
            found.append(out.logits)
        return Seq2SeqLMOutput(logits=torch.cat(found, dim=1))

    def can_generate(self) -> bool:
        return True

    def generate(self, **options: Any) -> Any:
        self.model.generation_config = self.generation_config
        return self.model.generate(**options)


FAMILIES = (
    _Fsmt(
        name="fsmt",
        classes={PAIR: "FSMTForConditionalGeneration"},
        placement="post-ln",
        computes="sinusoidal",
        first="pad",
        two_tables=True,
        names=names({}, "model.decoder.output_projection"),
        **ROW | {"parts": (BART, COUNTS, FamilyPart(write=_write))},
    ),
)
