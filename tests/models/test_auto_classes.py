"""`import isograd` is all that the Auto classes need, before transformers or after it, and it loads neither."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import build

LOADS = """
config = AutoConfig.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
assert type(model).__name__ == "IsogradForCausalLM" and type(config).__name__ == "IsogradConfig"
assert AutoConfig.for_model("isograd").model_type == "isograd" and "isograd" in CONFIG_MAPPING
"""
AUTO = (
    "from transformers import AutoConfig, AutoModelForCausalLM\n"
    "from transformers.models.auto.configuration_auto import CONFIG_MAPPING\n"
)
ORDERS = {
    "isograd first": "import isograd\n" + AUTO,
    "transformers first": "import transformers\nimport isograd\n" + AUTO,
    "the table first": AUTO + "import isograd\n",
    "twice": "import isograd\n" + AUTO + "import importlib; importlib.reload(isograd)\n",
    "isograd.models too": "import isograd.models\n" + AUTO,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build.model().save_pretrained(path)
    return path


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_the_auto_classes_load_isograds_models(order: str, folder: Path) -> None:
    run(f"folder = {str(folder)!r}\n{ORDERS[order]}{LOADS}")


def test_isograd_first_and_nothing_is_loaded_before_it_is_asked_for(folder: Path) -> None:
    light = "import isograd, sys; assert not {'torch', 'transformers'} & {*sys.modules}\n"
    other = "AutoConfig.for_model('llama'); assert 'isograd.models' not in sys.modules\n"
    run(f"folder = {str(folder)!r}\n{light}{AUTO}{other}{LOADS}")


def test_isograd_last_and_without_it_the_class_is_not_known(folder: Path) -> None:
    """The negative control first, in the same process."""
    unknown = (
        "try: AutoConfig.from_pretrained(folder)\n"
        "except ValueError: pass\n"
        "else: raise AssertionError('known without isograd')\n"
    )
    run(f"folder = {str(folder)!r}\n{AUTO}{unknown}import isograd\n{LOADS}")
