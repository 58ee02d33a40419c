"""Text in, batches out. What torch is needed for is imported where it is named: files are looked for without it."""

from typing import TYPE_CHECKING

from isograd.doors import doors

if TYPE_CHECKING:
    from isograd.lab.data.batches import PackedSequences
    from isograd.lab.data.corpus import Corpus, load_corpus
    from isograd.lab.data.parallel import ParallelCorpus, load_parallel

__getattr__ = doors(__name__)

__all__ = ["Corpus", "PackedSequences", "ParallelCorpus", "load_corpus", "load_parallel"]
