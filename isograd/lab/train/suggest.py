"""A first recipe for somebody's own text or parallel text, which trains in about a minute.

What is in the text decides the settings; `new-text.yaml` and `new-pairs.yaml` beside this file are filled with them.
"""

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from isograd.errors import DataError
from isograd.lab.data.pairs import COLUMNS, find_pairs, lines_of
from isograd.text import JSON_LINES, OPEN, Ends, file_kind, file_text, is_file, json_rows, read

BATCH, UPDATES = 16, 400  # some forty seconds of one core
SPLIT = 20  # one part of so many is held out
ALPHABET = 300  # characters up to which each is a token, where the text is short
SHORT = 1_000_000  # characters of such a text
PER_TOKEN = 3.5  # characters of a BPE token
EPOCHS = 4  # from which on dropout pays
PARTS = 20  # between blank lines, from which on they are documents
PART = 200  # characters of such a part, the median
TOKENS = 2048  # of an update on pairs, about a minute of two cores
LEAST = 200  # pairs
DROPOUT_BELOW = 50_000  # pairs; fewer are read many times


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Of a text.

    Attributes:
        distinct: how many different characters.
        documents: as `ends` parts them.
        field: the key of the text, in JSON lines.
    """

    characters: int
    distinct: int
    documents: int
    ends: Ends
    field: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is chosen, and why."""

    level: str
    vocab_size: int
    length: int
    layers: int
    dropout: float
    epochs: float


def look(sources: Sequence[str]) -> Facts:
    """Read a text.

    Raises:
        DataError: it cannot be read, or is too short to hold out a part of it.
    """
    field = next((_field(Path(one)) for one in sources if file_kind(Path(one)) in JSON_LINES), "text")
    documents = read(sources, field)
    ends: Ends = "file"
    if all(is_file(one) and file_kind(Path(one)) not in (*JSON_LINES, ".parquet") for one in sources):
        parts = read(sources, field, documents="blank-line")
        if len(parts) >= PARTS and statistics.median(len(text) for _, text in parts) >= PART:
            documents, ends = parts, "blank-line"
    characters = sum(len(text) for _, text in documents)
    least = 2 * SPLIT * min(_LENGTHS)
    if characters < least:
        raise DataError(f"{', '.join(sources)}: {characters:,} characters; a first run needs at least {least:,}")
    distinct = len(set().union(*(set(text) for _, text in documents)))
    return Facts(characters=characters, distinct=distinct, documents=len(documents), ends=ends, field=field)


def _field(path: Path) -> str:
    """The key with the longest text, in the first row of JSON lines."""
    _, row = next(json_rows(file_text(path), path))
    texts = {key: len(value) for key, value in row.items() if isinstance(value, str)} if isinstance(row, dict) else {}
    if not texts:
        raise DataError(f"{path}: the first row has no text; expected rows such as {json.dumps({'text': '..'})}")
    return "text" if "text" in texts else max(texts, key=lambda key: texts[key])


_LENGTHS = (32, 64, 128)


def choose(facts: Facts) -> Settings:
    """Level, length and depth for a text.

    >>> choose(Facts(characters=40_000, distinct=60, documents=1, ends="file", field="text"))
    Settings(level='char', vocab_size=512, length=128, layers=4, dropout=0.1, epochs=21.6)
    """
    char = facts.distinct <= ALPHABET and facts.characters < SHORT
    tokens = facts.characters if char else facts.characters / PER_TOKEN
    fitting = [length for length in _LENGTHS if tokens >= 2 * SPLIT * length]
    length = max(fitting, default=min(_LENGTHS))
    epochs = UPDATES * BATCH * length / (tokens * (1 - 1 / SPLIT))
    return Settings(
        level="char" if char else "bpe",
        vocab_size=next((size for size in (512, 1024, 2048, 4096) if tokens < 200 * size), 8192),
        length=length,
        layers=4 if tokens < 200_000 else 6,
        dropout=0.1 if epochs > EPOCHS else 0.0,
        epochs=round(epochs, 1),
    )


