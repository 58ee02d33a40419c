"""Weights of torch.nn.TransformerEncoder and torch.nn.Transformer: what they compute, isograd computes (fp64)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isograd.errors import DataError, InteropError
from isograd.models import IsogradForCausalLM, IsogradForSeq2SeqLM, IsogradModel
from isograd.papers.torch_nn import Layout, from_torch, import_torch
from tests.build import close, in_turn, tokens

WIDTH, HEADS, INNER = 16, 4, 24


def encoder(*, norm: bool, **options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True, **options)
    last = nn.LayerNorm(WIDTH, bias=options.get("bias", True)) if norm else None
    return nn.TransformerEncoder(layer, 3, norm=last, enable_nested_tensor=False)


def finished(module: nn.Module) -> nn.Module:
    """fp64, eval, and nothing left at zero or one."""
    torch.manual_seed(3)
    for p in module.parameters():
        nn.init.normal_(p, mean=float(p.ndim == 1), std=0.3)
    return module.double().eval()


def padded() -> tuple[Tensor, Tensor]:
    ids, mask = tokens(3, 8), torch.ones(3, 8, dtype=torch.long)
    for row, length in ((1, 5), (2, 1)):
        ids[row, length:], mask[row, length:] = 1, 0
    return ids, mask


@in_turn("bias, activation, norm, first", [True, False], ["relu", "gelu"], [True, False], [True, False])
def test_layers_alone(first: bool, norm: bool, activation: str, bias: bool, tmp_path: Path) -> None:
    theirs = finished(encoder(norm=norm, norm_first=first, activation=activation, bias=bias))
    plan = Layout(heads=HEADS, norm_first=first, activation=activation)  # type: ignore[arg-type]
    model = from_torch(theirs.state_dict(), plan)
    assert type(model) is IsogradModel
    names = {(1, 1): "pre-ln", (1, 0): "fairseq-pre-nofinal", (0, 0): "post-ln", (0, 1): "fairseq-post-final"}
    assert model.config.placement == names[first, norm]
    x, mask = torch.randn(3, 8, WIDTH, dtype=torch.float64), padded()[1]
    expected = theirs(x, src_key_padding_mask=mask == 0)
    got = model(inputs_embeds=x, attention_mask=mask).last_hidden_state
    close(got[mask.bool()], expected[mask.bool()], 1e-12)
    model.save_pretrained(tmp_path)
    again = IsogradModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert torch.equal(again(inputs_embeds=x, attention_mask=mask).last_hidden_state, got)


class Language(nn.Module):
    """A decoder-only model as torch's tutorials write it."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(41, WIDTH), nn.Embedding(32, WIDTH)
        self.body = encoder(norm=True, norm_first=True, activation="gelu")
        self.out = nn.Linear(WIDTH, 41, bias=not tied)
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * math.sqrt(WIDTH) + self.place.weight[: ids.shape[1]]
        return self.out(self.body(x, mask=torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)))


