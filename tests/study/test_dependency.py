"""beta_ij against a decomposition by brute force: each branch taken out, everything else held, in float64."""

import pytest
import torch
from torch import Tensor

from isograd.diagnose.quantities import terms
from isograd.papers.reproduce.measures.dependency import dependency_map
from isograd.placement import Norm, Placement, Residual, register
from isograd.placement.streams import LayerSkip
from isograd.transformer.sublayer import Sublayer
from tests.build import in_turn, inputs, model, tokens

PLACEMENTS = ("post-ln", "pre-ln", "admin", "deepnorm", "normformer-resscale")


def recorded(network: torch.nn.Module, ids: Tensor) -> tuple[Tensor, list[tuple[Sublayer, Tensor, Tensor]]]:
    """The embedding, and for each sublayer what its branch wrote and its sum."""
    start: list[Tensor] = []
    rows: list[tuple[Sublayer, Tensor, Tensor]] = []
    network.model.embedding.register_forward_hook(lambda m, a, x: start.append(x))
    for sublayer in [m for m in network.modules() if isinstance(m, Sublayer)]:
        sublayer.combine.register_forward_hook(lambda m, a, out, own=sublayer: rows.append((own, a[1], out)))
    network(ids)
    return start[0], rows


def replayed(start: Tensor, rows: list[tuple[Sublayer, Tensor, Tensor]], without: int, until: int) -> Tensor:
    """The stream after `until` sublayers without one part (-1: with all), branches and statistics as recorded."""
    x = torch.zeros_like(start) if without == 0 else start
    for i, (sublayer, u, total) in enumerate(rows[:until], start=1):
        x = sum(terms(sublayer.combine, x, torch.zeros_like(u) if without == i else u))
        if hasattr(norm := sublayer.post, "weight"):
            mean = 0.0 if norm.__class__.__name__ == "RMSNorm" else x.mean(-1, keepdim=True)
            of = total if norm.__class__.__name__ == "RMSNorm" else total - total.mean(-1, keepdim=True)
            x = (x - mean) / ((of**2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
            x = x + norm.bias if getattr(norm, "bias", None) is not None else x
    return x


def ratio(part: Tensor, whole: Tensor) -> float:
    a, b = (t - t.mean(-1, keepdim=True) for t in (part, whole))
    return float(((a**2).sum(-1) / (b**2).sum(-1)).mean())


@torch.no_grad()
@in_turn("norm, placement", ["layernorm", "rmsnorm"], PLACEMENTS)
def test_each_branch_taken_out(placement: str, norm: str) -> None:
    network = model(placement=placement, norm=norm, num_hidden_layers=3, dtype=torch.float64)
    ids = tokens(2, 7)
    found = dependency_map(network, {"input_ids": ids})
    assert found.kinds == ("attn", "ffn") * 3 and found.remainder < 1e-12
    start, rows = recorded(network, ids)
    for i in range(1, 7):
        whole = replayed(start, rows, -1, i)
        expected = [ratio(whole - replayed(start, rows, j, i), whole) for j in range(i + 1)]
        assert found.rows[i - 1] == pytest.approx(expected, rel=1e-9)
    assert max(found.biases) > 1e-3 if placement == "post-ln" and norm == "layernorm" else True


def test_what_the_paper_says_at_initialization() -> None:
    """beta_ii^2 falls as 1/i in Pre-LN, and stays in Post-LN, which ADMIN is before its calibration."""
    own = {}
    for placement in ("pre-ln", "post-ln", "admin"):
        torch.manual_seed(0)
        network = model(
            placement=placement,
            random=False,
            num_hidden_layers=8,
            hidden_size=64,
            scale_embedding=True,
            num_attention_heads=4,
            intermediate_size=256,
        )
        own[placement] = dependency_map(network, {"input_ids": tokens(4, 24)}).own
    assert own["pre-ln"][-1] < own["pre-ln"][1] / 3 and 0.4 < own["pre-ln"][-1] * 17 < 2.5
    assert own["post-ln"][-1] > 2.5 * own["pre-ln"][-1] and own["post-ln"][-1] > own["post-ln"][1] / 1.5
    assert own["admin"] == pytest.approx(own["post-ln"])


def test_either_stack_and_without_the_padding() -> None:
    network, batch = model("seq2seq", dtype=torch.float64), inputs("seq2seq")
    plain = dependency_map(network, batch, "encoder")
    assert plain.kinds == ("attn", "ffn") * 3
    assert dependency_map(network, batch).kinds == ("attn", "cross", "ffn") * 2
    padded = {**batch, "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 3), value=1)}
    padded["attention_mask"] = (padded["input_ids"] != 1).long()
    again = dependency_map(network, padded, "encoder")
    for mine, theirs in zip(again.rows, plain.rows, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
    with pytest.raises(ValueError, match="has no encoder"):
        dependency_map(model(), {"input_ids": tokens(1, 4)}, "encoder")


def test_another_stream_or_norm_is_refused(own_catalogue: None) -> None:
    register("skip", Placement(each=Residual(post=Norm()), stream=LayerSkip()))
    register("lengths", Placement(each=Residual(post=Norm(kind="l2"))))
    for name, said in (("skip", "one stream that each sublayer adds to"), ("lengths", "FreeNorm is not known")):
        with pytest.raises(ValueError, match=said):
            dependency_map(model(placement=name), {"input_ids": tokens(1, 4)})
