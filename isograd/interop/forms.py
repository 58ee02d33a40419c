"""What is exported and what came of it; the kinds of models, and what transformers and the hub call them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.errors import InteropError
from isograd.interop.parity import ParityReport
from isograd.interop.sample import Sample
from isograd.models import (
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
    IsogradPreTrainedModel,
)


@dataclass(frozen=True, kw_only=True)
class Kind:
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


CAUSAL = Kind(
    about="a causal language model",
    cls=IsogradForCausalLM,
    auto="AutoModelForCausalLM",
    tag="text-generation",
    use='ids = model.generate(**tokenizer("{text}", return_tensors="pt"), max_new_tokens=50)\n'
    "print(tokenizer.decode(ids[0], skip_special_tokens=True))",
)
MASKED = Kind(
    about="a masked language model",
    cls=IsogradForMaskedLM,
    auto="AutoModelForMaskedLM",
    tag="fill-mask",
    use='logits = model(**tokenizer("{text}", return_tensors="pt")).logits',
)
CLASSIFIER = Kind(
    about="a sequence classifier",
    cls=IsogradForSequenceClassification,
    auto="AutoModelForSequenceClassification",
    tag="text-classification",
    use='logits = model(**tokenizer("{text}", return_tensors="pt")).logits',
)
PAIR = Kind(
    about="an encoder-decoder",
    cls=IsogradForSeq2SeqLM,
    auto="AutoModelForSeq2SeqLM",
    tag="translation",
    use='ids = model.generate(**tokenizer("{text}", return_tensors="pt"))\n'
    "print({writer}.decode(ids[0], skip_special_tokens=True))",
)


def kind_of(model: IsogradPreTrainedModel) -> Kind | None:
    """What a model is; None for one without a head."""
    return next((kind for kind in (CAUSAL, MASKED, CLASSIFIER, PAIR) if isinstance(model, kind.cls)), None)


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is exported.

    Args:
        folder: that the model came from.
        tokenizer: a `PairTokenizer` or one of transformers; None where there is none.
        sample: what the parity report is measured on.
        facts: of the report: hashes of the files in `folder`, a date.
    """

    folder: Path
    model: IsogradPreTrainedModel
    kind: Kind
    tokenizer: Any
    sample: Sample
    facts: Mapping[str, Any]

    def vocabulary(self, runtime: str) -> Any:
        """The tokenizer, without which the runtime has nothing to read."""
        if self.tokenizer is None:
            raise InteropError(f"{self.folder}: {runtime} needs a vocabulary, and no tokenizer lies beside the model")
        return self.tokenizer


@dataclass(frozen=True, kw_only=True)
class Written:
    """What came of it.

    Args:
        to: the class or format, as `--to` takes it.
        form: the class's own name, or the format's.
        library: that runs it, in the hub's words.
        use: lines of Python that load and run it.
        notes: what its user should know, a sentence each.
    """

    to: str
    form: str
    library: str
    use: str
    report: ParityReport
    notes: tuple[str, ...] = ()
