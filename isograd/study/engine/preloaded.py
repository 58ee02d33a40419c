"""What the server of the workers imports before it forks any; nothing else does."""

from isograd.study.engine.server import few_collections

with few_collections():
    import isograd.data.tokenizers
    import isograd.study.engine.workers  # noqa: F401
