"""Which modules are taken for layers, in models of several libraries and wrapped in several ways."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

import isograd
from isograd.diagnose.watch.layers import by_layer, find_layers
from tests.build import model

SHAPE: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3}
TOWERS: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 8}
TOWERS |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 3, "decoder_layers": 2}
T5: dict[str, Any] = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2, "num_layers": 3, "vocab_size": 40}

Group = tuple[str, str, int]  # first and last address, how many
OTHERS: dict[str, tuple[Any, dict[str, Group]]] = {
    "llama": (
        lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=40)),
        {"mlp.down_proj.weight": ("model.layers.0", "model.layers.2", 3)},
    ),
    "bert": (
        lambda: BertForMaskedLM(BertConfig(**SHAPE, vocab_size=40)),
        {"output.dense.weight": ("bert.encoder.layer.0", "bert.encoder.layer.2", 3)},
    ),
    "t5": (
        lambda: T5ForConditionalGeneration(T5Config(**T5)),  # the first block has a table more than the others
        {
            "encoder.block layer.1.DenseReluDense.wo.weight": ("encoder.block.0", "encoder.block.2", 3),
            "decoder.block layer.2.DenseReluDense.wo.weight": ("decoder.block.0", "decoder.block.2", 3),
        },
    ),
    "bart": (
        lambda: BartForConditionalGeneration(BartConfig(**TOWERS, vocab_size=40)),
        {
            "model.encoder.layers fc2.weight": ("model.encoder.layers.0", "model.encoder.layers.2", 3),
            "model.decoder.layers fc2.weight": ("model.decoder.layers.0", "model.decoder.layers.1", 2),
        },
    ),
    "vit": (
        lambda: ViTForImageClassification(ViTConfig(**SHAPE, image_size=32)),
        {"mlp.fc2.weight": ("vit.layers.0", "vit.layers.2", 3)},
    ),
    "torch": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False),
        {"linear2.weight": ("layers.0", "layers.2", 3)},
    ),
    "alternating": (  # as x-transformers builds: attention, feed-forward, attention, ..
        lambda: nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(8), nn.Linear(8, 8) if i % 2 else Block(), nn.Identity()]) for i in range(6)
        ),
        {"1.narrow.weight": ("0", "4", 3), "1.weight": ("1", "5", 3)},
    ),
    "plain": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), *(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 2)),
        {"0": ("0", "0", 1), "weight": ("2", "4", 3), "5": ("5", "5", 1)},
    ),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)


def groups(network: nn.Module) -> dict[str, Group]:
    found: dict[str, list[str]] = {}
    for layer in find_layers(network):
        found.setdefault(layer.group, []).append(layer.address)
    return {group: (addresses[0], addresses[-1], len(addresses)) for group, addresses in found.items()}


@pytest.mark.parametrize("name", OTHERS)
def test_layers_of_models_of_others(name: str) -> None:
    build, expected = OTHERS[name]
    assert groups(build()) == expected


def test_a_list_of_heads_is_no_stack_beside_layers() -> None:
    network = nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(2)), "heads": nn.ModuleList()})
    network["heads"].extend(nn.Linear(8, 4) for _ in range(3))  # type: ignore[operator]
    assert groups(network) == {"narrow.weight": ("layers.0", "layers.1", 2)}


def test_two_layers_that_share_a_parameter_hold_it_each() -> None:
    network = nn.ModuleList([Block(), Block()])
    network[1].wide = network[0].wide  # type: ignore[union-attr]
    first, second = find_layers(network)
    assert first.parameters[0] is second.parameters[0] and len(second.parameters) == 4


@pytest.mark.parametrize("head", ["causal", "masked", "seq2seq", "classify"])
def test_sublayers_of_ours(head: str) -> None:
    network = model(head)
    layers = find_layers(network)
    names = {name: m for name, m in network.named_modules() if type(m).__name__.endswith("Sublayer")}
    assert [layer.address for layer in layers] == list(names)
    for layer in layers:
        assert layer.matrix is names[layer.address].branch.out.weight
        assert layer.group == f"{layer.facts['stack']} {layer.facts['kind']}"
    assert {layer.facts["stack"] for layer in layers} == (
        {"encoder", "decoder"} if head == "seq2seq" else {"decoder" if head == "causal" else "encoder"}
    )


def test_sublayers_by_layer() -> None:
    layers = find_layers(model("seq2seq"))
    found = by_layer(layers)
    assert found.addresses == [*(f"encoder.layers.{i}" for i in range(3)), "decoder.layers.0", "decoder.layers.1"]
    assert found.stacks == ["encoder"] * 3 + ["decoder"] * 2
    norms = [3.0, 4.0] * 3 + [2.0, 3.0, 6.0, None, None, None]  # attn, ffn; attn, cross, ffn
    assert found.joined(norms) == [5.0, 5.0, 5.0, 7.0, None]


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_wrappers_leave_no_trace_in_addresses() -> None:
    plain = OTHERS["bert"][0]()
    addresses = [layer.address for layer in find_layers(plain)]
    wrapped = nn.Module()
    wrapped.module = torch.compile(plain, backend="eager")  # as DDP holds what it wraps
    assert [layer.address for layer in find_layers(wrapped)] == addresses
    assert [layer.address for layer in find_layers(wrapped, addresses[1:])] == addresses[1:]


def test_modules_by_address() -> None:
    network = OTHERS["bert"][0]()
    found = find_layers(network, [f"bert.encoder.layer.{i}.attention.self.query" for i in range(3)])
    assert [layer.facts["layer"] for layer in found] == [1, 2, 3]
    assert found[1].matrix is network.get_parameter("bert.encoder.layer.1.attention.self.query.weight")
    assert len({layer.group for layer in found}) == 1


def test_one_layer_that_is_run_many_times_is_one() -> None:
    config = AlbertConfig(embedding_size=8, vocab_size=40, **SHAPE)
    (layer,) = find_layers(AlbertForMaskedLM(config))
    assert layer.facts["address"] == "albert.encoder.albert_layer_groups.0"


class Own(nn.Module):
    """A model of parts, as people write one: what `run` does with them is up to it."""

    def __init__(self, run: Callable[["Own", Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def through(model: Own, x: Tensor) -> Tensor:
    for part in model.children():
        for one in part if isinstance(part, nn.ModuleList) else [part]:
            x = x + one(x)
    return x


def looped(model: Own, x: Tensor) -> Tensor:
    return model.block(x + model.block(x))


UNUSUAL: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "one block in a list, many times": (lambda: Own(through, blocks=nn.ModuleList([block()] * 4)), ["blocks.0"]),
    "one block, run in a loop": (lambda: Own(looped, block=block()), ["block.0", "block.2"]),
    "no list of layers": (lambda: Own(through, first=nn.Linear(8, 8), second=nn.Linear(8, 8)), ["model"]),
    "one matrix": (lambda: nn.Linear(8, 8), ["model"]),
    "recurrent": (lambda: Own(lambda m, x: m.cell(x[None])[0][0], cell=nn.LSTM(8, 8, 2)), ["model"]),
    "sizes known later": (lambda: Own(through, a=nn.LazyLinear(8), b=nn.LazyLinear(8)), ["model"]),
    "vectors only": (lambda: Own(lambda m, x: m.norm(x), norm=nn.LayerNorm(8)), ["model"]),
    "numbers of one entry": (lambda: Own(lambda m, x: m.act(x), act=nn.PReLU()), ["model"]),
    "complex": (lambda: Own(lambda m, x: m.a(x.cfloat()).abs(), a=nn.Linear(8, 8, dtype=torch.cfloat)), ["model"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("name", UNUSUAL)
def test_a_model_of_any_structure_is_watched(name: str) -> None:
    build, addresses = UNUSUAL[name]
    torch.manual_seed(0)
    model = build()
    watch = isograd.watch(model)
    optimizer: torch.optim.Optimizer | None = None
    for step in range(14):
        x = torch.randn(16, 8)
        loss = (model(x) - 0.9 * x).square().mean()
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 1e-3)
        loss.backward()
        watch.step(loss, batch=(x, x) if step % 2 else {"frames": x, "name": "mine"})
        optimizer.step()
        optimizer.zero_grad()
    assert [row["address"] for row in watch.layers] == addresses and watch.warnings == []
    assert watch.row["loss"] == pytest.approx(loss.item()) and watch.row["grad_norm"] > 0


class Mondays(Mapping[str, Any]):
    """A batch that cannot be read."""

    def __getitem__(self, name: str) -> Any:
        raise RuntimeError("only on Mondays")

    def __iter__(self) -> Iterator[str]:
        return iter(["labels"])

    def __len__(self) -> int:
        return 1


def test_a_look_that_fails_ends_and_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    model = Own(through, first=nn.Linear(8, 8), second=nn.Linear(8, 8))
    watch = isograd.watch(model)
    for _ in range(3):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        watch.step(loss, batch=Mondays())
    assert watch.row["step"] == 3 and watch.warnings == []
    messages = [message for message in caplog.messages if "not looked at any more" in message]
    assert messages and len(messages) == len(set(messages)) and "only on Mondays" in messages[0]
