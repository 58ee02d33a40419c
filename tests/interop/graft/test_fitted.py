"""Measured changes: what is fitted is the least squares, what is dropped does least, and losses are reported."""

from typing import Any

import pytest
import torch

from isograd.convert.graft import graft
from isograd.convert.graft.fitted import captured
from isograd.convert.graft.text import Text, text_of
from isograd.errors import GraftError
from isograd.transformer.sublayer import Sublayer
from tests.build import few
from tests.build import model as our_model
from tests.interop.graft.families import family, logits


def ids(seed: int = 0, low: int = 4, high: int = 41) -> Text:
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(low, high, (4, 16), generator=draw) for _ in range(9)]
    batches = [{"input_ids": row, "labels": row} for row in rows]
    return Text(fit=batches[:3], held=batches[3:6], train=batches[6:])


TEXT = ids()


def test_merged_heads_are_means() -> None:
    model: Any = family("llama", num_key_value_heads=4)
    made = graft(model, "kv-heads=2", text=TEXT)
    step, after = made.steps[0], made.model
    assert step.parity is None and step.losses is not None and not made.exact
    old = model.model.layers[0].self_attn.v_proj.weight
    new: Any = after.get_parameter("model.layers.0.self_attn.v_proj.weight")
    assert torch.allclose(new[8:], (old[16:24] + old[24:]) / 2, atol=1e-7) and after.config.num_key_value_heads == 2
    with torch.inference_mode():
        losses = [sum(float(m(**b).loss) for b in TEXT.held) / 3 for m in (model, after)]
    assert losses == pytest.approx(step.losses)


def test_heads_of_ours_that_its_configuration_need_not_count() -> None:
    """Merged, and repeated again, of a model whose keys have as many heads as its queries."""
    ours = our_model(position_embedding_type="rotary", vocab_size=61)
    made = graft(ours, "kv-heads=2", text=TEXT)
    assert made.model.config.num_key_value_heads == 2 and made.steps[0].losses is not None
    again = graft(made.model, "kv-heads=4")
    assert again.exact and torch.allclose(logits(again.model), logits(made.model), atol=1e-5)


def test_heads_that_are_alike_are_merged_without_a_loss() -> None:
    """The negative control of the measure: repeated heads and their means are the same function."""
    model = family("llama")
    made = graft(graft(model, "kv-heads=4").model, "kv-heads=2", text=TEXT)
    assert torch.equal(logits(made.model), logits(model))


@pytest.mark.parametrize("drop", few(["angle", "loss"], ["angle"]))
def test_layers_that_write_nothing_go_first(drop: str) -> None:
    """By angle they are found at once; by loss each new layer has exactly the loss of the whole."""
    model = family("gpt2")
    deeper = graft(model, "layers=5", insert="top").model
    made = graft(deeper, "layers=3", text=TEXT, drop=drop)
    rows = made.steps[0].found
    assert [row["layer"] for row in rows if row["angle"] < 1e-6] == [4, 5]
    assert made.steps[0].losses is not None
    assert rows[3]["loss_without"] == rows[4]["loss_without"] == pytest.approx(made.steps[0].losses[0])
    if drop == "angle":
        assert torch.equal(logits(made.model), logits(model))
    else:
        gone = made.steps[0].said.partition("without ")[2].partition(",")[0]
        assert (
            int(gone)
            == sorted(sorted(rows, key=lambda row: row["loss_without"])[:2], key=lambda r: r["layer"])[0]["layer"]
        )


def test_merged_layers_are_sums_of_differences() -> None:
    model: Any = family("llama")
    made: Any = graft(model, "layers=1", text=TEXT, drop="merge").model
    first, second, third = (m.self_attn.q_proj.weight for m in model.model.layers)
    assert torch.allclose(made.model.layers[0].self_attn.q_proj.weight, second + third - first, atol=1e-6)


def test_norms_on_branches_are_fitted_by_least_squares() -> None:
    """Weight and bias of a channel, by numpy's solver: [n(u) 1] (w, b) = u."""
    model = our_model(placement="pre-ln")
    made: Any = graft(model, "placement=sandwich", text=TEXT).model
    name = "model.layers.1.ffn"
    branch = {n: m.branch for n, m in model.named_modules() if isinstance(m, Sublayer)}[name]
    u = captured(model, {name: branch}, TEXT, "output")[name]
    normed = torch.nn.functional.layer_norm(u, u.shape[-1:], eps=model.config.norm_eps)
    design = torch.stack([normed[:, 5], torch.ones(len(u)).double()], dim=1)
    solution = torch.linalg.lstsq(design, u[:, 5:6]).solution.flatten()
    norm = made.get_submodule(f"{name}.out")
    assert torch.allclose(torch.stack([norm.weight[5], norm.bias[5]]).double(), solution, atol=1e-5)