def plan_of(tied: bool) -> Layout:
    return Layout(
        heads=HEADS,
        norm_first=True,
        activation="gelu",
        causal=True,
        tokens="embed.weight",
        positions="place.weight",
        head=None if tied else "out.weight",
        scale_embedding=True,
        eos=2,
    )


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own-head"])
def test_a_language_model(tied: bool) -> None:
    theirs = finished(Language(tied))
    state = {k: v for k, v in theirs.state_dict().items() if not (tied and k == "out.weight")}
    model = from_torch(state, plan_of(tied))
    assert type(model) is IsogradForCausalLM and model.config.placement == "pre-ln"
    ids = tokens(3, 8)
    close(model(ids).logits, theirs(ids), 1e-12)
    labels = model(ids, labels=ids).loss
    close(labels, nn.functional.cross_entropy(theirs(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()), 1e-12)


class Translator(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(41, WIDTH), nn.Embedding(50, WIDTH)
        self.pe = nn.Buffer(torch.randn(32, 1, WIDTH))
        self.body = nn.Transformer(WIDTH, HEADS, 3, 2, INNER, norm_first=first, batch_first=True)
        self.out = nn.Linear(WIDTH, 50)

    def forward(self, ids: Tensor, mask: Tensor, written: Tensor) -> Tensor:
        future = torch.ones(written.shape[1], written.shape[1], dtype=torch.bool).triu(1)
        x, y = self.source(ids) + self.pe[: ids.shape[1], 0], self.target(written) + self.pe[: written.shape[1], 0]
        out = self.body(x, y, tgt_mask=future, src_key_padding_mask=mask == 0, memory_key_padding_mask=mask == 0)
        return self.out(out)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch.nn.Transformer asks for it, and then cannot
@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
def test_a_translator(first: bool) -> None:
    theirs = finished(Translator(first))
    plan = Layout(
        heads=HEADS,
        norm_first=first,
        tokens="source.weight",
        target_tokens="target.weight",
        positions="pe",
        head="out.weight",
        bos=2,
        eos=3,
    )
    model = from_torch(theirs.state_dict(), plan)
    assert type(model) is IsogradForSeq2SeqLM
    assert model.config.placement == ("pre-ln" if first else "fairseq-post-final")
    ids, mask = padded()
    written = tokens(3, 6, seed=1)
    got = model(ids, attention_mask=mask, decoder_input_ids=written).logits
    close(got, theirs(ids, mask, written), 1e-12)


def test_other_options_compute_something_else() -> None:
    """The negative control: each option is read."""
    theirs = finished(Language(True))
    state, right = theirs.state_dict(), plan_of(True)
    state.pop("out.weight")
    ids, expected = tokens(3, 8), theirs(tokens(3, 8))
    for change in ({"heads": 2}, {"activation": "relu"}, {"scale_embedding": False}, {"eps": 1e-3}):
        model = from_torch(state, Layout(**(vars(right) | change)))
        assert (model(ids).logits - expected).abs().max() > 1e-4


def test_what_has_no_place_is_named() -> None:
    state = finished(Language(False)).state_dict()
    with pytest.raises(
        InteropError, match=r"unexpected keys: embed\.weight, out\.bias, out\.weight, place\.weight; name"
    ):
        from_torch(state, Layout(heads=HEADS, norm_first=True))
    with pytest.raises(
        InteropError, match=r"no weight 'tokens\.weight'; found .*embed\.weight, .*place\.weight outside"
    ):
        from_torch(state, Layout(heads=HEADS, norm_first=True, causal=True, tokens="tokens.weight"))
    plan = plan_of(False)
    with pytest.raises(InteropError, match=r"missing keys: body\.layers\.1\.linear1\.bias$"):
        from_torch({k: v for k, v in state.items() if k != "body.layers.1.linear1.bias"}, plan)
    with pytest.raises(InteropError, match="another shape: "):
        from_torch(state | {"body.layers.1.linear1.weight": torch.zeros(25, WIDTH)}, plan)
    with pytest.raises(InteropError, match=r"no layers of torch\.nn\.TransformerEncoder"):
        from_torch({"weight": torch.ones(2)}, plan)
    with pytest.raises(InteropError, match="names of its tables"):
        from_torch(nn.Transformer(WIDTH, HEADS, 1, 1, INNER, batch_first=True).state_dict(), Layout(heads=HEADS))


@pytest.mark.parametrize("what", ["layers", "language", "translator"])
def test_a_folder_and_its_parity_report(what: str, tmp_path: Path) -> None:
    made: dict[str, tuple[nn.Module, Layout]] = {
        "layers": (encoder(norm=True, norm_first=True), Layout(heads=HEADS, norm_first=True)),
        "language": (Language(False), plan_of(False)),
        "translator": (
            Translator(False),
            Layout(heads=HEADS, tokens="source.weight", target_tokens="target.weight", positions="pe",
                 head="out.weight", bos=2, eos=3, pad=1),
        ),
    }  # fmt: skip
    module, plan = made[what]
    torch.save(finished(module).float().state_dict(), tmp_path / "model.pt")
    report = import_torch(tmp_path / "model.pt", tmp_path / "out", plan)
    assert report.passed and [row.precision for row in report.logits] == ["fp64", "fp32", "bf16"]
    written = json.loads((tmp_path / "out/parity.json").read_text())
    assert written["passed"] and set(written["source"]) == {"model.pt"} and "config.json" in written["files"]


def test_a_file_of_something_else(tmp_path: Path) -> None:
    torch.save([1], tmp_path / "model.pt")
    with pytest.raises(DataError, match="a list, expected a state dict"):
        import_torch(tmp_path / "model.pt", tmp_path / "out", Layout(heads=HEADS))
    assert not (tmp_path / "out").exists()
