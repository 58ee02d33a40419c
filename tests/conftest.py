"""The whole suite runs offline, on one thread, from a fixed seed."""

# ruff: noqa: E402

import gc
import os
import sys
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"

gc.disable()  # until all is imported: imports make hardly any garbage, and a tenth of their time went into looking

import pytest
import torch

import isograd.lint.check  # noqa: F401
from isograd.placement import CATALOGUE

# How much is tried in eight seconds depends on the machine: tests ask for a trial by prove=True.
sys.modules["isograd.lint.check"].BUDGET = 0.0  # type: ignore[attr-defined]

torch.set_num_threads(1)
# torch.manual_seed keeps the stack of each call where a GPU might come later: a third of a millisecond, and for ever
SEED = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed

LONGEST = (
    "test_distributed.py", "test_compare.py", "test_faults.py", "test_translation.py", "test_translation_page.py",
    "test_runner.py", "test_classification.py", "test_page.py", "test_study_page.py", "test_hf.py", "test_from.py",
    "test_check.py", "test_reproduce.py", "test_parity.py", "test_parallel.py", "test_export.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures of any scope: xdist and other libraries give their own terminal its width."""
    os.environ.pop("COLUMNS", None)


def pytest_collection_finish() -> None:
    """What is imported lives to the end. Each run makes a full collection, which went through it all: 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Cycles are looked for seldom: what the tests make is small, and each full look takes as long as a test."""
    gc.enable()
    gc.set_threshold(10_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where files go to several processes, those that take longest go first, and all end together."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(autouse=True)
def _seed() -> None:
    SEED(0)


@pytest.fixture
def own_catalogue() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(CATALOGUE)
    yield
    CATALOGUE.clear()
    CATALOGUE.update(before)
