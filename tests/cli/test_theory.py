"""`isograd reproduce theory`, its files and its exit codes."""

import json
import re
from pathlib import Path

import pytest
import torch

from isograd.papers.theory import CLAIMS
from isograd.placement import CATALOGUE
from tests.study.arms import called, refused


def test_json_a_page_and_figures(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "theory"
    code, told, err = called(
        "reproduce", "theory", "lemma-3", "lemma-1", "--seeds", "1", "--json", "--negative-controls", "--out", str(out)
    )
    assert code == 0, err
    content = json.loads(told)
    assert [row["claim"] for row in content["verdicts"]] == ["lemma-1", "lemma-3"]
    for row in content["verdicts"]:
        assert {"claim", "placement", "predicted", "measured", "tolerance", "holds"} <= set(row)
        assert row["holds"] is True and row["tolerance"][0] <= row["measured"] <= row["tolerance"][1]
    assert [row["holds"] for row in content["negative_controls"]] == [False, False]
    assert content["page"] == str(out / "theory.html")
    page = (out / "theory.html").read_text()
    assert page.count("<svg") == 2 and page.count('class="good">holds') == 2 and "gelu: 0.96" in page
    assert not re.search(r"(?:src|href)=[\"']?(?:http|//|file)", page)
    kept = json.loads((out / "theory.json").read_text())
    assert kept["verdicts"][0]["curve"]["x"] == [64, 128, 256, 512, 1024] and kept["verdicts"][0]["lines"]
    names = {f"{claim}.{kind}" for claim in ("lemma-1", "lemma-3") for kind in ("svg", "png", "csv")}
    assert {path.name for path in out.iterdir()} == {"theory.html", "theory.json", "tables", *names}


def test_a_table_and_progress(tmp_path: Path) -> None:
    code, told, err = called("reproduce", "theory", "lemma-1", "--seeds", "1", "--out", str(tmp_path))
    assert code == 0 and re.search(r"lemma-1 +any +1 +\S+ +0.99 to 1.01 +holds", told)
    assert "1 of 1 verdicts hold." in told and "foil" not in told
    assert err.startswith("lemma-1, relu: ")


def test_a_claim_that_fails(tmp_path: Path) -> None:
    """One seed is too noisy for this one."""
    code, told, err = called("reproduce", "theory", "lemma-2-post-ln", "--seeds", "1", "--out", str(tmp_path))
    assert code == 1 and "0 of 1 verdicts hold." in told and " fails" in told
    assert err.endswith("isograd reproduce: lemma-2-post-ln does not hold for post-ln\n")
    assert 'class="bad">fails' in (tmp_path / "theory.html").read_text()


@pytest.mark.slow
def test_the_same_seeds_give_the_same_numbers(tmp_path: Path) -> None:
    command = [
        "reproduce",
        "theory",
        "lemma-3",
        "hidden-state-growth",
        "--seeds",
        "1",
        "--json",
        "--out",
        str(tmp_path),
    ]
    torch.manual_seed(1)
    one = json.loads(called(*command)[1])["verdicts"]
    torch.manual_seed(2)
    assert json.loads(called(*command)[1])["verdicts"] == one


def test_list_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, told, err = called("reproduce", "theory", "--list")
    assert (code, err) == (0, "") and not list(tmp_path.iterdir())
    assert [line.split()[0] for line in told.splitlines() if not line.startswith(" ")] == list(CLAIMS)
    content = json.loads(called("reproduce", "theory", "--list", "--json", "amplification")[1])
    assert list(content) == ["amplification"] and "admin" in content["amplification"]["placements"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lema-1"], "unknown claim 'lema-1': did you mean 'lemma-1'?"),
        (["zzz"], "choose among lemma-1"),
        (["--seeds", "0"], "at least 1"),
        (["--seeds", "many"], "'many'"),
        (["--bogus"], "--bogus"),
    ],
)
def test_wrong_use(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("reproduce", "theory", *words)
    assert not list(tmp_path.iterdir())


def test_out_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not a folder" in refused("reproduce", "theory", "lemma-1", "--out", str(tmp_path / "file"))


def test_a_placement_of_ones_own_in_the_papers_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pre-LN under another name is like Pre-LN in what theorem 1 says, and a stack of both norms like neither."""
    (tmp_path / "my_designs.py").write_text(
        "from isograd import Placement, register\n"
        "from isograd.placement import Norm, Residual\n"
        "register('mine-bare', Placement(each=Residual(pre=Norm()), final=Norm(), about='-'), overwrite=True)\n"
    )
    monkeypatch.setitem(CATALOGUE, "mine-bare", CATALOGUE["pre-ln"])  # and taken out again at the end
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = (
        "reproduce",
        "theory",
        "theorem-1",
        "--placement",
        "mine-bare",
        "--import",
        "my_designs",
        "--seeds",
        "2",
        "--json",
    )
    code, out, _ = called(*words)
    (row,) = json.loads(out)["claims"]
    assert code == 0 and row["like"] == ["pre-ln"] and -0.68 <= row["measured"] <= -0.42
    assert json.loads(Path("runs/theory/mine-bare.json").read_text()) == [row]
    assert "of a part that all stacks have" in refused("reproduce", "theory", "lemma-1", "--placement", "pre-ln")
    assert "unknown placement 'mne'" in refused("reproduce", "theory", "theorem-1", "--placement", "mne")
    assert "negative-controls" in refused("reproduce", "theory", "--negative-controls", "--placement", "pre-ln")
