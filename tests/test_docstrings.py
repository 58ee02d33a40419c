"""Examples in docstrings say what the code does."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import isograd

ROOT = Path(isograd.__file__).parent
WITH = [path for path in ROOT.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
FILES = sorted(path.relative_to(ROOT.parent) for path in WITH)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_examples(file: Path) -> None:
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(import_module(name))
    assert result.attempted and not result.failed
