"""Text in, batches out. What torch is needed for is imported where it is named: files are looked for without it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isograd.data.batches import PackedSequences
    from isograd.data.corpus import Corpus, load_corpus
    from isograd.data.parallel import ParallelCorpus, load_parallel

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
        return getattr(import_module(f"isograd.data.{_FILES[name]}"), name)
    raise AttributeError(f"module 'isograd.data' has no attribute {name!r}")
