"""One layer of each family that carries a design, against ours; `benchmarks/oracles.py` writes the table."""

from dataclasses import replace

import pytest

from isograd.placement import get
from isograd.placement.formula import PLAIN
from isograd.placement.streams import Parallel
from tests.transformer.oracles import FAMILIES, difference, promoted


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_is_that_of_transformers(name: str) -> None:
    with promoted():
        assert difference(FAMILIES[name]) < 1e-9
    assert difference(FAMILIES[name]) < 1e-5


@pytest.mark.parametrize("name", [n for n, one in FAMILIES.items() if one.placement.stream == PLAIN])
def test_another_wiring_is_another_layer(name: str) -> None:
    """The negative control: the same norms and weights, with branches that read the layer's input, differ."""
    family = FAMILIES[name]
    with promoted():
        assert difference(family, replace(family.placement, stream=Parallel())) > 1e-3


@pytest.mark.parametrize("name", ["Cohere", "GPT-NeoX, parallel", "GPT-J"])
def test_a_sequential_layer_is_not_a_parallel_one(name: str) -> None:
    with promoted():
        assert difference(FAMILIES[name], get("pre-ln")) > 1e-3


@pytest.mark.parametrize("wrong", ["mhc", "independent-streams"])
def test_a_stream_is_not_another(wrong: str) -> None:
    """DeepSeek-V4's layer and HY-V4's share their parts' names; the designs are not one another's."""
    family = FAMILIES["HY-V4" if wrong == "mhc" else "DeepSeek-V4"]
    with pytest.raises((RuntimeError, AssertionError)), promoted():
        difference(replace(family, placement=get(wrong)))