def recipe_for(sources: Sequence[str], facts: Facts, path: Path, task: str = "language") -> str:
    """The recipe as commented YAML; `path` is where it will lie."""
    chosen = choose(facts)
    many = "long" if facts.distinct <= ALPHABET else f"of {facts.distinct:,} different characters"
    why_level = f"each of {facts.distinct:,} characters is a token" if chosen.level == "char" else f"the text is {many}"
    return _filled(
        "new-text.yaml",
        path,
        {"source": sources[0] if len(sources) == 1 else list(sources), "field": facts.field},
        task=_TASK[task],
        mask=_MASK[task],
        about=f"{facts.characters:,} characters in {facts.documents:,} document{'s' if facts.documents > 1 else ''}",
        facts=facts,
        chosen=chosen,
        why_level=why_level,
        why_vocabulary="of the BPE" if chosen.level == "bpe" else "of a BPE; char does not read it",
        why_dropout=f"each token is read {chosen.epochs:g} times",
        batch=BATCH,
        tokens=BATCH * chosen.length,
        every=UPDATES // 5,
    )


_TASK = {
    "language": "",
    "masked": "task: masked              # predicts hidden tokens from both sides, to be fine-tuned\n",
}
_MASK = {
    "language": "",
    "masked": "  mask: 0.3                 # share of hidden tokens; it takes some thousand steps\n",
}


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Parallel text.

    Attributes:
        name: as `find_pairs` takes it.
    """

    name: str
    source: str
    target: str


def sides_of(sources: Sequence[str]) -> Sides | None:
    """The two sides, where the files given are such; None: they are text.

    A .tsv of two columns; "a.txt,b.txt"; or two files with as many lines as each other, whose names differ in one part
    after the first, such as train.de and train.en, or my.fr.txt and my.en.txt.
    """
    if len(sources) == 1 and file_kind(Path(sources[0])) == COLUMNS:
        return Sides(name=sources[0], source="source", target="target")
    files = sources[0].split(",") if len(sources) == 1 else list(sources)
    if len(files) != 2 or not all(map(is_file, files)):
        return None
    names = _languages(*files)
    if len(sources) == 2 and (names is None or len({len(lines_of(Path(one))) for one in files}) > 1):
        return None
    source, target = names or ("source", "target")
    return Sides(name=",".join(files), source=source, target=target)


def _languages(*files: str) -> tuple[str, str] | None:
    """
    >>> _languages("data/train.de.gz", "data/train.en.gz"), _languages("a.txt", "b.txt")
    (('de', 'en'), None)
    """
    parts = [[part for part in Path(file).name.split(".") if f".{part}" not in OPEN] for file in files]
    if len({len(names) for names in parts}) > 1:
        return None
    differ = [(i, pair) for i, pair in enumerate(zip(*parts, strict=True)) if pair[0] != pair[1]]
    return differ[0][1] if len(differ) == 1 and differ[0][0] > 0 else None


def recipe_for_pairs(sides: Sides, path: Path) -> tuple[str, int]:
    """The recipe as commented YAML, and the number of pairs; `path` is where it will lie.

    Raises:
        DataError: the text cannot be read, its sides are not as long as each other, or there are too few pairs.
    """
    pairs = find_pairs(sides.name, sides.source, sides.target).read()
    if len(pairs) < LEAST:
        raise DataError(f"{sides.name}: {len(pairs):,} pairs; a first run needs at least {LEAST:,}")
    characters = sum(map(len, pairs.source)) + sum(map(len, pairs.target))
    vocabulary = next((size for size in (512, 1024, 2048, 4096) if characters / PER_TOKEN < 200 * size), 8000)
    epochs = UPDATES * TOKENS / (characters / PER_TOKEN / 2)
    text = _filled(
        "new-pairs.yaml",
        path,
        {"source": sides.source, "target": sides.target, "train": [sides.name]},
        pairs=len(pairs),
        vocabulary=vocabulary,
        epochs=f"{epochs:.2g}",
        dropout=0.3 if len(pairs) < DROPOUT_BELOW else 0.1,
        tokens=TOKENS,
        every=UPDATES // 4,
    )
    return text, len(pairs)


def _filled(name: str, path: Path, known: Mapping[str, object], **words: object) -> str:
    """One of the recipes beside this file; `known` is what is written as YAML."""
    said = {key: _yaml(value) for key, value in {"name": path.stem, **known}.items()}
    words |= {"path": shlex.quote(str(path)), "run": shlex.quote(f"runs/{path.stem}"), "said": said}
    words |= {"steps": UPDATES, "warmup": UPDATES // 10}
    return Path(__file__).with_name(name).read_text(encoding="utf-8").format(**words)


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True).split("\n")[0]
