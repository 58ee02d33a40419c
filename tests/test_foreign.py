"""What SECURITY.md promises of what others wrote: nothing of it runs when it is read, and no path leads outside."""

import ast
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import isograd
from isograd.cli import main
from isograd.errors import ModelError, RemoteCodeError
from isograd.hub import from_pretrained, trusting
from tests.study.arms import called

ROOT = Path(isograd.__file__).parent
DOOR = ROOT / "hub.py"
CALLS = {  # what loads what others wrote
    *("from_pretrained", "from_config", "load_dataset", "unsafe_load", "full_load", "extractall"),
    *(DOWNLOADS := {"snapshot_download", "hf_hub_download", "load_state_dict_from_url", "pipeline"}),
}
HARMLESS = {
    ("torch", "load"): "weights_only",
    ("yaml", "load"): "Loader",
    ("pickle", "load"): "",
    ("pickle", "loads"): "",
}


def foreign_calls(path: Path) -> list[str]:
    """Calls in a file that only the door may make, and readers of pickles and YAML that may run code."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOWNLOADS:
            found.append(f"{path.name}:{node.lineno}: {node.func.id}")
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        needed = HARMLESS.get((owner, node.func.attr))
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        foreign = node.func.attr in CALLS and owner != "Group"  # lm-eval's, of a dict
        if foreign or (needed is not None and given.get(needed) not in ("True", "SafeLoader")):
            found.append(f"{path.name}:{node.lineno}: {ast.unparse(node.func)}")
    return found


def test_everything_foreign_is_loaded_through_one_door() -> None:
    found = [one for path in sorted(ROOT.rglob("*.py")) if path != DOOR for one in foreign_calls(path)]
    assert found == []
    assert len(foreign_calls(DOOR)) == 4  # the negative control: the calls are found


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a kind that transformers does not know, whose three files of code each leave a mark."""
    folder = tmp_path_factory.mktemp("hostile")
    marks = folder.parent / "marks"
    marks.mkdir(exist_ok=True)
    code = {"configuration": "Config", "modeling": "Model", "tokenization": "Tokenizer"}
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    words = {"<unk>": 0, "</s>": 1} | {f"w{i}": i for i in range(2, 32)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>").save_pretrained(folder)
    for name in code:
        (folder / f"{name}_mine.py").write_text(f"open({str(marks / name)!r}, 'w')\n{CODE}")
    said = json.loads((folder / "config.json").read_text())
    said |= {"model_type": "mine", "architectures": ["MineModel"]}
    autos = ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM")
    said["auto_map"] = {"AutoConfig": "configuration_mine.MineConfig"} | dict.fromkeys(autos, "modeling_mine.MineModel")
    (folder / "config.json").write_text(json.dumps(said))
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said |= {
        "tokenizer_class": "MineTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_mine.MineTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizer
class MineConfig(LlamaConfig):
    model_type = "mine"
class MineModel(LlamaForCausalLM):
    config_class = MineConfig
class MineTokenizer(PreTrainedTokenizer):
    pass
"""


def marks(hostile: Path) -> list[str]:
    return sorted(path.name for path in (hostile.parent / "marks").iterdir())


VERBS = {
    "check": ["check", "{folder}", "--json"],
    "explain": ["explain", "{folder}", "--json"],
    "import": ["import", "{folder}", "--out", "{out}"],
    "graft": ["graft", "{folder}", "--change", "layers=4", "--out", "{out}"],
    "init": ["init", "{folder}", "--scheme", "gpt2", "--out", "{out}"],
    "export folded": ["export", "{folder}", "--to", "folded", "--out", "{out}"],
    "export": ["export", "{folder}", "--to", "transformers", "--out", "{out}"],
    "evaluate on tasks": ["evaluate", "{folder}", "--data", "{data}", "--tasks", "piqa"],
    "evaluate": ["evaluate", "{folder}"],
    "translate": ["translate", "{folder}"],
    "report": ["report", "{folder}"],
    "replay": ["replay", "{folder}"],
    "train": ["train", "glue/mrpc", "glue.model={folder}", "--out", "{out}"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_asks_or_runs_a_checkpoints_code(
    verb: str, hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `y` on stdin: exit code 2, nothing asked, nothing run, nothing written, nothing on stdout."""
    (tmp_path / "data").mkdir()
    places = {"folder": hostile, "out": tmp_path / "out", "data": tmp_path / "data"}
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    assert main([word.format(**places) for word in VERBS[verb]]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.strip().splitlines()) <= 3 and "[y/N]" not in said.err
    assert sys.stdin.read().count("y") == 9
    assert marks(hostile) == [] and not (tmp_path / "out").exists()


def test_the_refusal_names_the_files_and_the_option(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(hostile)]) == 2
    said = capsys.readouterr().err
    assert "configuration_mine.py, modeling_mine.py, tokenization_mine.py" in said
    assert "--trust-remote-code" in said and str(hostile) in said
    with pytest.raises(RemoteCodeError, match="wants to run code of its own"):
        isograd.trace.load.load_model(str(hostile))


@pytest.mark.slow
def test_a_process_of_its_own_asks_nothing(hostile: Path) -> None:
    """`yes | isograd check`."""
    done = subprocess.run(
        [sys.executable, "-m", "isograd", "check", str(hostile), "--json"],
        input="y\n" * 99, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "") and "--trust-remote-code" in done.stderr and marks(hostile) == []


def test_what_is_trusted_runs_and_is_written_down(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The negative control: the same folder does run its code where somebody says so, in that command alone."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    before = list(sys.path)
    try:
        assert main(["check", str(hostile), "--trust-remote-code", "--json"]) in (0, 1)
        assert {"configuration", "modeling"} <= {*marks(hostile)}
        assert json.loads(capsys.readouterr().out)["trust_remote_code"] is True
        assert main(["check", str(hostile)]) == 2
    finally:
        sys.path[:] = before
        for path in (hostile.parent / "marks").iterdir():
            path.unlink()


class _Runs:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=32)).save_pretrained(folder)
    return folder


