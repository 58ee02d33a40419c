"""Each known fault is caught under its code, and nothing is said of its healthy twin.

Apart from the linter, each fault is shown to be one: by a measurement of its own that holds for the faulty model and
not for the twin.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from isograd.trace import record
from isograd.trace.inputs import guess_inputs, run
from tests.build import few
from tests.lint.faults import BESIDES, FAULTS, OPTIONS
from tests.lint.faults.plain import HEADS, WIDTH, PostLayer, RMSNorm

FIRST = {code: name for name, (_, _, code) in reversed(FAULTS.items())}.values()  # of each code
TWINS = [*{healthy: name for name, (_, healthy, _) in reversed(FAULTS.items())}.values()]  # of each healthy twin


def built(builder: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return builder()


@pytest.mark.parametrize("name", few(FAULTS, FIRST))
def test_a_fault_is_caught_with_its_code(name: str) -> None:
    faulty, _, code = FAULTS[name]
    findings = isograd.check(built(faulty), **OPTIONS.get(name, {}))
    assert code in findings.codes
    assert findings.missed == ()
    assert set(findings.codes) <= {code} | BESIDES.get(name, set()), [str(f) for f in findings]


@pytest.mark.parametrize("name", few(FAULTS, TWINS[::2]))
def test_nothing_is_said_of_the_healthy_twin(name: str) -> None:
    _, healthy, _ = FAULTS[name]
    findings = isograd.check(built(healthy), **OPTIONS.get(name, {}))
    assert [str(f) for f in findings] == []
    assert findings.missed == ()


@pytest.mark.parametrize("name", few(FAULTS, 12))
def test_the_same_is_said_where_a_model_counts_as_large(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameters are shared then, and experiments run with one layer of each kind."""
    monkeypatch.setattr(record, "LARGE", 0)
    faulty, healthy, code = FAULTS[name]
    findings = isograd.check(built(faulty), **OPTIONS.get(name, {}))
    assert code in findings.codes
    assert findings.missed == ()
    assert set(findings.codes) <= {code} | BESIDES.get(name, set()), [str(f) for f in findings]
    assert [str(f) for f in isograd.check(built(healthy), **OPTIONS.get(name, {}))] == []


# ------------------------------------------------------------------------------------ is it a fault? measured by hand


def output(model: Any, inputs: Any) -> Tensor:
    out = run(model, inputs)
    return out if isinstance(out, Tensor) else out.logits


def named(model: Any) -> dict[str, Any]:
    """Inputs by name, those of plain models included."""
    inputs = guess_inputs(model)
    if isinstance(inputs, dict):
        return inputs
    names = {1: ["input_ids"], 2: ["src", "tgt"]}[len(inputs)]
    return dict(zip(names, inputs, strict=True))


