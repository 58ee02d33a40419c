"""One training step: labels, checkpointing, compilation, dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isograd.placement import get
from isograd.placement.formula import PLAIN
from isograd.transformer.positions import POSITIONS
from tests.build import EVERY, HEADS, close, crossed, few, inputs, labelled, model, tokens

every_head = pytest.mark.parametrize("head", HEADS)
LANGUAGE = ["causal", "masked", "seq2seq"]


def step(network: Any, **given: Any) -> dict[str, Tensor]:
    network.zero_grad()
    network(**given).loss.backward()
    return {n: p.grad.clone() for n, p in network.named_parameters()}


@pytest.mark.filterwarnings(
    "ignore:`gradient_checkpointing_enable` is deprecated"
)  # its successor is newer than our floor
@crossed("name, head, reentrant", EVERY, [*HEADS], [False, True])
def test_checkpointing_keeps_every_bit(name: str, head: str, reentrant: bool) -> None:
    """Dropout included: the second forward draws the same masks."""
    network = model(head, placement=name, hidden_dropout=0.2).train()
    torch.manual_seed(4)
    plain = step(network, **labelled(head))
    network.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert all(layer.gradient_checkpointing for layer in network.modules() if hasattr(layer, "gradient_checkpointing"))
    if reentrant:
        network.enable_input_require_grads()
    torch.manual_seed(4)
    again = step(network, **labelled(head))
    # re-entrant, what several layers read (a memory, a stream of several tensors) gets their parts in another order
    reordered = reentrant and (head == "seq2seq" or get(name).stream != PLAIN)
    for n, gradient in plain.items():
        close(again[n], gradient, 1e-6 if reordered else 0)


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated")  # torch's own tracer
@pytest.mark.parametrize("name", few(["normformer-resscale", "admin", "deepnorm"], ["normformer-resscale"]))
@pytest.mark.parametrize("head", few(LANGUAGE, ["seq2seq"]))
def test_compiled_without_a_graph_break(head: str, name: str) -> None:
    torch.compiler.reset()
    network = model(head, placement=name, dtype=torch.float64).train()
    plain = step(network, **labelled(head))
    expected = network(**labelled(head)).loss
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    network.zero_grad()
    loss = compiled(**labelled(head)).loss
    close(loss, expected, 1e-12)
    loss.backward()
    for n, p in network.named_parameters():
        close(p.grad, plain[n], 1e-10)


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated")  # torch's own tracer
@pytest.mark.parametrize("sliding", [False, True])
def test_compiled_attention_is_causal_by_itself(sliding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask as a tensor would make a fused kernel form all scores, and throw half of them away."""
    monkeypatch.setattr("transformers.masking_utils._ignore_causal_mask_sdpa", lambda *_, **__: False)  # as in 5.17
    torch.compiler.reset()
    kinds = ["sliding_attention", "full_attention"]
    options = {"sliding_window": 3, "layer_types": kinds, "num_hidden_layers": 2} if sliding else {}
    network = model("causal", **options).train()
    expected = network(**labelled("causal")).loss
    calls: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        calls.extend(node for node in graph.graph.nodes if node.target is F.scaled_dot_product_attention)
        return graph

    close(torch.compile(network, fullgraph=True, backend=backend)(**labelled("causal")).loss, expected, 1e-6)
    masks = [node.kwargs.get("attn_mask") for node in calls]
    assert [mask is None for mask in masks] == ([False, True] if sliding else [True] * len(network.model.layers))
    assert all(node.kwargs["is_causal"] for node, mask in zip(calls, masks, strict=True) if mask is None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("head", LANGUAGE)
def test_compiled_by_inductor(head: str) -> None:
    torch.compiler.reset()
    network = model(head, placement="normformer-resscale").train()
    plain = step(network, **labelled(head))
    expected = network(**labelled(head)).loss
    network.zero_grad()
    loss = torch.compile(network, fullgraph=True)(**labelled(head)).loss
    close(loss, expected, 1e-5)
    loss.backward()
    for n, p in network.named_parameters():
        close(p.grad, plain[n], 1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [3, 512])
def test_causal_labels_are_shifted_here(chunk: int, smoothing: float) -> None:
    network = model(dtype=torch.float64, loss_chunk=chunk)
    ids, labels = tokens(2, 7), tokens(2, 7)
    labels[0, 3:5] = -100
    logits = network(ids).logits[:, :-1].flatten(0, 1)
    expected = F.cross_entropy(logits, labels[:, 1:].flatten(), label_smoothing=smoothing)
    close(network(ids, labels=labels, label_smoothing=smoothing).loss, expected, 1e-12)


def test_causal_labels_already_shifted() -> None:
    network, ids, target = model(dtype=torch.float64), tokens(2, 7), tokens(2, 7, seed=1)
    target[0, 3:5] = -100
    expected = F.cross_entropy(network(ids).logits.flatten(0, 1), target.flatten())
    close(network(ids, shift_labels=target).loss, expected, 1e-12)
    assert network(ids, shift_labels=target).logits is None
    same = network(ids, labels=torch.cat([ids[:, :1], target[:, :-1]], 1)).loss
    whole = F.cross_entropy(network(ids).logits[:, :-1].flatten(0, 1), target[:, :-1].flatten())
    close(same, whole, 1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [3, 512])
def test_masked_places_alone_give_the_whole_loss(chunk: int, smoothing: float) -> None:
    network = model("masked", dtype=torch.float64, loss_chunk=chunk)
    given = labelled("masked")
    expected = F.cross_entropy(
        network(given["input_ids"]).logits.flatten(0, 1), given["labels"].flatten(), label_smoothing=smoothing
    )
    places = (given["labels"].flatten() != -100).nonzero().squeeze(1)
    more = torch.cat([places, torch.tensor([0, 0])])  # a collator may pad its list with places that are not labelled
    grads = []
    for positions in (None, places, more, places.flip(0)):
        close(network(**given, masked_positions=positions, label_smoothing=smoothing).loss, expected, 1e-12)
        grads.append(step(network, **given, masked_positions=positions))
    for other in grads[1:]:
        for name, value in grads[0].items():
            close(other[name], value, 1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_seq2seq_labels_are_the_decoders_inputs_one_later(smoothing: float) -> None:
    network = model("seq2seq", dtype=torch.float64)
    source, labels = tokens(2, 6), tokens(2, 5, seed=1)
    labels[1, 3:] = -100
    fed = torch.tensor([[2, *labels[0, :-1].tolist()], [2, *labels[1, :3].tolist(), 1]])  # start, words, pad for -100
    assert torch.equal(network.prepare_decoder_input_ids_from_labels(labels), fed)
    logits = network(source, decoder_input_ids=fed).logits
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    close(network(source, labels=labels, label_smoothing=smoothing).loss, expected, 1e-12)
    close(network(source, labels=labels, decoder_input_ids=fed, label_smoothing=smoothing).loss, expected, 1e-12)
    network.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match="decoder_start_token_id and pad_token_id"):
        network(source, labels=labels)


def test_classification_and_regression() -> None:
    given = labelled("classify")
    network = model("classify", dtype=torch.float64)
    out = network(**given)
    close(out.loss, F.cross_entropy(out.logits, given["labels"]), 1e-12)
    network = model("classify", dtype=torch.float64, num_labels=1)
    out = network(given["input_ids"], labels=torch.tensor([0.5, -1.0]))
    close(out.loss, (out.logits[:, 0] - torch.tensor([0.5, -1.0], dtype=torch.float64)).square().mean(), 1e-12)


@pytest.mark.parametrize("head", LANGUAGE)
def test_logits_beside_the_loss_only_when_asked(head: str) -> None:
    network, given = model(head), labelled(head)
    assert network(**given).logits is None
    assert network(**inputs(head)).loss is None
    feed = {k: v for k, v in given.items() if k != "labels"}
    assert torch.equal(network(**given, output_logits=True).logits, network(**feed).logits)
    assert network(**feed, output_logits=False).logits is None


@pytest.mark.parametrize("head", LANGUAGE)
def test_items_in_batch_divide_the_summed_loss(head: str) -> None:
    network, given = model(head, dtype=torch.float64), labelled(head)
    labels = given["labels"][:, 1:] if head == "causal" else given["labels"]
    count = (labels != -100).sum()
    mean = network(**given).loss
    for items in (5, torch.tensor(5)):
        close(network(**given, num_items_in_batch=items).loss, mean * count / 5, 1e-12)


@every_head
def test_every_parameter_gets_a_gradient(head: str) -> None:
    grads = step(model(head, placement="normformer-resscale", embedding_norm=True), **labelled(head))
    silent = [n for n, g in grads.items() if not g.any() and not n.endswith("key.bias")]
    assert not silent  # W_K's bias shifts a whole softmax: zero but for rounding


@pytest.mark.parametrize("place", ["hidden", "attention", "activation", "embedding"])
@every_head
def test_dropout_acts_in_training_only(head: str, place: str) -> None:
    quiet, noisy = model(head), model(head, **{f"{place}_dropout": 0.5})
    noisy.load_state_dict(quiet.state_dict())
    feed = inputs(head)
    assert torch.equal(quiet(**feed).logits, noisy(**feed).logits)
    noisy.train()
    assert not torch.equal(noisy(**feed).logits, noisy(**feed).logits)


@every_head
def test_attention_dropout_is_the_same_product(head: str) -> None:
    """At a p that drops nothing the logits are those without dropout; at 0.5 both back-ends drop the same."""
    feed = inputs(head)
    feed["attention_mask"] = torch.ones_like(feed["input_ids"])
    feed["attention_mask"][0, -2:] = 0
    quiet = model(head)
    for p, other, same in (
        (1e-9, {"attention_dropout": 0.0}, True),
        (0.5, {"attention_dropout": 0.5, "attn_implementation": "eager"}, True),
        (0.5, {"attention_dropout": 0.0}, False),
    ):
        made = [model(head, **options).train() for options in ({"attention_dropout": p}, other)]
        logits = []
        for network in made:
            network.load_state_dict(quiet.state_dict())
            torch.manual_seed(0)
            logits.append(network(**feed).logits)
        assert torch.allclose(*logits, atol=1e-5) is same


@pytest.mark.parametrize("position", POSITIONS)
def test_loss_falls(position: str) -> None:
    """Twenty steps on one batch, for every kind of position."""
    network, given = model(position_embedding_type=position, random=False).train(), labelled("causal")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    first = network(**given).loss.item()
    for _ in range(20):
        optimizer.zero_grad()
        network(**given).loss.backward()
        optimizer.step()
    assert network(**given).loss.item() < 0.5 * first
