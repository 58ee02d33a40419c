"""MODEL as a user types it: folders, names on the hub, callables; and one line for whatever is wrong."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from isograd.errors import ModelError
from isograd.models import IsogradForCausalLM
from isograd.trace.load import load_callable, load_model
from tests import build

SIZES = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
MODULE = """
import torch
from torch import nn

width = 4
ready = nn.Linear(2, 3)

def build():
    import helper_of_mine
    return nn.Linear(width, helper_of_mine.outs)

def with_arguments(width, depth=2, *, heads):
    return nn.Linear(width, depth)

def with_defaults(width=7, **options):
    return nn.Linear(width, 1)

def broken():
    raise RuntimeError("no weights here\\nand a second line")

def silent():
    raise KeyError

def a_dict():
    return {"a": 1}

def batch():
    return torch.zeros(2, 3)

class Inner(nn.Module):
    @staticmethod
    def small():
        return nn.Linear(1, 1)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules of the user's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "helper_of_mine.py").write_text("outs = 5\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inside.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(8, 9)\n")
    (tmp_path / "bad_syntax.py").write_text("def build(:\n")
    (tmp_path / "bad_import.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "bad_run.py").write_text("1 / 0\n")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("mine", "helper_of_mine", "package", "bad_syntax", "bad_import", "bad_run"):
            del sys.modules[name]


def refused(text: str) -> str:
    with pytest.raises(ModelError) as error:
        load_model(text)
    assert "\n" not in str(error.value)
    return str(error.value)


# ------------------------------------------------------------------------------------------------------------ folders


def test_a_checkpoint_with_its_weights(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path))
    assert type(loaded) is GPT2LMHeadModel and not loaded.training
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (BertForMaskedLM, BertConfig(vocab_size=31, **SIZES)),
        (ViTForImageClassification, ViTConfig(image_size=8, patch_size=4, **SIZES)),
    ],
)
def test_a_configuration_alone_gives_the_class_it_names_at_its_start(
    model: type, config: object, tmp_path: Path
) -> None:
    model(config).config.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {"architectures": [model.__name__]}))
    loaded = load_model(str(tmp_path))
    assert type(loaded) is model and not loaded.training
    table = next(p for p in loaded.parameters() if p.ndim > 1)
    assert table.std().item() == pytest.approx(0.02, rel=0.3)  # what its _init_weights draws


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GPT2Config(vocab_size=31, n_positions=8, n_embd=16, n_layer=1, n_head=2), "GPT2LMHeadModel"),
        (ViTConfig(image_size=8, patch_size=4, **SIZES), "ViTForImageClassification"),
    ],
)
def test_a_configuration_that_names_no_class(config: GPT2Config, expected: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    assert type(load_model(str(tmp_path))).__name__ == expected


def test_a_folder_of_a_run(tmp_path: Path) -> None:
    model = build.model()
    model.save_pretrained(tmp_path / "model")
    for folder in (tmp_path, tmp_path / "model"):
        loaded = load_model(str(folder))
        assert type(loaded) is IsogradForCausalLM
        assert torch.equal(loaded(build.tokens(1, 5)).logits, model(build.tokens(1, 5)).logits)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    assert "no config.json here or in model/" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "no-such-kind"}')
    assert "no-such-kind" in refused(str(tmp_path))
    assert refused(str(tmp_path / "absent")).endswith("no such folder")


def test_weights_that_are_missing_or_damaged(tmp_path: Path) -> None:
    model = build.model()
    model.save_pretrained(tmp_path)
    state = {k: v for k, v in model.state_dict().items() if "layers.1.ffn.branch.out" not in k and "lm_head" not in k}
    model.save_pretrained(tmp_path, state_dict=state)
    assert "weights are missing, such as model.layers.1.ffn.branch.out" in refused(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    assert "model.safetensors: is damaged or cut off" in refused(str(tmp_path))


def test_weights_of_layers_that_the_configuration_leaves_out(tmp_path: Path) -> None:
    model = build.model(num_hidden_layers=3)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    assert "more layers than config.json says, such as model.layers.2." in refused(str(tmp_path))


def test_whole_numbers_without_a_quantization_config(tmp_path: Path) -> None:
    model = build.model()
    model.save_pretrained(tmp_path)
    name = "model.layers.1.ffn.branch.out.weight"
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {name: (weights[name] * 100).to(torch.int8)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert f"stored as integers without a quantization_config, such as {name}" in refused(str(tmp_path))


# ------------------------------------------------------------------------------------------------------------ the hub


@pytest.mark.parametrize("name", ["nobody-here/no-such-model-3f2a", "no-such-model-3f2a"])
def test_a_name_that_the_hub_does_not_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refused(name).startswith(f"{name}: no such folder here, and on the hub it cannot be loaded")


# ---------------------------------------------------------------------------------------------------------- callables


def test_a_callable_of_the_working_directory(here: Path) -> None:
    path, modules = list(sys.path), ("mine", "helper_of_mine")
    assert not any(m in sys.modules for m in modules)
    made = load_model("mine:build")
    assert isinstance(made, nn.Linear) and (made.in_features, made.out_features) == (4, 5)
    assert sys.path == path


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("package.inside:build", (8, 9)),
        ("mine:ready", (2, 3)),
        ("mine:with_defaults", (7, 1)),
        ("mine:Inner.small", (1, 1)),
    ],
)
def test_what_may_stand_behind_the_colon(text: str, shape: tuple[int, int], here: Path) -> None:
    made = load_model(text)
    assert isinstance(made, nn.Linear) and (made.in_features, made.out_features) == shape


