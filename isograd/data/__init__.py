"""Text in, batches out."""

from isograd.data.batches import PackedSequences
from isograd.data.corpus import Corpus, load_corpus
from isograd.data.errors import DataError

__all__ = ["Corpus", "DataError", "PackedSequences", "load_corpus"]
