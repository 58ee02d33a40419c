"""A trained model that translates: lines in, lines out in their order; and the scores of what it writes."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from isograd.convert.checkpoints.subwords import PairTokenizer
from isograd.errors import DataError, first_line
from isograd.lab.evaluate.loading import load_translation_model
from isograd.models import IsogradForSeq2SeqLM
from isograd.models.beam import EarlyStopping
from isograd.models.search import Hypothesis, translate_ids

if TYPE_CHECKING:
    from isograd.lab.evaluate.scores import Scores

Precision = Literal["fp32", "bf16"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
WINDOW = 1000  # lines that are sorted by length together

_BREAK = re.compile(r"[\r\n]+")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a translation is searched for; see `isograd.models.search`."""

    beam: int = 5
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    stretch: float = 1.0
    extra: int = 50
    tokens: int = 8192  # of a batch: sentences x beam x longest source

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("tokens", 1), ("stretch", 0), ("extra", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if not abs(self.length_penalty) <= 50:  # beyond it lengths to this power are no numbers
            raise ValueError(f"length_penalty={self.length_penalty} must be from -50 to 50")


@dataclass(frozen=True, kw_only=True)
class TranslatedLine:
    """What became of one line.

    Attributes:
        line: its number, from 1.
        text: "" of an empty line, and where it failed.
        score: sum of log-probabilities (nats) over length^length_penalty; None where nothing was searched.
        tokens: ids written, </s> included.
        failure: why there is no translation.
    """

    line: int
    text: str = ""
    score: float | None = None
    tokens: int = 0
    failure: str | None = None


class Translator:
    """A model and its vocabularies.

    Attributes:
        tokenized: it reads and writes text that is tokenised as Moses does.
    """

    def __init__(self, model: IsogradForSeq2SeqLM, tokenizer: PairTokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.tokenized = tokenizer.tokenized

    @classmethod
    def load(
        cls, name: str | Path, *, precision: Precision = "fp32", device: str | torch.device | None = None
    ) -> "Translator":
        """What `isograd train` left.

        Args:
            name: the folder of a run or of its model, or a model's name on the Hugging Face hub.
            precision: of weights and activations.
            device: None takes the GPU where there is one.

        Raises:
            DataError: no model there, or none that translates.
        """
        model, tokenizer = load_translation_model(name, DTYPES[precision])
        return cls(model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")), tokenizer)

    def options(self, **given: Any) -> SearchOptions:
        """What is not given is as the model's generation_config.json has it, which a run writes."""
        own = self.model.generation_config
        kept = {"beam": own.num_beams, "length_penalty": own.length_penalty, "early_stopping": own.early_stopping}
        return SearchOptions(**{name: value for name, value in kept.items() if value is not None} | given)

    def translate(
        self, lines: Iterable[str | bytes], *, window: int = WINDOW, **options: Any
    ) -> Iterator[TranslatedLine]:
        """A translation for every line, in the order of the lines.

        A line that cannot be translated does not stop the others: its translation is empty and says why.

        Args:
            lines: with or without their ends; bytes are UTF-8.
            window: lines that are read ahead, and sorted by length for the search.
            options: see `SearchOptions` and `options`.
        """
        return self.translate_windows(_windows(lines, window), **options)

    def translate_windows(self, windows: Iterable[Sequence[str | bytes]], **options: Any) -> Iterator[TranslatedLine]:
        """The same, each window of lines as it comes: a source that is slow gives small ones."""
        return self._in_order(windows, self.options(**options))

    def translate_all(self, lines: Sequence[str | bytes], first: int = 1, **options: Any) -> Iterator[TranslatedLine]:
        """The same for one window, each translation as soon as it is found, out of order.

        Args:
            first: number of the first line.
        """
        return self._found(lines, first, self.options(**options))

    def _in_order(self, windows: Iterable[Sequence[str | bytes]], how: SearchOptions) -> Iterator[TranslatedLine]:
        number = 1
        waiting: dict[int, TranslatedLine] = {}
        for window in windows:
            for translation in self._found(window, number, how):
                waiting[translation.line] = translation
                while number in waiting:
                    yield waiting.pop(number)
                    number += 1

    def _found(self, lines: Sequence[str | bytes], first: int, how: SearchOptions) -> Iterator[TranslatedLine]:
        texts: dict[int, str] = {}
        for number, line in enumerate(lines, start=first):
            try:
                texts[number] = _text(line)
            except UnicodeDecodeError as error:
                yield TranslatedLine(line=number, failure=f"not UTF-8 (byte 0x{error.object[error.start]:02x})")
        words = {number: text for number, text in texts.items() if text.strip()}
        yield from (TranslatedLine(line=number) for number in texts.keys() - words.keys())
        sources = dict(zip(words, self.tokenizer.source.encode(words.values()), strict=True))
        longest = self.model.encoder.longest or max(map(len, sources.values()), default=0)
        for number, ids in sources.items():
            if len(ids) > longest:
                yield TranslatedLine(line=number, failure=f"{len(ids)} tokens, and the model reads {longest} at most")
        yield from self._search({number: ids for number, ids in sources.items() if len(ids) <= longest}, how)

    def _search(self, sources: dict[int, list[int]], how: SearchOptions) -> Iterator[TranslatedLine]:
        """Where a search fails, the lines that are left are searched one by one, to know which of them it was."""
        left = dict(sources)
        numbers = list(sources)
        try:
            for index, hypotheses in translate_ids(self.model, list(sources.values()), **asdict(how)):
                del left[numbers[index]]
                yield self._written(numbers[index], hypotheses[0])
            return
        except (ValueError, torch.OutOfMemoryError) as error:
            why = first_line(error)
        if len(sources) == 1:
            yield TranslatedLine(line=numbers[0], failure=why)
            return
        for number, ids in left.items():
            yield from self._search({number: ids}, how)

    def _written(self, number: int, best: Hypothesis) -> TranslatedLine:
        (text,) = self.tokenizer.target.decode([best.tokens])
        text = _BREAK.sub(" ", text)  # a vocabulary of bytes can write one, which would shift all lines below
        return TranslatedLine(line=number, text=text, score=best.score, tokens=len(best.tokens))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores, and what they are of; `seconds` are those of the search, encoding and decoding included."""

    scores: "Scores"
    translations: list[TranslatedLine]
    seconds: float

    @property
    def failures(self) -> list[TranslatedLine]:
        return [t for t in self.translations if t.failure]

    @property
    def lines_per_second(self) -> float:
        return len(self.translations) / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Of those that were written."""
        return sum(t.tokens for t in self.translations) / self.seconds


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Evaluation:
    """Translate the sources and score the best hypothesis of each; a line that fails scores as an empty one.

    Args:
        progress: called with the number of lines translated so far.
        options: see `SearchOptions`.

    Raises:
        DataError: unequal counts, or no lines.
        ImportError: sacrebleu or sacremoses is missing; the message names the extra.
    """
    from isograd.lab.evaluate.scores import score  # translating alone needs neither of its libraries

    if len(sources) != len(references):
        raise DataError(f"{len(sources):,} sources for {len(references):,} references: scores compare line by line")
    began = time.perf_counter()
    found: list[TranslatedLine] = []
    for translation in translator.translate_all(sources, **options):
        found.append(translation)
        if progress:
            progress(len(found))
    seconds = time.perf_counter() - began
    found.sort(key=lambda translation: translation.line)
    scores = score(
        [translation.text for translation in found],
        references,
        tokenized=translator.tokenized,
        language=translator.tokenizer.languages[1],
    )
    return Evaluation(scores=scores, translations=found, seconds=seconds)


def _windows(lines: Iterable[str | bytes], size: int) -> Iterator[list[str | bytes]]:
    lines = iter(lines)
    while window := list(islice(lines, size)):
        yield window


def _text(line: str | bytes) -> str:
    text = line.decode("utf-8-sig") if isinstance(line, bytes) else line
    return text.rstrip("\r\n")
