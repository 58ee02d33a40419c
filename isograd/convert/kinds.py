"""The kinds of models, and what transformers and the hub call them."""

from dataclasses import dataclass

from isograd.models import (
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
    IsogradPreTrainedModel,
)


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """A kind of model.

    Attributes:
        about: in words.
        cls: our class of it.
        auto: transformers' Auto class.
        tag: the hub's pipeline tag.
        use: Python that runs `model` on a {text}; {writer} is the tokenizer of what it writes.
    """

    about: str
    cls: type[IsogradPreTrainedModel]
    auto: str
    tag: str
    use: str


CAUSAL = ModelKind(
    about="a causal language model",
    cls=IsogradForCausalLM,
    auto="AutoModelForCausalLM",
    tag="text-generation",
    use='ids = model.generate(**tokenizer("{text}", return_tensors="pt"), max_new_tokens=50)\n'
    "print(tokenizer.decode(ids[0], skip_special_tokens=True))",
)
MASKED = ModelKind(
    about="a masked language model",
    cls=IsogradForMaskedLM,
    auto="AutoModelForMaskedLM",
    tag="fill-mask",
    use='logits = model(**tokenizer("{text}", return_tensors="pt")).logits',
)
CLASSIFIER = ModelKind(
    about="a sequence classifier",
    cls=IsogradForSequenceClassification,
    auto="AutoModelForSequenceClassification",
    tag="text-classification",
    use='logits = model(**tokenizer("{text}", return_tensors="pt")).logits',
)
PAIR = ModelKind(
    about="an encoder-decoder",
    cls=IsogradForSeq2SeqLM,
    auto="AutoModelForSeq2SeqLM",
    tag="translation",
    use='ids = model.generate(**tokenizer("{text}", return_tensors="pt"))\n'
    "print({writer}.decode(ids[0], skip_special_tokens=True))",
)

KINDS = (CAUSAL, MASKED, CLASSIFIER, PAIR)


def kind_of(model: IsogradPreTrainedModel) -> ModelKind | None:
    """What a model is; None for one without a head."""
    return next((kind for kind in KINDS if isinstance(model, kind.cls)), None)
