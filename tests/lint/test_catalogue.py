"""`isograd check` of the catalogue's own models, calibrated where they ask for it: nothing is reported."""

import pytest
import torch

import isograd
from isograd.models import IsogradConfig, IsogradForCausalLM
from isograd.placement import CATALOGUE
from tests.build import few

TRUE: dict[str, set[str]] = {}  # name -> what is found of what the entry is
NAMED = ("denseformer", "x0-scalars", "gated-streams", "hyper-connections", "mhc", "siamesenorm")  # by their streams


@pytest.mark.parametrize("name", few(CATALOGUE, ("admin", "mix-ln", "residual", "ngpt", "normformer-fairseq", *NAMED)))
@pytest.mark.filterwarnings("ignore:placement .* has not been calibrated")
def test_a_model_of_the_catalogue_is_one_clean_line(name: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 64}
    model = IsogradForCausalLM(IsogradConfig(vocab_size=101, max_position_embeddings=64, placement=name, **sizes))
    if CATALOGUE[name].calibrate:
        isograd.calibrate(model, {"input_ids": torch.randint(3, 101, (8, 32))})
    findings = isograd.check(model)
    assert findings.codes == TRUE.get(name, set()), str(findings)
    assert findings.missed == ()
    if name in NAMED:
        assert set(findings.placements.values()) == {name}
