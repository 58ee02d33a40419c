"""Models as people write them: what `forward` returns and takes, starts at zero, weights that are no numbers."""

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration

import isograd
from isograd.cli import main
from isograd.errors import InputsError
from tests.lint.faults.plain import VOCABULARY, WIDTH, Decoder, pre


class LossBeside(nn.Module):
    """(logits, loss), as nanoGPT's forward: with a head tied to its table, started with `std`."""

    def __init__(self, std: float = 0.02) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.decoder = pre()
        self.decoder.head.weight = self.decoder.tokens.weight
        nn.init.normal_(self.decoder.tokens.weight, std=std)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.decoder(idx)
        loss = None if targets is None else F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
        return logits, loss


def ids(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def plain() -> Any:
    torch.manual_seed(0)
    return pre()


def test_logits_beside_a_loss_are_judged() -> None:
    assert isograd.check(LossBeside(std=1.0)).codes == {"initial-loss"}
    assert isograd.check(LossBeside()).codes == set()


@pytest.mark.parametrize(
    "batch", [{"idx": ids(2, 9), "targets": ids(2, 9).roll(-1, 1)}, (ids(2, 9), ids(2, 9).roll(-1, 1))]
)
def test_targets_are_read_by_the_loss(batch: Any) -> None:
    findings = isograd.check(LossBeside(), batch)
    assert (findings.codes, findings.missed) == (set(), ())


class Gridded(LossBeside):
    """Runs on ids that make up a grid, and on no others."""

    def forward(self, idx: Tensor, grid: Tensor) -> Tensor:  # type: ignore[override]
        return self.decoder(idx.view(*grid.tolist()[0]))


def test_an_input_that_cannot_be_another_is_left_as_it_is() -> None:
    findings = isograd.check(Gridded(), (ids(2, 9), torch.tensor([[2, 9]])))
    assert not any("encoder-unused" in line for line in (*findings.codes, *findings.missed))


def test_a_decoder_that_makes_its_ids_of_the_encoders_leaks_no_future() -> None:
    config = BartConfig(
        vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=32, forced_eos_token_id=None,
    )  # fmt: skip
    model = BartForConditionalGeneration(config)
    tokens = torch.randint(4, 50, (2, 8))
    for batch in ({"input_ids": tokens}, {"input_ids": tokens, "labels": tokens}):
        findings = isograd.check(model, batch)
        assert ("future-leaks" in findings.codes, findings.missed) == (False, ())


def test_branches_that_start_at_zero_have_their_gain_and_placement() -> None:
    model = plain()
    last = list(isograd.check(model).formulas)
    for name, parameter in model.named_parameters():
        if any(name.startswith(address) for address in last) and parameter.ndim == 2:
            nn.init.zeros_(parameter)
    findings = isograd.check(model)
    assert set(findings.formulas.values()) == {"x + attn(pre(x))", "x + ffn(pre(x))"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(value: float) -> None:
    model = plain()
    name, weight = next((n, p) for n, p in model.named_parameters() if "layers.1" in n and p.ndim == 2)
    weight.data[0, :2] = value
    (finding,) = isograd.check(model)
    assert (finding.code, finding.severity, finding.address, finding.measured) == ("not-finite", "error", name, 2)


def test_an_eps_of_one_by_hand() -> None:
    class Norm(nn.Module):
        def __init__(self, eps: float) -> None:
            super().__init__()
            self.gain, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain

    def built(eps: float) -> Decoder:
        model = plain()
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if hasattr(child, "eps"):
                    setattr(parent, name, Norm(eps))
        return model

    assert "norm-eps" in isograd.check(built(1.0)).codes
    assert "norm-eps" not in isograd.check(built(1e-5)).codes


def test_a_model_that_kept_its_activations_is_copied() -> None:
    model = plain()
    handle = model.head.register_forward_hook(lambda module, _, out: setattr(module, "seen", out))
    model(ids(2, 5))
    handle.remove()
    assert model.head.seen.grad_fn is not None  # which copy.deepcopy refuses
    assert isograd.check(model).codes == set()


def test_no_values_and_no_tokens_are_said_in_a_line() -> None:
    with torch.device("meta"):
        model = pre()
    with pytest.raises(ValueError, match="meta device"):
        isograd.check(model, ids(2, 5))
    with pytest.raises(InputsError, match=r"empty: its first tensor has the shape \(0, 5\)"):
        isograd.check(plain(), ids(0, 5))


def test_a_batch_of_nothing_is_not_guessed_in_silence(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing_to_run.py").write_text(
        "import torch\nfrom tests.lint.faults.plain import pre as build\n\n\n"
        "def batch():\n    return None\n\n\n"
        "def broken():\n    model = build()\n    model.head.weight.data.fill_(float('nan'))\n    return model\n"
    )
    assert main(["check", "nothing_to_run:build", "--batch", "nothing_to_run:batch"]) == 2
    assert "nothing_to_run:batch: expected a tensor" in capsys.readouterr().err
    assert main(["check", "nothing_to_run:broken", "--json"]) == 1
    said = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [f["code"] for f in said["findings"]] == ["not-finite"]