def test_weights_as_a_pickle_run_nothing(llama: Path, tmp_path: Path) -> None:
    (llama / "model.safetensors").unlink()
    with (llama / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"weight": _Runs(tmp_path / "mark")}, file)
    with pytest.raises(ModelError):
        isograd.trace.load.load_model(str(llama))
    torch.save({"weight": _Runs(tmp_path / "mark")}, llama / "pytorch_model.bin")
    with pytest.raises(ModelError):
        isograd.trace.load.load_model(str(llama))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("outside", ["../elsewhere.safetensors", "/etc/elsewhere.safetensors", "a/../../x.safetensors"])
def test_a_list_of_weights_stays_in_its_folder(llama: Path, outside: str) -> None:
    (llama / "model.safetensors").rename(llama.parent / "elsewhere.safetensors")
    listed = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": outside}}
    (llama / "model.safetensors.index.json").write_text(json.dumps(listed))
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json: names .* which lies outside the folder"):
        isograd.trace.load.load_model(str(llama))


def test_a_configuration_names_weights_in_its_folder(llama: Path) -> None:
    said = json.loads((llama / "config.json").read_text()) | {"transformers_weights": "../elsewhere.safetensors"}
    (llama / "config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match="which lies outside the folder"):
        isograd.trace.load.load_model(str(llama))


@pytest.mark.parametrize("words", [["check", "{}"], ["import", "{}", "--out", "{}/out"], ["explain", "{}"]])
def test_weights_that_are_cut_off_are_named(llama: Path, words: list[str]) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    code, out, err = called(*(word.format(llama) for word in words))
    assert (code, out) == (2, "") and f"{path}: is damaged or cut off" in err.splitlines()[-1]


def test_a_chat_template_is_not_rendered_when_it_is_read(hostile: Path, tmp_path: Path) -> None:
    """And where somebody renders it, transformers does so in a sandbox."""
    folder = tmp_path / "tokenizer"
    words = Tokenizer(WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    mark = tmp_path / "mark"
    reach = "''.__class__.__mro__[1].__subclasses__()"
    tokenizer.chat_template = f"{{{{ {reach} }}}}{{{{ cycler.__init__.__globals__.os.system('touch {mark}') }}}}"
    tokenizer.save_pretrained(folder)
    loaded = from_pretrained(PreTrainedTokenizerFast, folder)
    with pytest.raises(Exception, match=r"unsafe|not safe|undefined"):
        loaded.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert not mark.exists()


def test_a_recipe_is_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "recipe.yaml").write_text(f"name: !!python/object/apply:os.system ['touch {mark}']\n")
    assert main(["train", str(tmp_path / "recipe.yaml"), "--dry-run"]) == 2
    assert not mark.exists() and len(capsys.readouterr().err.strip().splitlines()) == 1


def test_trust_ends_with_its_block() -> None:
    from isograd.hub import remote_code_is_trusted

    with trusting():
        assert remote_code_is_trusted()
    assert not remote_code_is_trusted()
    assert os.environ["HF_HUB_OFFLINE"] == "1"
