"""The table, the sentences and the figures of a depth profile, from plain data alone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from isograd.diagnose import profile
from isograd.lab.report.pages import profile as profile_page
from isograd.lab.report.pages.profile import draw, plain, write_profile
from tests import build
from tests.report.test_page import checked


def made(head: str, **options: Any) -> dict[str, Any]:
    return plain(profile(build.model(head, random=False, **options)).as_dict())


@pytest.fixture(scope="module")
def causal() -> dict[str, Any]:
    return made("causal", placement="pre-ln")


@pytest.fixture(scope="module")
def pair() -> dict[str, Any]:
    return made("seq2seq", placement="post-ln")


def test_the_overview(causal: dict[str, Any], pair: dict[str, Any]) -> None:
    found = dict(profile_page.overview(causal).lines)
    assert found["loss of the next token"] == f"{causal['loss']:.3g}"
    assert found["ln 41: loss of a uniform guess"] == f"{math.log(41):.3f}"
    assert len([name for name, _ in profile_page.overview(pair).lines if "first/last layer" in name]) == 2
    assert profile_page.summary(pair).endswith("Encoder: 3 layers of post-ln; decoder: 2 layers of post-ln.")
    assert not any(name.startswith("loss") for name, _ in profile_page.overview(causal | {"loss": None}).lines)


@pytest.mark.parametrize(("value", "said"), [(None, "n/a"), (math.nan, "n/a"), (0.012345, "0.0123"), (1234.5, "1,234")])
def test_numbers(value: float | None, said: str) -> None:
    assert profile_page.number(value) == said


def test_curves_are_the_rows(pair: dict[str, Any]) -> None:
    drawn = draw(pair, "gradients")
    assert drawn is not None
    encoder, _, decoder, _ = drawn.panels
    for axes, tower in ((encoder, "encoder"), (decoder, "decoder")):
        rows = [row for row in pair["rows"] if row["stack"] == tower and row["kind"] == "ffn"]
        line = next(one for one in axes.lines if one.get_label() == "feed-forward")
        assert list(line.get_xdata()) == [row["layer"] for row in rows]
        assert list(line.get_ydata()) == [row["gradient_mean_abs"] for row in rows]
    assert {"flat"} <= {line.get_label() for line in encoder.lines}
    assert {"√(2/3) per layer"} <= {line.get_label() for line in decoder.lines}


def test_noise_is_no_finding(causal: dict[str, Any]) -> None:
    """Gradients that differ by a tenth lie on a flat part of the axis; those that differ by a thousand fill it."""

    def span(factor: float) -> float:
        rows = [row | {"gradient_norm": factor ** (i / 3)} for i, row in enumerate(causal["rows"])]
        drawn = draw(causal | {"rows": rows}, "gradients")
        assert drawn is not None
        low, high = drawn.panels[1].get_ylim()
        return high / low

    assert span(1.1) == pytest.approx(5.0) and 1e3 < span(1e3) < 1e4


def test_no_numbers_no_figure(causal: dict[str, Any]) -> None:
    empty = causal | {"rows": [row | {"amplification": None} for row in causal["rows"]]}
    assert draw(empty, "amplification") is None and draw(causal, "amplification") is not None


def test_the_page_stands_alone(pair: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again from its JSON it is the same; what is no number is left open."""
    monkeypatch.setattr(profile_page, "CHARTS", profile_page.CHARTS[:2])  # drawing takes a second each
    broken = pair | {"rows": [pair["rows"][0] | {"residual_rms": math.inf, "growth": math.nan}, *pair["rows"][1:]]}
    page = checked(write_profile(tmp_path, broken, {"model": "<a & b>", "seed": "0"}))
    assert "Depth profile of <a & b>" in page.text and "n/a" not in page.text.split("Every sublayer")[0]
    content = json.loads((tmp_path / "profile.json").read_text())
    assert content["rows"][0]["residual_rms"] is None
    again = write_profile(tmp_path / "again", content, content["facts"])
    assert again.read_text() == (tmp_path / "profile.html").read_text()


def test_the_verdict(causal: dict[str, Any]) -> None:
    assert profile_page.verdict(causal).startswith("Nothing unusual")
    group = next(name for name in causal["ratios"] if name.endswith(" ffn"))
    vanished = {**causal, "ratios": {group: {"first_last": 1e-3, "max_min": 1e3}}}
    assert profile_page.verdict(vanished).startswith("Gradients vanish towards the input: first/last layer 0.001")
    loud = {**causal, "loss": 9.0, "ln_classes": 3.0, "objective": "next token"}
    assert "6.0 nats above a uniform guess: the head" in profile_page.verdict(loud)
    trained = loud | {"trained": True}
    assert "random inputs say nothing about a trained model's loss" in profile_page.verdict(trained)
    assert "on a text that the model was not trained on" in profile_page.verdict(trained | {"text": "mine.txt"})
    assert "as expected" in profile_page.verdict(trained | {"text": "mine.txt", "loss": 2.0})
