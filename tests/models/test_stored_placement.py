"""config.json carries the placement: it loads where nobody has registered it, and a changed entry changes nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.convert.export import export_folder
from isograd.errors import UnknownPlacement
from isograd.models import IsogradConfig, IsogradForCausalLM
from isograd.placement import (
    CATALOGUE,
    ByKind,
    HeadScale,
    Init,
    Learned,
    Norm,
    Placement,
    ProjectionNorm,
    Residual,
    Site,
    get,
    register,
    sites,
)
from isograd.placement.stored import restored
from tests.build import HEADS, LATER, NAMES, ONE_PER_STREAM, config, inputs, model

N = Norm()


def mixed(site: Site) -> Residual | ByKind:
    """Post-LN in the first layer; pre-LN with a law in the others."""
    if site.layer == 1:
        return Residual(post=N, skip=Learned(init=lambda s: 1 + 1 / s.slot, shape="scalar"))
    return ByKind(attn=Residual(pre=N, scale=lambda s: s.layer**-0.5, head_scale=HeadScale()), ffn=Residual(pre=N))


OWN: dict[str, Placement] = {
    "own": Placement(
        each=ByKind(
            attn=Residual(pre=N, scale=Learned(init=0.1), projections=ProjectionNorm(of=("query",), over="head")),
            cross=Residual(out=Norm(kind="rmsnorm")),
            ffn=Residual(pre=N, mid=N, skip=lambda s: 1 - s.slot / 100),
        ),
        final=N,
        init=Init(base="normal", gain={"ffn_out": lambda s: s.layer**-0.5, "value": 0.5}),
    ),
    "mixed": Placement(each=mixed, final=Norm(kind="rmsnorm")),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "name",
    [
        *NAMES,
        *(
            pytest.param(n, marks=[] if n in ONE_PER_STREAM or CATALOGUE[n].constrain else pytest.mark.slow)
            for n in LATER
        ),
        *OWN,
    ],
)
def test_what_is_stored_is_the_placement_at_every_site(name: str, head: str, own_catalogue: None) -> None:
    CATALOGUE.update(OWN)
    given = config(head, placement=name)
    content = json.loads(given.to_json_string())
    found, entry = restored(content["formula"]), get(name)
    assert content["placement"] == name and found.final == entry.final and found.calibrate == entry.calibrate
    assert found.init.base == entry.init.base and found.first == entry.first and found.constrain == entry.constrain
    assert type(found.stream) is type(entry.stream)
    for stack in given.stacks():
        layers, other = given.depths(stack)
        for site in sites(layers, stack, other):
            assert found.at(site) == entry.at(site)
            for role in (*entry.rates.lr, *entry.rates.eps):
                assert found.rates.at(role, site) == entry.rates.at(role, site)
            for role, gain in entry.init.at(site).items():
                if role.startswith("ffn") == (site.kind == "ffn"):
                    assert found.init.at(site)[role] == gain
    assert IsogradConfig.from_dict(content).entry() is entry  # where both say the same


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("head", ["causal", "seq2seq"])
def test_a_changed_entry_changes_no_saved_model(name: str, head: str, own_catalogue: None, tmp_path: Path) -> None:
    register("mine", OWN[name])
    made = model(head, placement="mine")
    made.save_pretrained(tmp_path / "a")
    register("mine", get("post-ln"), overwrite=True)
    again = type(made).from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    del CATALOGUE["mine"]
    third = type(made).from_pretrained(tmp_path / "b")
    assert (tmp_path / "a/config.json").read_text() == (tmp_path / "b/config.json").read_text()
    for loaded in (again, third):
        assert torch.equal(loaded(**inputs(head)).logits, made(**inputs(head)).logits)


@pytest.mark.slow
def test_a_process_that_never_registered_it_loads_it_by_the_card(own_catalogue: None, tmp_path: Path) -> None:
    """The lines that the card prints, run as they are; the folder is all that the process knows."""
    CATALOGUE.update(OWN)
    expected = []
    code = "import os, re, torch\n"
    for name in OWN:
        made = model(placement=name)
        made.save_pretrained(tmp_path / f"{name}-model")
        export_folder(tmp_path / f"{name}-model", tmp_path / name, to="isograd")
        expected.append(made(torch.arange(3, 11)[None]).logits.double().sum().item().hex())
        code += f"os.chdir({str(tmp_path / name)!r})\n"
        code += "exec(re.search(r'```python\\n(.*?)```', open('README.md').read(), re.S)[1])\n"
        code += "print(model(torch.arange(3, 11)[None]).logits.double().sum().item().hex())\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == expected, done.stderr


def test_a_name_alone_is_the_default(own_catalogue: None, tmp_path: Path) -> None:
    """config.json without the formula."""
    made = model(placement="deepnorm")
    made.save_pretrained(tmp_path)
    content: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    del content["formula"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    again = IsogradForCausalLM.from_pretrained(tmp_path)
    assert again.config.entry() is get("deepnorm")
    assert torch.equal(again(**inputs("causal")).logits, made(**inputs("causal")).logits)
    (tmp_path / "config.json").write_text(json.dumps(content | {"placement": "own"}))
    with pytest.raises(UnknownPlacement, match="unknown placement 'own'"):
        IsogradForCausalLM.from_pretrained(tmp_path)


def test_another_depth_and_a_broken_formula_are_refused(own_catalogue: None) -> None:
    CATALOGUE.update(OWN)
    content = config(placement="mixed").to_diff_dict()
    del CATALOGUE["mixed"]
    with pytest.raises(ValueError, match="no attn in layer 3 of the encoder: it is 'mixed' at another depth"):
        IsogradForCausalLM(IsogradConfig.from_dict(content | {"num_hidden_layers": 3}))
    whole = content["formula"]["encoder"]
    first, *others = whole["sublayers"]
    for broken in (
        {"name": "mixed"},
        {},
        3,
        whole | {"sublayers": []},
        whole | {"sublayers": [first | {"layers": [1]}, *others]},
        whole | {"sublayers": [first | {"init": "nosuch"}, *others]},
    ):
        content["formula"]["encoder"] = broken
        with pytest.raises(ValueError, match="the formula in this configuration cannot be read"):
            IsogradConfig.from_dict(content)
    for broken in ("mixed", [whole], 3):
        with pytest.raises(ValueError, match="the formula in this configuration cannot be read"):
            IsogradConfig.from_dict(content | {"formula": broken})
