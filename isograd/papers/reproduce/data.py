"""The corpora that items want, as they lie below `--data FOLDER`, and what stands in for them without it."""

from pathlib import Path
from typing import Any

from isograd.papers.reproduce.item import Corpus

_NUMBERS = {
    "pairs.train": ["numbers"],
    "pairs.valid": [],
    "pairs.vocab_size": 400,
    "pairs.tokenized": False,
    "pairs.source": "de",
    "pairs.target": "en",
}


def _pairs(folder: str, train: str, valid: str, **settings: Any) -> dict[str, Any]:
    own = {f"pairs.{name}": value for name, value in settings.items()}
    return {"pairs.train": [f"{folder}/{train}"], "pairs.valid": [f"{folder}/{valid}"], **own}


IWSLT14 = Corpus(
    name="IWSLT14 German to English, 48,879 of the 160,239 training pairs",
    folder="iwslt14-de-en",
    files=("train-subset.de.gz", "train-subset.en.gz", "valid.de.gz", "valid.en.gz"),
    settings=_pairs("{folder}", "train-subset", "valid", tokenized=True),
    embedded=_NUMBERS,
    embedded_name="number words",
)
WMT_EN_DE = Corpus(
    name="English to German: 68,349 pairs of WMT's sources; newstest2013",
    folder="wmt-de-en",
    files=("train-mix.de.gz", "train-mix.en.gz", "newstest2013.de.gz", "newstest2013.en.gz"),
    settings=_pairs("{folder}", "train-mix", "newstest2013", tokenized=False, source="en", target="de"),
    embedded=_NUMBERS,
    embedded_name="number words",
)
MULTI30K = Corpus(
    name="Multi30k, 29,000 captions, German to English",
    folder="multi30k-de-en",
    files=("train.de.gz", "train.en.gz", "valid.de.gz", "valid.en.gz"),
    settings=_pairs("{folder}", "train", "valid", tokenized=False),
    embedded=_NUMBERS,
    embedded_name="number words",
)
TATOEBA_EN_FR = Corpus(
    name="Tatoeba, 163,000 short sentences, English to French",
    folder="tatoeba-fr-en",
    files=("train.fr.gz", "train.en.gz", "valid.fr.gz", "valid.en.gz"),
    settings=_pairs("{folder}", "train", "valid", tokenized=False, source="en", target="fr"),
    embedded=_NUMBERS,
    embedded_name="number words",
)
CAPTIONS = Corpus(
    name="the English captions of Multi30k, as characters",
    folder="multi30k-de-en",
    files=("train.en.gz",),
    settings={"data.source": "{folder}/train.en.gz"},
    embedded={"data.source": "embedded"},
    embedded_name="the embedded text",
)
_BYTES = {"data.source": "embedded", "data.valid": None, "data.documents": "file", "data.vocab_size": 1024}
WIKIPEDIA = Corpus(
    name="English Wikipedia, a quarter of 13,595 articles",
    folder="wikipedia-en",
    files=("train-0of4.txt.xz", "valid.txt.gz"),
    settings={
        "data.source": "{folder}/train-0of4.txt.xz",
        "data.valid": "{folder}/valid.txt.gz",
        "data.documents": "blank-line",
    },
    embedded=_BYTES,
    embedded_name="the embedded text",
)
WIKITEXT2 = Corpus(
    name="WikiText-2, its tokens as text",
    folder="wikitext-2",
    files=("wiki.train.tokens.gz", "wiki.valid.tokens.gz"),
    settings={"data.source": "{folder}/wiki.train.tokens.gz", "data.valid": "{folder}/wiki.valid.tokens.gz"},
    embedded=_BYTES,
    embedded_name="the embedded text",
)


def glue(task: str) -> Corpus:
    """GLUE's files of one task, such as "MRPC"; nothing stands in for them."""
    return Corpus(name=f"GLUE's {task}", folder="glue", files=(task,), settings={"glue.source": "{folder}"})


def found(corpus: Corpus, data: Path | None) -> tuple[dict[str, Any] | None, str]:
    """The settings that this corpus makes, and its name; None with the reason where it is not there."""
    if data is not None and data.is_file():
        return _own_text(corpus, data)
    if data is None:
        if corpus.embedded is None:
            return None, f"no data: --data FOLDER with {corpus.folder}/ ({corpus.name})"
        return dict(corpus.embedded), corpus.embedded_name
    folder = (data / corpus.folder).resolve()
    for name in corpus.files:
        if not (folder / name).exists():
            return None, f"no data: {corpus.folder}/{name} is not there below --data"
    return {key: _filled(value, str(folder)) for key, value in corpus.settings.items()}, corpus.name


def _own_text(corpus: Corpus, file: Path) -> tuple[dict[str, Any] | None, str]:
    """One plain text in the place of the corpus, of which the last twentieth is held out."""
    if corpus.embedded is None or "data.source" not in corpus.embedded:
        return None, f"no data: {file.name} is one text, and this item reads {corpus.folder}/ below --data FOLDER"
    return {**corpus.embedded, "data.source": str(file.resolve())}, f"the text {file.name}"


def _filled(value: Any, folder: str) -> Any:
    if isinstance(value, list):
        return [_filled(one, folder) for one in value]
    return value.replace("{folder}", folder) if isinstance(value, str) else value
