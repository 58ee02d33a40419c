"""The whole suite runs offline, on one thread, from a fixed seed."""

import os
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("COLUMNS", None)  # xdist gives its workers those of its own terminal

import pytest
import torch

from isograd.placement import CATALOGUE

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def own_catalogue() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(CATALOGUE)
    yield
    CATALOGUE.clear()
    CATALOGUE.update(before)
