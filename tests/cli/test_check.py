"""`isograd check MODEL`: what it prints, its exit codes, and one line for what it cannot look at."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from tests.study.arms import called, refused

MODULE = '''
import torch
from torch import nn

def bare():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    made = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    made.register_parameter("spare", nn.Parameter(torch.ones(32)))
    return made

def normed():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(32), enable_nested_tensor=False)

class Two(nn.Module):
    """Takes what cannot be guessed."""
    def __init__(self):
        super().__init__()
        self.inner = normed()
    def forward(self, pair):
        return self.inner(pair["a"] + pair["b"])

def batch():
    return (pair(),)

def pair():
    return {"a": torch.randn(2, 8, 32), "b": torch.randn(2, 8, 32)}

def breaks():
    return torch.randn(2, 8, 7)

def loss(output, batch):
    return output.square().mean()

def number():
    return 3

def trained():
    model = normed()
    return model, torch.optim.AdamW(list(model.parameters())[:-2], lr=1e-3)

def wholly_trained():
    model = normed()
    return model, torch.optim.AdamW([{"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}], lr=1e-3)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module of models."""
    (tmp_path / "some_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("some_models", None)


def test_a_callable_of_a_file_in_any_folder(here: Path) -> None:
    """As `docs/check.md` has it: below, from here with a dot, and from the root."""
    (here / "models").mkdir()
    (here / "models/deep.py").write_text(MODULE)
    for text in ("models/deep.py:normed", "./models/deep.py:normed", f"{here}/models/deep.py:normed"):
        code, out, _ = called("check", text, "--json")
        assert code == 0 and set(json.loads(out)["placements"].values()) == {"pre-ln"}, text
    for name in [one for one, module in sys.modules.items() if str(here) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_what_the_seconds_are_for_is_said_on_stderr(here: Path) -> None:
    for verb in ("check", "explain"):
        _, out, err = called(verb, "some_models:normed", "--json")
        assert err.startswith("loading torch and some_models:normed ...\nrecording one forward and backward pass of ")
        assert json.loads(out)
    assert called("check", "some_models:normed", "--json", "--quiet")[2] == ""


def test_the_refusals_of_a_file(here: Path) -> None:
    (here / "models").mkdir()
    (here / "models/deep.py").write_text("class Deep:\n    def __init__(self, vocab, *, width, heads=4): ...\n")
    assert "models/none.py: no such file" in refused("check", "models/none.py:build")
    assert "expected file.py:callable, such as models/deep.py:build" in refused("check", "models/deep.py")
    assert "expected file.py:callable, such as models/deep.py:build" in refused("check", "models/deep.py:")
    said = refused("check", "models/deep.py:Deep")
    line = "add `def build(): return Deep(vocab=..., width=...)` to deep.py, then name models/deep.py:build"
    assert f"models/deep.py:Deep needs arguments (vocab, width): {line}" in said


def test_an_error_makes_the_exit_code(here: Path) -> None:
    code, out, err = called("check", "some_models:bare", "--quiet")
    assert code == 1 and err == ""
    for words in (
        "pre-ln",
        "x + attn(pre(x))",
        "error parameter-unused",
        "spare",
        "docs/check/parameter-unused.md",
        "warning final-norm-missing",
        "layers.2",
        "not tried",
    ):
        assert words in out
    assert "6 sublayers: 1 error, 1 warning" in out
    assert called("check", "some_models:normed")[0] == 0
    assert called("check", "some_models:bare", "--ignore", "parameter-unused")[0] == 0


def test_a_suspicion_is_tried_on_request(here: Path) -> None:
    words = ("check", "some_models:normed", "--prove")
    assert called(*words)[0] == 0
    assert "--prove and --no-prove: give one of them" in refused(*words, "--no-prove")
    assert "did you mean 'causal'" in refused("check", "some_models:normed", "--intent", "casual")


def test_json(here: Path) -> None:
    code, out, _ = called("check", "some_models:bare", "--json")
    told = json.loads(out)
    assert code == 1 and {"model", "placements", "findings"} <= set(told)
    assert told["model"] == "some_models:bare" and set(told["placements"].values()) == {"pre-ln"}
    for finding in told["findings"]:
        known = {"code", "severity", "kind", "address", "measured", "message", "remedy", "page", "proof", "source"}
        assert set(finding) == known and finding["kind"] in ("fact", "suspicion")
        assert (finding["kind"] == "suspicion") == (finding["proof"] is not None) or finding["severity"] == "info"
        assert isinstance(finding["measured"], float)
    assert {f["code"] for f in told["findings"]} == {"final-norm-missing", "parameter-unused"}


def test_a_folder(here: Path) -> None:
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(here / "gpt2")
    code, out, _ = called("check", "gpt2", "--json")
    assert code == 0 and json.loads(out)["findings"] == []
    assert set(json.loads(out)["placements"]) == {
        f"transformer.h.{n}.{part}" for n in (0, 1) for part in ("attn", "mlp")
    }


def test_the_inputs_may_be_given(here: Path) -> None:
    assert "--batch" in refused("check", "some_models:Two")
    assert called("check", "some_models:Two", "--batch", "some_models:batch")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("some_models:bear",), "'bare'"),
        (("nothing_here:bare",), "nothing_here"),
        (("no/such",), "no/such"),
        (("some_models:number",), "nn.Module"),
        (("some_models:bare", "--batch", "some_models:breaks"), "does not run on some_models:breaks"),
        (("some_models:bare", "--batch", "some_models:number"), "tensor"),
        (("some_models:bare", "--ignore", "final-norm-mising"), "did you mean 'final-norm-missing'"),
        (("some_models:bare", "--loss", "some_models:lost"), "lost"),
        (("some_models:bare", "--lr", "0"), "--lr"),
        (("some_models:bare", "--warmup", "-1"), "--warmup"),
        ((), "MODEL"),
    ],
)
def test_what_cannot_be_looked_at(here: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused("check", *words)


def test_a_rate_judges_post_ln(here: Path) -> None:
    (here / "deep_models.py").write_text(
        "from isograd import IsogradConfig, IsogradForCausalLM\n"
        "def deep(layers=24):\n"
        "    shape = dict(vocab_size=50, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4)\n"
        "    return IsogradForCausalLM(IsogradConfig(placement='post-ln', is_decoder=True, **shape))\n"
        "def six():\n"
        "    return deep(6)\n"
    )
    assert called("check", "deep_models:six", "--lr", "1e-3")[0] == 0
    assert called("check", "deep_models:six", "--lr", "6e-3")[0] == 1
    assert called("check", "deep_models:six", "--lr", "1e-3", "--warmup", "150")[0] == 0
    sys.modules.pop("deep_models")


def test_an_optimizer_is_checked_with_its_model(here: Path) -> None:
    code, out, _ = called(
        "check", "some_models:normed", "--optimizer", "some_models:trained", "--ignore", "norms-decayed"
    )
    assert code == 1 and "optimizer-lacks-parameters" in out
    code, out, _ = called("check", "some_models:normed", "--optimizer", "some_models:wholly_trained")
    assert code == 0 and "optimizer-lacks-parameters" not in out


def test_what_an_optimizers_function_returns_is_checked(here: Path) -> None:
    assert "expected (model, optimizer)" in refused("check", "some_models:normed", "--optimizer", "some_models:number")


def test_the_loss_is_a_function_of_the_output_and_the_batch(here: Path) -> None:
    assert called("check", "some_models:normed", "--loss", "some_models:loss")[0] == 0
