"""Hugging Face models, registered with the Auto classes when this package is imported."""

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from isograd.models.base import IsogradModel, IsogradPreTrainedModel
from isograd.models.causal import IsogradForCausalLM
from isograd.models.config import IsogradConfig
from isograd.models.masked import IsogradForMaskedLM, IsogradForSequenceClassification
from isograd.models.seq2seq import IsogradForSeq2SeqLM

AutoConfig.register("isograd", IsogradConfig, exist_ok=True)
AutoModelForCausalLM.register(IsogradConfig, IsogradForCausalLM, exist_ok=True)
AutoModelForMaskedLM.register(IsogradConfig, IsogradForMaskedLM, exist_ok=True)
AutoModelForSeq2SeqLM.register(IsogradConfig, IsogradForSeq2SeqLM, exist_ok=True)
AutoModelForSequenceClassification.register(IsogradConfig, IsogradForSequenceClassification, exist_ok=True)

__all__ = [
    "IsogradConfig",
    "IsogradForCausalLM",
    "IsogradForMaskedLM",
    "IsogradForSeq2SeqLM",
    "IsogradForSequenceClassification",
    "IsogradModel",
    "IsogradPreTrainedModel",
]
