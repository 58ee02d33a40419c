"""A first recipe for somebody's own parallel text: which files are the two sides, and settings for their size."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from isograd.errors import DataError
from isograd.lab.data.pairs import COLUMNS, find_pairs, lines_of
from isograd.text import OPEN, file_kind, is_file

UPDATES, TOKENS = 400, 2048  # about a minute of two cores
LEAST = 200  # pairs
PER_TOKEN = 3.5  # characters of a BPE token
DROPOUT_BELOW = 50_000  # pairs; fewer are read many times


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
    known = {"name": path.stem, "source": sides.source, "target": sides.target}
    text = _TEMPLATE.format(
        path=shlex.quote(str(path)),
        run=shlex.quote(f"runs/{path.stem}"),
        said={key: _yaml(value) for key, value in known.items()},
        train=_yaml([sides.name]),
        pairs=len(pairs),
        vocabulary=vocabulary,
        epochs=f"{epochs:.2g}",
        dropout=0.3 if len(pairs) < DROPOUT_BELOW else 0.1,
        steps=UPDATES,
        tokens=TOKENS,
        warmup=UPDATES // 10,
        every=UPDATES // 4,
    )
    return text, len(pairs)


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True).split("\n")[0]


_TEMPLATE = """\
# A first translation run on your text ({pairs:,} pairs), in about a minute on two CPU cores.
#   isograd train {path}
#   isograd report {run} --open
#   isograd evaluate {run} --src FILE --ref FILE
#   isograd translate {run} < FILE
# Every key: isograd train {path} --keys
name: {said[name]}
task: translation
model:
  placement: pre-ln         # trains without tuning; isograd show shows the others
  layers: 2                 # of encoder and decoder each; 6 for a run that counts
  width: 128                # 256 and more for a run that counts
  heads: 4
  ffn: 512
  act: relu
  dropout: {dropout:<16} # 0.3 for few pairs, 0.1 for many
  share_embeddings: true    # one table for both languages
pairs:
  train: {train}
  source: {said[source]:<17} # what is translated
  target: {said[target]:<17} # into what
  vocabulary: bpe           # trained on both sides together
  vocab_size: {vocabulary}
training:
  steps: {steps:<18} # {epochs} times through the text; a run that counts: 10000 and more
  tokens: {tokens:<17} # of the larger side, in a batch
  lr: 1.0e-3
  warmup: {warmup}
  decay: inverse-sqrt
  betas: [0.9, 0.98]
  label_smoothing: 0.1
  precision: fp32           # bf16 on a GPU
  valid_every: {every:<12} # 500 pairs are held out, fewer of a small text
  probe_every: 50
  checkpoint_every: 100     # killed, the same command goes on from here
  select: auto              # the last weights, the best, or their average: whichever validates best
  average: 2
"""
