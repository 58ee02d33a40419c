"""The whole suite runs offline, on one thread, from a fixed seed, with the same library of products."""

import gc
import os
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ISOGRAD_PRODUCTS"] = "onednn"  # the same numbers on every processor, and no measurement

import pytest
import torch

from isograd.placement import CATALOGUE

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures of any scope: xdist and other libraries give their own terminal its width."""
    os.environ.pop("COLUMNS", None)


def pytest_collection_finish() -> None:
    """What is imported lives to the end. Each run makes a full collection, which went through it all: 0.3 s."""
    gc.collect()
    gc.freeze()


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
