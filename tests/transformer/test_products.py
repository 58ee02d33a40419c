"""Which library multiplies: the rule of the decision, its cache, and what a process and a file say of it."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.errors import UserError
from isograd.transformer import kernels, products
from isograd.transformer.products import (
    ONEDNN,
    SHAPES,
    TORCHS,
    Choice,
    Products,
    Size,
    choose,
    decide,
    in_use,
    recorded,
    use,
    used,
)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, nothing in the environment, and oneDNN in use again afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ISOGRAD_PRODUCTS")
    monkeypatch.setattr(kernels, "WORTHWHILE", 2**20)


def sizes(*ratios: float) -> list[Size]:
    """Measurements at `SHAPES` whose medians are these."""
    more: dict[str, Any] = {"ratios": (1.0, 1.0, 1.0), "low": 0.0, "high": 9.0, "torch_ms": 1.0, "onednn_ms": 1.0}
    return [
        Size(rows=rows, fan_in=fan_in, fan_out=fan_out, pairs=pairs, ratio=ratio, **more)
        for (rows, fan_in, fan_out, pairs, _), ratio in zip(SHAPES, ratios, strict=True)
    ]


@pytest.mark.parametrize(
    ("ratios", "begins"),
    [
        ((0.9, 0.6, 0.5, 0.5), 2**20),
        ((1.2, 0.7, 0.6, 0.5), 2**22),  # an EPYC with AVX512-BF16
        ((1.65, 1.15, 0.9, 0.8), 2**24),
        ((2.3, 1.4, 1.1, 1.1), None),  # a Zen 3
        ((0.9, 1.2, 0.9, 0.8), 2**24),  # a gain below a size at which it is slower is no gain
        ((0.5, 0.5, 0.5, 1.1), None),
        ((1.0, 1.0, 1.0, 1.0), None),
    ],
)
def test_onednn_begins_where_it_is_faster_from_there_on(ratios: tuple[float, ...], begins: int | None) -> None:
    assert decide(sizes(*ratios)) == Products(onednn_from=begins)


def test_sizes_are_four_times_apart() -> None:
    assert [size.multiplications for size in sizes(1, 1, 1, 1)] == [2**20, 2**22, 2**24, 2**26]


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
    assert torch.get_num_threads() == 1 and in_use() == ONEDNN


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
    content = json.loads(path.read_text()) | {"onednn_from": 2**20}
    path.write_text(damage(json.dumps(content)))
    assert choose().source == "measured now"
    assert choose().source == "measured before"


def test_a_cache_that_cannot_be_written_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    choice = choose()
    assert choice.source == "measured now" and choice.path is None
    assert choice.note is not None and "cannot be written (Not a directory)" in choice.note and "\n" not in choice.note


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, chosen in (("onednn", ONEDNN), ("torch", TORCHS)):
        monkeypatch.setenv("ISOGRAD_PRODUCTS", word)
        assert choose() == Choice(products=chosen, source=f"ISOGRAD_PRODUCTS={word}")
    monkeypatch.setenv("ISOGRAD_PRODUCTS", "mkl")
    with pytest.raises(UserError, match="ISOGRAD_PRODUCTS=mkl: expected onednn or torch"):
        choose()


def test_without_onednn_nothing_is_measured() -> None:
    torch.backends.mkldnn.set_flags(False)
    try:
        assert choose() == Choice(products=TORCHS, source="this build of torch has no oneDNN")
    finally:
        torch.backends.mkldnn.set_flags(True)


def test_plain_use_of_the_library_is_torchs_own() -> None:
    """In a process of its own: what nobody has measured is not assumed."""
    code = "from isograd.transformer.products import TORCHS, in_use; assert in_use() == TORCHS"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_in_use_is_what_a_product_takes() -> None:
    x, weight = torch.randn(2048, 64), torch.randn(64, 64)
    assert in_use() == ONEDNN and kernels.large_float32_on_cpu(x, weight)
    with used(TORCHS):
        assert in_use() == TORCHS and not kernels.large_float32_on_cpu(x, weight)
        assert kernels.linear(x, weight).equal(torch.nn.functional.linear(x, weight))
    use(Products(onednn_from=2**24))
    assert in_use().onednn_from == 2**24 and not kernels.large_float32_on_cpu(x, weight)
    assert kernels.large_float32_on_cpu(torch.randn(4096, 64), weight)
    assert not math.isinf(kernels.WORTHWHILE)


def test_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "resolved.json"
    assert recorded(path) is None
    for content, found in (
        ({"products": {"onednn_from": None}}, TORCHS),
        ({"products": {"onednn_from": 2**24}}, Products(onednn_from=2**24)),
        ({"steps": 3}, None),
        ({"products": {"onednn_from": -1}}, None),
    ):
        path.write_text(json.dumps(content))
        assert recorded(path) == found
    path.write_text("{")
    assert recorded(path) is None