def test_curves_follow_the_norms_that_they_replace() -> None:
    """Fitted curves give what the norms gave, to a few per cent of it; the catalogue's own start does not."""
    model = our_model(placement="pre-ln")
    made: Any = graft(model, "norm=dyt", text=TEXT).model
    name = "model.layers.0.ffn.pre"
    read, gave = (captured(model, {name: model.get_submodule(name)}, TEXT, side)[name] for side in ("input", "output"))
    curve = made.get_submodule(name).double()
    with torch.no_grad():
        error, fresh = (float((y - gave).norm() / gave.norm()) for y in (curve(read), torch.tanh(0.5 * read)))
    assert error < 0.2 < fresh


def test_queries_keep_their_size_without_their_norm() -> None:
    model = our_model(placement="qk-norm")
    made = graft(model, "qk-norm=removed", text=TEXT)
    names = [n for n, _ in made.model.named_parameters()]
    assert not any("query_norm" in n or "key_norm" in n for n in names)
    at = "model.layers.0.attn.branch"
    branch: Any = model.get_submodule(at)
    q = captured(model, {"q": branch.query}, TEXT, "output")["q"]
    normed = branch.query_norm(q.float().view(len(q), 4, -1)).view(len(q), -1).detach().double()
    design = torch.stack([q[:, 6], torch.ones(len(q)).double()], dim=1)
    weight, bias = torch.linalg.lstsq(design, normed[:, 6:7]).solution.flatten().tolist()
    new: Any = made.model.get_submodule(at)
    assert torch.allclose(new.query.weight[6], branch.query.weight[6] * weight, atol=1e-5)
    assert torch.allclose(new.query.bias[6], branch.query.bias[6] * weight + bias, atol=1e-5)
    bare = our_model(placement="pre-ln")
    with pytest.raises(GraftError, match="no norms on queries"):
        graft(bare, "qk-norm=removed", text=TEXT)


def test_from_post_to_pre() -> None:
    """Nearer to what it was than with the norms moved and nothing fitted."""
    model = our_model(placement="post-ln", num_hidden_layers=4, random=False)
    made = graft(model, "placement=pre-ln", text=TEXT)
    assert made.model.config.placement == "pre-ln" and made.steps[0].losses is not None
    moved = our_model(placement="pre-ln", num_hidden_layers=4, random=False)
    state = {n.replace(".post.", ".pre."): v for n, v in model.state_dict().items()}
    moved.load_state_dict(state, strict=False)
    before, fitted, naive = logits_on(model), logits_on(made.model), logits_on(moved)
    assert float((fitted - before).norm()) < 0.6 * float((naive - before).norm())


def logits_on(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found = model(TEXT.held[0]["input_ids"]).logits
    assert isinstance(found, torch.Tensor)
    return found


def test_healing_lowers_the_loss_and_is_watched() -> None:
    text = Text(fit=TEXT.fit, held=TEXT.fit, train=TEXT.fit)  # what is trained on is measured on
    made = graft(family("gpt2"), "layers=2", text=text, heal=20, rate=1e-2)
    heal = made.steps[-1]
    assert heal.change == "heal" and heal.losses is not None and heal.losses[1] < heal.losses[0] - 0.1
    assert "20 steps" in heal.said and "nats per token" in str(made)


class Words:
    mask_token_id = 3

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [4 + hash_of(word) % 30 for word in text.split()]}


def hash_of(word: str) -> int:
    return sum(map(ord, word))


def test_a_text_in_three_parts() -> None:
    words = " ".join(f"word{i}" * (1 + i % 3) for i in range(3000))
    text = text_of(family("opt"), Words(), [words])
    rows = [tuple(r.tolist()) for part in (text.fit, text.held, text.train) for b in part for r in b["input_ids"]]
    assert len(rows) == 75 and len(text.fit) == len(text.held) == 6
    masked = text_of(family("bert"), Words(), [words]).fit[0]
    chosen = masked["labels"] != -100
    assert (masked["input_ids"][chosen] == 3).all() and 0.05 < chosen.float().mean() < 0.3
    with pytest.raises(GraftError, match="too few"):
        text_of(family("opt"), Words(), ["a few words"])
    with pytest.raises(GraftError, match="no tokenizer"):
        text_of(family("opt"), None, [words])
