from pathlib import Path

import pytest

from isograd.lab.evaluate.translation import Translator
from tests.evaluate.small import saved


@pytest.fixture(scope="session", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("small"))


@pytest.fixture(name="translator")
def _translator(folder: Path) -> Translator:
    return Translator.load(folder)
