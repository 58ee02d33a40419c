"""A row with its padding and without: what is real must stay, and what moves it is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, T5Config, T5EncoderModel

import isograd

VOCABULARY, WIDTH, HEADS, TIME = 40, 32, 4, 16
LENGTHS = torch.tensor([16, 7, 11, 5, 9])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor, mask: Tensor | None, turn: Any) -> Tensor:
        q, k, v = (y.unflatten(2, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        q, k = turn(q), turn(k)
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        scores = (
            scores if mask is None else scores.masked_fill(~mask, -1e9) if mask.dtype == torch.bool else scores + mask
        )
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.ffn(self.second(x))


def rotated(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[2])[:, None] / 100 ** (torch.arange(x.shape[3] // 2) / 4)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Reader(nn.Module):
    """Hides padding well, unless it is told otherwise."""

    def __init__(
        self,
        hides: Callable[[Tensor], Tensor | None] = lambda real: real[:, None, None],
        places: Callable[[Tensor], Tensor] | None = lambda real: (real.cumsum(1) - 1).clamp(min=0),
        before: Callable[[Tensor, Tensor], Tensor] = lambda x, real: x,
        ends: Callable[[Tensor, Tensor], Tensor] = lambda x, real: x,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hides, self.where, self.before, self.ends = hides, places, before, ends
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(2)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        real = mask.bool()
        x = self.tokens(ids) if self.where is None else self.tokens(ids) + self.places(self.where(real))
        x = self.before(x, real)
        for layer in self.layers:
            x = layer(x, self.hides(real), rotated if self.where is None else lambda y: y)
        return self.head(self.ends(self.norm(x), real))


class OfIds(Reader):
    """Knows padding by its id; with `blind` it does not ask."""

    def __init__(self, blind: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.blind = blind

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids, torch.ones_like(ids) if self.blind else ids != 0)


class OfFrames(nn.Module):
    """Frames and their lengths, with one of torch's encoder layers."""

    def __init__(self, mix: nn.Module, dtype: torch.dtype = torch.bool, cleared: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.dtype, self.cleared = mix, dtype, cleared
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        hidden = torch.arange(frames.shape[1]) >= lengths[:, None]
        x = self.layer(frames, src_key_padding_mask=hidden.to(self.dtype))
        x = x.masked_fill(hidden[..., None], 0) if self.cleared else x
        return self.head(x + self.mix(x.transpose(1, 2)).transpose(1, 2))


class EachFrame(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def masked(left: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask = (torch.arange(TIME) < LENGTHS[:, None]).long()
    mask = mask.flip(1) if left else mask
    return {"ids": torch.randint(1, VOCABULARY, mask.shape) * mask, "mask": mask}


def frames() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"frames": torch.randn(5, TIME, WIDTH) * masked()["mask"][..., None], "lengths": LENGTHS}


def causal(real: Tensor) -> Tensor:
    time = real.shape[1]
    return real[:, None, None] & torch.ones(time, time).tril().bool() | torch.eye(time).bool()


def counted(real: Tensor) -> Tensor:
    return torch.arange(real.shape[1])


def average(x: Tensor, real: Tensor) -> Tensor:
    return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def sunk(real: Tensor) -> Tensor:
    """The first four positions are open to all, whatever they hold."""
    return causal(real) | (torch.arange(real.shape[1]) < 4)


def of_a_table() -> nn.Module:
    """It hides nothing, and its table says which id is padding."""
    model = OfIds(blind=True)
    model.tokens.padding_idx = 0
    return model


FAULTS = {
    "float-mask": (lambda: Reader(hides=lambda r: (~r).float()[:, None, None]), masked(), "added to the scores"),
    "mask-of-minus-one": (lambda: Reader(lambda r: (r.float() - 1)[:, None, None]), masked(), "reads padded keys"),
    "float-mask-by-lengths": (lambda: OfFrames(nn.Identity(), torch.float32), frames(), "added to the scores"),
    "float-mask-of-ids": (lambda: OfIds(hides=lambda r: (~r).float()[:, None, None]), masked()["ids"], "added to the"),
    "unmasked": (lambda: Reader(hides=lambda r: None), masked(), "reads padded keys"),
    "opened-again": (lambda: Reader(lambda r: causal(r) | ~r[:, None, None]), masked(left=True), "reads padded keys"),
    "sinks": (lambda: Reader(hides=sunk), masked(left=True), "positions count"),
    "positions": (lambda: Reader(places=counted), masked(left=True), "positions count"),
    "positions-causal": (lambda: Reader(causal, counted), masked(left=True), "positions count"),
    "mean": (lambda: Reader(ends=lambda x, r: x.mean(1)), masked(), "takes padded ones in"),
    "largest": (lambda: Reader(ends=lambda x, r: x.max(1).values), masked(), "takes padded ones in"),
    "last": (lambda: Reader(ends=lambda x, r: x[:, -1]), masked(), "read at a padded position"),
    "first-on-the-left": (lambda: Reader(ends=lambda x, r: x[:, 0]), masked(left=True), "read at a padded position"),
    "centred-over-time": (lambda: Reader(before=lambda x, r: x - x.mean(1, True)), masked(), "takes padded ones in"),
    "convolution": (lambda: OfFrames(nn.Conv1d(WIDTH, WIDTH, 5, padding=2), cleared=False), frames(), "convolution"),
    "padding-of-the-table": (of_a_table, masked()["ids"], "reads padded keys"),
    "bert-without-mask": (
        lambda: BertModel(BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)),
        {"input_ids": masked()["ids"]},
        "reads padded keys",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_the_amount_of_padding_moves_is_named(name: str) -> None:
    build, batch, why = FAULTS[name]
    found = [f for f in isograd.check(build(), batch, prove=False) if f.code == "padding-leaks"]
    assert [why in f.message for f in found] == [True] and "positions more on the" in found[0].message, str(found)


def llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    )


def by_hf(left: bool = False) -> dict[str, Tensor]:
    batch = masked(left)
    return {"input_ids": batch["ids"], "attention_mask": batch["mask"]}


def answers_only() -> dict[str, Tensor]:
    """A mask of what counts, which is no padding."""
    batch = masked(left=True)
    return {"ids": torch.randint(1, VOCABULARY, batch["ids"].shape), "mask": batch["mask"]}


SOUND = {
    "masked": (Reader, masked()),
    "all-rows-padded": (Reader, {n: x[1:] for n, x in masked().items()}),
    "ids": (OfIds, masked()["ids"]),
    "lengths": (lambda: OfFrames(nn.Identity()), frames()),
    "each-frame": (lambda: OfFrames(EachFrame(WIDTH)), frames()),
    "batch-norm": (lambda: OfFrames(nn.BatchNorm1d(WIDTH)), frames()),
    "convolution-of-zeros": (lambda: OfFrames(nn.Conv1d(WIDTH, WIDTH, 5, padding=2)), frames()),
    "mean-of-real": (lambda: Reader(ends=average), masked()),
    "last-real": (lambda: Reader(ends=lambda x, r: x[torch.arange(len(x)), r.sum(1) - 1]), masked()),
    "left": (lambda: Reader(causal), masked(left=True)),
    "rotary-left": (lambda: Reader(causal, None), masked(left=True)),
    "causal-right": (lambda: Reader(lambda r: torch.ones(r.shape[1], r.shape[1]).tril().bool(), counted), masked()),
    "window-of-one-length": (lambda: OfIds(hides=causal, places=counted), masked(left=True)["ids"]),
    "nothing-says-padding": (lambda: OfIds(blind=True), masked()["ids"]),
    "no-padding": (lambda: Reader(hides=lambda r: None), {n: x[:1].expand(5, -1).clone() for n, x in masked().items()}),
    "answers-only": (lambda: Reader(hides=lambda r: None), answers_only()),
    "llama-left": (llama, by_hf(left=True)),
    "bert": (
        lambda: BertModel(BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)),
        by_hf(),
    ),
    "t5": (
        lambda: T5EncoderModel(
            T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        ),
        by_hf(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_padding_that_moves_nothing_is_silent(name: str) -> None:
    build, batch = SOUND[name]
    found = isograd.check(build(), batch, prove=False)
    assert "padding-leaks" not in found.codes and not any("padding-leaks" in m for m in found.missed), str(found)
