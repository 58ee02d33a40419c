"""What the server of the workers imports before it forks any; nothing else does."""

import gc

from isograd.machine import few_collections

with few_collections():
    import isograd.convert.checkpoints.tokenizers
    import isograd.lab.study.engine.workers  # noqa: F401

gc.freeze()  # no worker goes through it, nor the server when it ends
