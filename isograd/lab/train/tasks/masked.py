"""Masked language modelling (BERT, RoBERTa): some tokens of a sequence from all the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from isograd.errors import RecipeError
from isograd.lab.train.tasks.base import GRADIENT, LABEL, OUTCOME, RATIO, SIZE, SPEED, VALIDATION, Column, config_from
from isograd.lab.train.tasks.language import OnText, TextData, TextRun

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from isograd.lab.data import Corpus
    from isograd.lab.data.masking import MaskedSequences, SegmentPairs
    from isograd.models import IsogradConfig


@dataclass(frozen=True, kw_only=True)
class MaskedData(TextData):
    """`packing` is how sequences are cut, in RoBERTa's words; see `isograd.lab.data.masking`."""

    packing: Literal["full-sentences", "segment-pair"] = "full-sentences"
    mask: float = 0.15  # of the tokens are predicted: of these
    mask_random: float = 0.1  # are replaced by another token,
    mask_kept: float = 0.1  # stay as they are, and the rest becomes <mask>

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask <= 1:
            raise RecipeError(
                f"data.mask={self.mask} must be above 0 and at most 1: what is not masked is not predicted"
            )
        for key in ("mask_random", "mask_kept"):
            if not 0 <= getattr(self, key) <= 1:
                raise RecipeError(f"data.{key}={getattr(self, key)} must be in [0, 1]")
        if self.mask_random + self.mask_kept > 1:
            raise RecipeError(
                f"data.mask_random={self.mask_random} and data.mask_kept={self.mask_kept} are above 1 together"
            )
        if self.length < 4:
            raise RecipeError(f"data.length={self.length} leaves no room beside <s> and </s>; it must be at least 4")
        if self.packing == "segment-pair" and self.length < 5:
            raise RecipeError(f"data.length={self.length} has no room for <s> A </s> B </s>; it must be at least 5")


@dataclass(frozen=True, kw_only=True)
class MaskedRun(TextRun):
    """A run of a masked language model."""

    task: Literal["masked"] = "masked"
    data: MaskedData = field(default_factory=MaskedData)

    @property
    def predicted(self) -> float:
        return self.data.mask

    @property
    def has_mask(self) -> bool:
        return True

    @property
    def pairs(self) -> bool:
        """Whether a sequence is two segments: then the model has token types and BERT's second head."""
        return self.data.packing == "segment-pair"

    def config_with(self, **facts: Any) -> "IsogradConfig":
        second = {"type_vocab_size": 2, "next_sentence": True} if self.pairs else {}
        return config_from(self, max_position_embeddings=self.data.length, is_decoder=False, **second, **facts)


class MaskedLanguageModelling(OnText):
    """See `Task`."""

    name = "masked"
    model = "IsogradForMaskedLM"
    recipe = MaskedRun
    stacks = ("encoder",)
    columns = (
        LABEL,
        OUTCOME,
        Column(name="final loss", short="final", field="final_loss", form="{:.3f}", spare=4),
        VALIDATION,
        Column(name="perplexity", short="ppl", field="exp_validation_loss", spare=2),
        RATIO,
        replace(SPEED, spare=3),
        SIZE,
    )
    captions = MappingProxyType(
        {
            "page": "Final loss: mean of the last 20 steps, nats per masked token; perplexity: exp of the"
            " validation loss.",
            "table": f"losses in nats per masked token; g1/gL: {GRADIENT}",
        }
    )
    run: MaskedRun
    samples: "MaskedSequences | SegmentPairs"

    def __init__(self, run: MaskedRun, corpus: "Corpus | None" = None) -> None:
        super().__init__(run, corpus)
        self.comparable &= not run.pairs  # the training loss holds that of the second head, too

    def tokens_per_update(self) -> float:
        """Tokens read, predicted or not."""
        return self.run.tokens_per_update

    def _targets(self, rows: "Mapping[str, Tensor]") -> int:
        return len(rows["masked_positions"])

    def _predicted(self, rows: "Mapping[str, Tensor]") -> "Tensor":
        return rows["labels"].flatten()[rows["masked_positions"]]

    def _scored(self, rows: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        return {name: value for name, value in rows.items() if name != "next_sentence_label"}

    def _sequences(self, ids: Any, samples: int | None, seed: int | None) -> "MaskedSequences | SegmentPairs":
        import numpy as np

        from isograd.lab.data.masking import MaskedSequences, Masking, SegmentPairs

        data, tokenizer = self.run.data, self.corpus.tokenizer
        special, ordinary = self._special()
        rates: dict[str, Any] = {"rate": data.mask, "random": data.mask_random, "kept": data.mask_kept}
        masking = Masking(mask=special["mask"], ordinary=ordinary, **rates)
        ends = {"begin": special["begin"], "end": special["end"]}
        if not self.run.pairs:
            return MaskedSequences(ids, data.length, masking, **ends, samples=samples, seed=seed)
        pad = special["pad"]
        word = np.array([tokenizer.decode([i])[:1].isspace() for i in range(tokenizer.get_vocab_size())])  # begins one
        return SegmentPairs(ids, data.length, masking, **ends, pad=pad, word=word, samples=samples, seed=seed)

    def _special(self) -> "tuple[dict[str, int], np.ndarray | None]":
        """Ids of <mask>, <s>, </s> and <pad>; and the ordinary ids, where a tokenizer of another library has them."""
        from isograd.convert.checkpoints.tokenizers import MASK, SPECIAL

        if self.pretrained:
            return self.pretrained.masked_ids()
        known = self.corpus.tokenizer.get_vocab()
        roles = {"begin": "bos_token", "end": "eos_token", "pad": "pad_token"}
        return {"mask": known[MASK]} | {role: known[SPECIAL[token]] for role, token in roles.items()}, None
