"""Which library multiplies: the rule of the decision, its cache, and what a process and a file say of it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.errors import UserError
from isograd.transformer import kernels, products
from isograd.transformer.products import SHAPES, Choice, Products, Size, choose, decide, in_use, recorded, use, used

RULE, NEVER = Products(onednn_from=2**20), Products(onednn_from=None)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, nothing in the environment, and the rule in use again afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ISOGRAD_PRODUCTS")
    monkeypatch.setattr(kernels, "WORTHWHILE", 2**20)


def sizes(*lows: float) -> list[Size]:
    """Measurements at `SHAPES` whose lower quartiles are these."""
    more: dict[str, Any] = {"ratios": (1.0, 1.0, 1.0), "ratio": 1.0, "high": 9.0, "torch_ms": 1.0, "onednn_ms": 1.0}
    return [
        Size(rows=rows, fan_in=fan_in, fan_out=fan_out, pairs=pairs, low=low, **more)
        for (rows, fan_in, fan_out, pairs, _), low in zip(SHAPES, lows, strict=True)
    ]


@pytest.mark.parametrize(
    ("lows", "chosen"),
    [
        ((1.0, 0.6, 0.5, 0.5), RULE),
        ((9.0, 0.6, 0.5, 0.5), RULE),  # the rule's own size is shown only
        ((1.0, 1.2, 1.05, 1.09), RULE),  # within the band: it is kept
        ((1.0, 1.3, 1.0, 0.9), Products(onednn_from=2**24)),
        ((1.0, 1.0, 1.2, 0.9), Products(onednn_from=2**26)),
        ((1.0, 1.3, 1.2, 1.2), NEVER),
        ((0.5, 0.5, 0.5, 1.2), NEVER),
    ],
)
def test_onednn_is_left_out_as_far_as_it_is_clearly_slower(lows: tuple[float, ...], chosen: Products) -> None:
    assert decide(sizes(*lows)) == chosen


def test_sizes_are_those_that_the_decision_names() -> None:
    counts = [size.multiplications for size in sizes(1, 1, 1, 1)]
    assert counts == [2**20, 2**22, 2**24, 2**26] and counts[1:] == list(products.SLOWER)


def test_what_is_measured_is_kept_and_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = products.measure
    monkeypatch.setattr(products, "measure", lambda threads: (calls.append(threads), real(threads))[1])
    torch.manual_seed(3)
    first, drawn = choose(), torch.rand(())
    assert drawn.equal(_first_number(3))  # torch's generator is left alone
    assert first.source == "measured now" and first.path is not None and calls == [1]
    assert all(0 < s.low <= s.ratio <= s.high and len(s.ratios) == 3 and s.torch_ms > 0 for s in first.sizes)
    content = json.loads(first.path.read_text())
    assert content["torch"] == torch.__version__ and content["threads"] == 1 and content["processor"]
    again = choose()
    assert calls == [1] and again == Choice(
        products=first.products, source="measured before", sizes=first.sizes, path=first.path
    )
    assert choose(again=True).source == "measured now" and calls == [1, 1]
    assert choose(threads=2).path != first.path and calls == [1, 1, 2]
    assert torch.get_num_threads() == 1 and in_use() == RULE


def _first_number(seed: int) -> torch.Tensor:
    return torch.rand((), generator=torch.Generator().manual_seed(seed))


def test_a_kept_choice_is_obeyed_whatever_would_be_measured() -> None:
    """The negative control of the cache: what stands there decides."""
    path = choose().path
    assert path is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | {"onednn_from": 2**24}))
    assert choose().products == Products(onednn_from=2**24)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:50],
        lambda text: "[]",
        lambda text: text.replace('"onednn_from": 1048576', '"onednn_from": "many"'),
        lambda text: text.replace('"ratios"', '"ratio of another version"'),
        lambda text: text.replace('"threads": 1', '"threads": 8'),
    ],
    ids=["cut off", "a list", "no number", "other fields", "of another machine"],
)
def test_a_damaged_cache_is_measured_again(damage: Any) -> None:
    path = choose().path
    assert path is not None
    whole = path.read_text()
    path.write_text(
        damage(whole.replace(f'"onednn_from": {json.loads(whole)["onednn_from"]}', '"onednn_from": 1048576'))
    )
    assert choose().source == "measured now"
    assert choose().source == "measured before"


def test_a_cache_that_cannot_be_written_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    choice = choose()
    assert choice.source == "measured now" and choice.path is None
    assert choice.note is not None and "cannot be written (Not a directory)" in choice.note and "\n" not in choice.note


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, chosen in (("onednn", RULE), ("torch", NEVER)):
        monkeypatch.setenv("ISOGRAD_PRODUCTS", word)
        assert choose() == Choice(products=chosen, source=f"ISOGRAD_PRODUCTS={word}")
    monkeypatch.setenv("ISOGRAD_PRODUCTS", "mkl")
    with pytest.raises(UserError, match="ISOGRAD_PRODUCTS=mkl: expected onednn or torch"):
        choose()


def test_without_onednn_nothing_is_measured() -> None:
    torch.backends.mkldnn.set_flags(False)
    try:
        assert choose().products == products.rule() == NEVER
    finally:
        torch.backends.mkldnn.set_flags(True)
    assert products.rule() == RULE


def test_what_is_in_use_is_what_a_product_takes() -> None:
    x, weight = torch.randn(2048, 64), torch.randn(64, 64)
    assert in_use() == RULE and kernels.large_float32_on_cpu(x, weight)
    with used(NEVER):
        assert in_use() == NEVER and not kernels.large_float32_on_cpu(x, weight)
        assert kernels.linear(x, weight).equal(torch.nn.functional.linear(x, weight))
    use(Products(onednn_from=2**24))
    assert in_use().onednn_from == 2**24 and not kernels.large_float32_on_cpu(x, weight)
    assert kernels.large_float32_on_cpu(torch.randn(4096, 64), weight)
    assert not math.isinf(kernels.WORTHWHILE)


def test_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "resolved.json"
    assert recorded(path) is None
    for content, found in (
        ({"products": {"onednn_from": None}}, NEVER),
        ({"products": {"onednn_from": 2**24}}, Products(onednn_from=2**24)),
        ({"steps": 3}, RULE),  # of an earlier version
        ({"products": {"onednn_from": -1}}, RULE),
    ):
        path.write_text(json.dumps(content))
        assert recorded(path) == found
    path.write_text("{")
    assert recorded(path) is None