def test_a_class_without_arguments(here: Path) -> None:
    assert type(load_model("mine:Inner")).__name__ == "Inner"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere_at_all:build", "nowhere_at_all: no such module"),
        ("package.nothing:build", "package.nothing: no such module"),
        ("bad_import:build", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("bad_syntax:build", "SyntaxError"),
        ("bad_run:build", "ZeroDivisionError"),
        ("mine:biuld", "mine has no 'biuld'; did you mean 'build'?"),
        ("mine:zzzzzz", "mine has no 'zzzzzz'"),
        ("mine:with_arguments", "needs arguments (width, heads)"),
        ("mine:broken", "mine:broken raised RuntimeError: no weights here"),
        ("mine:silent", "mine:silent raised KeyError"),
        ("mine:a_dict", "gives a dict; expected an nn.Module"),
        ("mine:width", "gives an int; expected an nn.Module"),
        ("mine:", "expected package.module:callable"),
        (":build", "expected package.module:callable"),
        ("nowhere.py:build", "nowhere.py: no such file"),
        ("mine.py:biuld", "did you mean 'build'?"),
        ("bad_run.py:build", "ZeroDivisionError"),
        ("./mine:build", "expected package.module:callable"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, words: str, here: Path) -> None:
    assert words in refused(text)


def test_a_callable_of_a_file(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Here or in another folder, whose modules it sees, and though a module of its name is there already."""
    path, other = list(sys.path), tmp_path_factory.mktemp("other")
    made = load_model("mine.py:build")
    assert isinstance(made, nn.Linear) and (made.in_features, made.out_features) == (4, 5)
    (other / "sizes.py").write_text("width = 6\n")
    (other / "mine.py").write_text("import sizes\nfrom torch import nn\nbuild = nn.Linear(sizes.width, 2)\n")
    beside = load_model(f"{other}/mine.py:build")
    assert isinstance(beside, nn.Linear) and (beside.in_features, beside.out_features) == (6, 2)
    assert sys.path == path


def test_a_file_does_not_read_our_command_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["isograd", "check", "script.py:model"])
    Path("script.py").write_text(
        "import sys\nfrom torch import nn\nmodel = nn.Linear(4, *map(int, sys.argv[1:] or [3]))\n"
    )
    model = load_model("script.py:model")
    assert isinstance(model, nn.Linear) and model.out_features == 3 and sys.argv[1] == "check"


def test_the_callable_of_a_batch(here: Path) -> None:
    assert load_callable("mine:batch")().shape == (2, 3)
    with pytest.raises(ModelError, match="raised RuntimeError: no weights here"):
        load_callable("mine:broken")()
    with pytest.raises(ModelError, match="needs arguments"):
        load_callable("mine:with_arguments")


def test_the_working_directory_is_left_as_it_was(here: Path) -> None:
    path = list(sys.path)
    refused("mine:broken")
    assert sys.path == path and Path.cwd() == here


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": 50}, "(41, 16) in the weights, and (50, 16) by config.json"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ],
)
def test_sizes_of_another_model_are_named(change: dict[str, int], said: str, tmp_path: Path) -> None:
    """Neither "integer modulo by zero" alone nor a report that is not shown."""
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 41, "n_positions": 8}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path)
    names = {"num_attention_heads": "n_head"}
    content = json.loads((tmp_path / "config.json").read_text())
    content |= {names.get(name, name): value for name, value in change.items()}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError) as error:
        load_model(str(tmp_path))
    assert said in str(error.value) and "above report" not in str(error.value) and "\n" not in str(error.value)
    if "num_attention_heads" in change:
        assert "is a size in config.json 0" in str(error.value)


def test_a_folder_may_have_the_name_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository's own `datasets`, at import and within the function, beside the package that is loaded."""
    import datasets

    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("WIDTH = 8\n")
    text = "from torch import nn\nfrom datasets import WIDTH\n\n\ndef build():\n    import datasets\n"
    (tmp_path / "own_names.py").write_text(f"{text}    return nn.Linear(WIDTH, datasets.WIDTH)\n")
    monkeypatch.chdir(tmp_path)
    for name in ("own_names.py:build", "own_names:build"):
        assert load_model(name).in_features == 8
        assert sys.modules["datasets"] is datasets
