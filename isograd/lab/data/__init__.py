"""Text in, batches out. What torch is needed for is imported where it is named: files are looked for without it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isograd.lab.data.batches import PackedSequences
    from isograd.lab.data.corpus import Corpus, load_corpus
    from isograd.lab.data.parallel import ParallelCorpus, load_parallel

_FILES = {
    "Corpus": "corpus",
    "PackedSequences": "batches",
    "ParallelCorpus": "parallel",
    "load_corpus": "corpus",
    "load_parallel": "parallel",
}

__all__ = ["Corpus", "PackedSequences", "ParallelCorpus", "load_corpus", "load_parallel"]


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"isograd.lab.data.{_FILES[name]}"), name)
    raise AttributeError(f"module 'isograd.lab.data' has no attribute {name!r}")
