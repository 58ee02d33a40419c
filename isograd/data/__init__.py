"""Text in, batches out."""

from isograd.data.batches import PackedSequences
from isograd.data.corpus import Corpus, load_corpus
from isograd.data.parallel import ParallelCorpus, load_parallel

__all__ = ["Corpus", "PackedSequences", "ParallelCorpus", "load_corpus", "load_parallel"]
