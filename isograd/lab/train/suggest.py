"""A first recipe for somebody's own text: what is in the text, and settings that train on it in about a minute."""

import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from isograd.errors import DataError
from isograd.text import JSON_LINES, Ends, file_kind, file_text, is_file, json_rows, read

BATCH, UPDATES = 16, 400  # some forty seconds of one core
SPLIT = 20  # one part of so many is held out
ALPHABET = 300  # characters up to which each is a token, where the text is short
SHORT = 1_000_000  # characters of such a text
PER_TOKEN = 3.5  # characters of a BPE token
EPOCHS = 4  # from which on dropout pays
PARTS = 20  # between blank lines, from which on they are documents
PART = 200  # characters of such a part, the median


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
    known = {
        "name": path.stem,
        "source": sources[0] if len(sources) == 1 else list(sources),
        "field": facts.field,
    }
    said = {
        key: yaml.safe_dump(value, default_flow_style=True, width=1000).split("\n")[0] for key, value in known.items()
    }
    many = "long" if facts.distinct <= ALPHABET else f"of {facts.distinct:,} different characters"
    why_level = f"each of {facts.distinct:,} characters is a token" if chosen.level == "char" else f"the text is {many}"
    return _TEMPLATE.format(
        task=_TASK[task],
        mask=_MASK[task],
        path=shlex.quote(str(path)),
        run=shlex.quote(f"runs/{path.stem}"),
        about=f"{facts.characters:,} characters in {facts.documents:,} document{'s' if facts.documents > 1 else ''}",
        said=said,
        facts=facts,
        chosen=chosen,
        why_level=why_level,
        why_vocabulary="of the BPE" if chosen.level == "bpe" else "of a BPE; char does not read it",
        why_dropout=f"each token is read {chosen.epochs:g} times",
        batch=BATCH,
        steps=UPDATES,
        tokens=BATCH * chosen.length,
        warmup=UPDATES // 10,
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
_TEMPLATE = """\
# A first run on your text ({about}), in about a minute on two CPU cores.
#   isograd train {path}
#   isograd report {run} --open
#   isograd compare --recipe {path} --placements post-ln pre-ln normformer
# Every key: isograd train {path} --keys
name: {said[name]}
{task}model:
  placement: pre-ln         # trains without tuning; isograd show shows the others
  layers: {chosen.layers:<17} # deeper: 12 and more, with a width of 128 or 256
  width: 64
  heads: 4
  positions: rotary
  scale_embedding: false
  dropout: {chosen.dropout:<16} # {why_dropout}
data:
  source: {said[source]}
  field: {said[field]:<18} # of the text, where rows have keys
  documents: {facts.ends:<14} # what ends a document: its file, or a blank line
  level: {chosen.level:<18} # {why_level}
  vocab_size: {chosen.vocab_size:<13} # {why_vocabulary}
  length: {chosen.length:<17} # tokens of a sequence
{mask}training:
  steps: {steps:<18} # a run that counts: 4000 and more
  batch: {batch:<18} # sequences of an update, {tokens:,} tokens
  optimizer: adamw
  lr: 1.0e-3
  warmup: {warmup}
  decay: linear             # to 0, at the last step
  weight_decay: 0.01
  clip: 1.0
  precision: fp32           # bf16 on a GPU
  valid_every: {every:<12} # held out: one document in twenty, or the last twentieth of a single one
  probe_every: 50
  checkpoint_every: 100     # killed, the same command goes on from here
"""
