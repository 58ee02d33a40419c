"""Every entry since 2021 computes its paper's equation over a whole stack: fp64, all weights random, 1e-12."""

import pytest
import torch
from torch import Tensor

from isograd.models import IsogradModel
from isograd.placement import CATALOGUE
from tests.build import NAMES, close, config
from tests.transformer.by_hand import layernorm, rmsnorm
from tests.transformer.stacks_by_hand import RMS, ROTARY, STACKS, Hand

LAYERS, WIDTH, TIME = 5, 16, 7


def stack(name: str, seed: int = 0) -> IsogradModel:
    """A decoder with everything random, coefficients among them."""
    position = "rotary" if name in ROTARY else "none"
    made = IsogradModel(
        config(placement=name, num_hidden_layers=LAYERS, position_embedding_type=position), "decoder"
    ).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.2)
    return made.eval()


def sample() -> Tensor:
    return torch.randn(2, TIME, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def run(made: IsogradModel, x: Tensor) -> Tensor:
    later = torch.full((TIME, TIME), -torch.inf, dtype=x.dtype).triu(1)
    return made.run_layers(x, torch.arange(TIME)[None], later)


def by_hand(name: str, made: IsogradModel, x: Tensor) -> Tensor:
    """Raises KeyError or AssertionError where the weights are not those of `name`."""
    state = {n: p for n, p in made.state_dict().items() if not n.startswith("embedding.")}
    hand = Hand(state, rmsnorm if name in RMS else layernorm)
    out = STACKS[name](hand, x)
    assert not hand.unread(), f"the equation leaves {hand.unread()} unread"
    return out


def test_every_entry_has_an_equation() -> None:
    """A new entry's is a line of `STACKS` in stacks_by_hand.py."""
    assert {*NAMES, *STACKS} == set(CATALOGUE) and not set(NAMES) & set(STACKS)


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_its_papers_equation(name: str) -> None:
    made, x = stack(name), sample()
    close(run(made, x), by_hand(name, made, x), 1e-12)


@pytest.mark.parametrize("name", STACKS)
def test_no_other_equation_of_the_group_fits(name: str) -> None:
    made, x = stack(name), sample()
    got = run(made, x)
    for other, equation in STACKS.items():
        if CATALOGUE[other].group != CATALOGUE[name].group or equation is STACKS[name]:
            continue
        try:
            expected = by_hand(other, made, x)
        except (KeyError, AssertionError, RuntimeError, IndexError):
            continue  # the other placement has other weights, or of other shapes
        if (other, name) in SAME or (name, other) in SAME:
            close(got, expected, 1e-12)
        else:
            assert not (got - expected).abs().max() < 1e-3, other


SAME = {
    ("sub-ln", "sub-ln-kosmos2"),  # they differ in the init alone, as do
    ("no-norm", "t-fixup"),
    ("gated-attention", "gated-attention-heads"),  # one equation, which reads the shape of the gate
}