def last_vectors(model: Any) -> Tensor:
    """What the stack hands on: what the head reads, or what the model returns."""
    if not hasattr(model, "head"):
        return output(model, guess_inputs(model))
    seen: list[Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    output(model, guess_inputs(model))
    handle.remove()
    return seen[0]


def not_normed(model: Any) -> bool:
    """The last vectors have not the mean 0 and the variance 1 of a norm at its start."""
    return not torch.allclose(last_vectors(model).var(-1, unbiased=False), torch.tensor(1.0), atol=2e-2)


def has_no_gradient(model: Any) -> bool:
    model(*guess_inputs(model)).square().sum().backward()
    return any(p.grad is None for p in model.parameters())


def layers_differ_in_kind(model: Any) -> bool:
    """Some layers end in a norm and some do not."""
    seen: list[bool] = []
    handles = [
        layer.register_forward_hook(
            lambda _, __, out: seen.append(torch.allclose(out.var(-1), torch.tensor(1.0), atol=0.1))
        )
        for layer in model.layers
    ]
    output(model, guess_inputs(model))
    for handle in handles:
        handle.remove()
    return len(set(seen)) > 1


def has_no_attention(model: Any) -> bool:
    return not any("attn" in name for name, _ in model.named_modules())


def starts_are_uneven(model: Any) -> bool:
    stds = [p.std() for n, p in model.named_parameters() if p.ndim == 2]
    return bool(max(stds) > 2 * min(stds))


def loss_is_far(model: Any) -> bool:
    """More than half a nat above ln V on labels that have nothing to do with the input."""
    logits = output(model, guess_inputs(model)).flatten(0, 1)
    labels = torch.randint(logits.shape[1], logits.shape[:1], generator=torch.Generator().manual_seed(3))
    return F.cross_entropy(logits, labels).item() > math.log(logits.shape[1]) + 0.5


def changed(model: Any, inputs: dict[str, Any], name: str, places: slice) -> Tensor:
    """|change of the output| by place, (batch, time), where some ids are replaced by their neighbours."""
    other = inputs[name].clone()
    other[:, places] = (other[:, places] - 3) % 97 + 4
    return (output(model, inputs | {name: other}) - output(model, inputs)).abs().sum(-1)


def sees_the_future(model: Any) -> bool:
    inputs = named(model)
    moved = changed(model, inputs, "input_ids", slice(9, 10))
    assert (moved[:, 9:] > 1e-6).all(-1).any()  # negative control: to the right it must be seen
    return bool((moved[:, :9] > 1e-6).any())


def sees_padding(model: Any) -> bool:
    inputs = named(model)
    mask = inputs["attention_mask"].clone()
    mask[:, 12:] = 0
    return bool((changed(model, inputs | {"attention_mask": mask}, "input_ids", slice(12, 16))[:, :12] > 1e-6).any())


def ignores_the_source(model: Any) -> bool:
    inputs = named(model)
    return bool((changed(model, inputs, next(iter(inputs)), slice(0, 16)) == 0).all())


def head_is_apart(model: Any) -> bool:
    return model.config.tie_word_embeddings and model.head.weight is not model.tower.tokens.weight


def eps_weighs(model: Any) -> bool:
    """The first norm, at the variance that the stream has there, falls short of variance 1 by more than a tenth."""
    norm = model.layers[0].attn_norm
    x = model.tokens(named(model)["input_ids"])
    return bool(norm(x).var(-1, unbiased=False).mean() < 0.9)


def deep_and_post(model: Any) -> bool:
    """36 layers of Post-LN stayed at the unigram entropy at LR 1e-3, two seeds of two; Pre-LN trained."""
    return len(model.layers) == 36 and all(type(layer) is PostLayer for layer in model.layers)


PROOFS: dict[str, Callable[[Any], bool]] = {
    "final-norm-missing": not_normed,
    "parameter-unused": has_no_gradient,
    "placement-mixed": layers_differ_in_kind,
    "not-found": has_no_attention,
    "init-std": starts_are_uneven,
    "initial-loss": loss_is_far,
    "future-leaks": sees_the_future,
    "padding-leaks": sees_padding,
    "encoder-unused": ignores_the_source,
    "embedding-untied": head_is_apart,
    "norm-eps": eps_weighs,
    "collapse-predicted": deep_and_post,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_and_its_twin_is_free_of_it(name: str) -> None:
    faulty, healthy, code = FAULTS[name]
    assert PROOFS[code](built(faulty))
    assert not PROOFS[code](built(healthy))


@pytest.mark.parametrize("name", FAULTS)
def test_a_healthy_twin_starts_near_ln_v(name: str) -> None:
    """And with a number in every place."""
    model = built(FAULTS[name][1])
    assert output(model, guess_inputs(model)).isfinite().all()
    if hasattr(model, "head"):
        assert not loss_is_far(model)


def test_every_pair_is_deterministic_and_new() -> None:
    """A builder gives a new model each time, so that one test cannot spoil another's."""
    for faulty, healthy, _ in FAULTS.values():
        for builder in (faulty, healthy):
            one, other = built(builder), built(builder)
            assert one is not other
            pairs = zip(one.parameters(), other.parameters(), strict=True)
            assert all(torch.equal(a, b) and a is not b for a, b in pairs)


def test_the_norms_of_our_own_are_norms() -> None:
    x = torch.randn(3, WIDTH, dtype=torch.float32)
    torch.testing.assert_close(RMSNorm(WIDTH)(x), nn.RMSNorm(WIDTH, eps=1e-6)(x))
    assert WIDTH % HEADS == 0
