"""Suspicions that are tried: the replay is the model, what mends is confirmed, what does nothing is not."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from isograd.lint.checked_model import CheckedModel
from isograd.lint.intent import INTENTS, Intents
from isograd.lint.proof.task import task_of
from isograd.lint.proof.trial import Edit, Program, Trial, plus, times
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import guess_inputs
from tests.lint.faults.plain import VOCABULARY, WIDTH, Decoder, PreLayer, pre


class Replacing(PreLayer):
    """The feed-forward replaces the stream."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return self.ffn(self.ffn_norm(x))


def checked(model: nn.Module) -> CheckedModel:
    inputs = guess_inputs(model)
    return CheckedModel(model, inputs, find_anatomy(model, inputs))


@pytest.fixture
def small() -> CheckedModel:
    torch.manual_seed(0)
    return checked(pre(2))


def test_the_program_is_the_model(small: CheckedModel) -> None:
    """Outputs and gradients, of parameters that the trace was not made with."""
    twin, trace = small.twin, small.trace
    program = Program(trace)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape))
    mine = {v: twin.get_parameter(n).detach().clone().requires_grad_() for v, n in trace.names.items()}
    ids = next(iter(trace.inputs.values()))
    other = trace[ids].flip(1)
    (made,) = program.run(mine | {ids: other}, tuple(trace.outputs.values()), None)
    wanted = twin(other)
    torch.testing.assert_close(made, wanted)
    made.square().sum().backward()
    wanted.square().sum().backward()
    for value, name in trace.names.items():
        torch.testing.assert_close(mine[value].grad, twin.get_parameter(name).grad, msg=name)


def test_an_edit_is_seen_by_those_who_read(small: CheckedModel) -> None:
    """Of all, and of one of them alone."""
    trace, (first, *_) = small.trace, small.anatomy.sublayers
    given = {v: trace[v] for v in trace.names} | {v: trace[v] for v in trace.inputs.values()}
    outputs = tuple(trace.outputs.values())
    (plain,) = Program(trace).run(given, outputs, None)
    (doubled,) = Program(trace).run(given, outputs, Edit(says="", values={first.branch: times(2.0)}))
    (wanted,) = trace.replay({first.branch: 2 * trace[first.branch]}, outputs)
    assert not torch.equal(plain, doubled)
    torch.testing.assert_close(doubled, wanted)
    nobody = Edit(says="", values={first.branch: times(2.0)}, readers={first.branch: frozenset()})
    assert torch.equal(Program(trace).run(given, outputs, nobody)[0], plain)


def test_what_mends_is_confirmed_and_what_does_nothing_is_not() -> None:
    """The negative control: no change, and one that is as large and of no use."""
    torch.manual_seed(0)
    model = checked(pre(3, layer=Replacing))
    trial = Trial(model, None)
    found = [one for one in isograd.check(model.model) if one.code == "shortcut-missing"]
    proof = trial.of(found[0].edit)
    assert proof.verdict == "confirmed" and min(proof.gains) > 2 * proof.control and "3 of 3 seeds" in proof.says
    assert len(proof.as_is) == len(proof.changed) == 40 and proof.changed[-1] < proof.as_is[-1]
    last = model.anatomy.sublayers[-1].branch
    for edit in (Edit(says="nothing", values={last: times(1.0)}), Edit(says="a little", values={last: times(0.99)})):
        proof = trial.of(edit)
        assert proof.verdict == "overturned" and "no harm seen" in proof.says, proof
    assert max(abs(gain) for gain in trial.of(Edit(says="nothing", values={last: times(1.0)})).gains) == 0


def test_what_cannot_be_tried_says_why(small: CheckedModel) -> None:
    for proof, why in (
        (Trial(small, None).of(None), "no change is known"),
        (Trial(small, 0.0).of(Edit(says="x", values={})), "--prove tries it"),
        (
            Trial(small, None).of(Edit(says="x", values={small.anatomy.sublayers[0].total: plus((1.0, 0))})),
            "does not run",
        ),
    ):
        assert proof.verdict == "untried" and why in proof.says, proof


def test_a_large_model_is_tried_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isograd.trace.record.LARGE", 1_000)
    torch.manual_seed(0)
    model = pre(2, layer=Replacing)
    monkeypatch.setattr(sys.modules["isograd.lint.check"], "BUDGET", 100.0)
    for prove, tried, said in ((None, False, "50M parameters"), (True, True, "seeds")):
        (found,) = [one for one in isograd.check(model, prove=prove) if one.code == "shortcut-missing"]
        assert found.proof is not None and said in found.proof.says
        assert (found.proof.verdict != "untried") == tried


def test_severity_is_what_the_proof_says() -> None:
    torch.manual_seed(0)
    model = pre(3, layer=Replacing)
    (before,) = [one for one in isograd.check(model) if one.code == "shortcut-missing"]
    assert (before.kind, before.severity) == ("suspicion", "warning") and before.proof.verdict == "untried"
    found = isograd.check(model, prove=True, fix=True)
    (after,) = [one for one in found if one.code == "shortcut-missing"]
    assert (after.severity, after.proof.verdict) == ("error", "confirmed")
    assert "shortcut-missing" not in isograd.check(found.fixed).codes  # and the copy is another model
    assert "shortcut-missing" in isograd.check(model).codes
    told = after.as_dict()
    assert told["kind"] == "suspicion" and told["proof"]["task"] == "next token" and len(told["proof"]["gains"]) == 3


def test_the_line_of_a_finding() -> None:
    torch.manual_seed(0)
    (found,) = [one for one in isograd.check(pre(3, layer=Replacing)) if one.code == "shortcut-missing"]
    source = found.source
    assert source is not None and source.text == "return self.ffn(self.ffn_norm(x))"
    start, end = source.columns
    assert source.text[start:end] == "self.ffn(self.ffn_norm(x))" and Path(source.file) == Path(__file__)
    assert any("^" in line for line in source.shown(Path.cwd()))


def test_the_task_fits_the_model() -> None:
    torch.manual_seed(0)
    images = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.Flatten(), nn.Linear(8 * 64, 5))
    series = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 12))
    for model, name in ((pre(2), "next token"), (images, "fitting"), (series, "removing noise")):
        task = task_of(checked(model))
        assert not isinstance(task, str) and name in task.name, task
        first, again, other = task.batches(1), task.batches(1), task.batches(2)
        for (data, target), (same, _), (fresh, _) in zip(first, again, other, strict=True):
            assert all(torch.equal(data[v], same[v]) and not torch.equal(data[v], fresh[v]) for v in data)
            assert len(target) == len(next(iter(data.values())))


def test_intents_are_few_and_known() -> None:
    assert {INTENTS[other][0] for other, _ in INTENTS.values()} == set(INTENTS)
    assert Intents.given("causal").says("bidirectional") is False and Intents.given(()).says("causal") is None
    for wrong in (["casual"], ["causal", "bidirectional"]):
        with pytest.raises(ValueError):
            Intents.given(wrong)


class Mixing(nn.Module):
    """A residual layer whose weights over all positions are a softmax of x x^T, causal or not."""

    def __init__(self, causal: bool = False, **_: Any) -> None:
        super().__init__()
        self.norm, self.value, self.out, self.causal = (
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), causal,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        scores = y @ y.transpose(1, 2) / WIDTH
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e4)
        return x + self.out(scores.softmax(-1) @ self.value(y))


@pytest.mark.parametrize(("intent", "found"), [("causal", True), ("bidirectional", False), ((), False)])
def test_an_intent_decides_what_a_mask_is(intent: Any, found: bool) -> None:
    torch.manual_seed(0)
    codes = {one.code for one in isograd.check(pre(3, layer=Mixing), intent=intent) if one.severity == "error"}
    assert ("future-leaks" in codes) == found


class Scored(nn.Module):
    """A decoder with its loss, whose labels are shifted by so much."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.decoder, self.shift = pre(2), shift

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.decoder(input_ids)
        end = logits.shape[1] - self.shift
        return F.cross_entropy(logits[:, :end].flatten(0, 1), labels[:, self.shift :].flatten()), logits


@pytest.mark.parametrize(("shift", "said"), [(1, None), (0, "its own token"), (2, "shifted twice")])
def test_which_token_a_loss_rewards(shift: int, said: str | None) -> None:
    torch.manual_seed(0)
    ids = torch.randint(4, VOCABULARY, (3, 12))
    found = [
        one for one in isograd.check(Scored(shift), {"input_ids": ids, "labels": ids}) if one.code == "loss-shifted"
    ]
    assert [one.severity for one in found] == ([] if said is None else ["error"])
    assert said is None or said in found[0].message


class Captioned(nn.Module):
    """A picture of five vectors before the ids; the loss cuts it off, or is given labels of -100 for it."""

    def __init__(self, shift: int, padded: bool) -> None:
        super().__init__()
        self.decoder, self.seen, self.shift, self.padded = pre(2), nn.Linear(6, WIDTH), shift, padded

    def forward(self, pixels: Tensor, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = torch.cat([self.seen(pixels), self.decoder.tokens(input_ids)], 1)
        x = x + self.decoder.positions.weight[: x.shape[1]]
        for layer in self.decoder.layers:
            x = layer(x)
        logits = self.decoder.head(self.decoder.final_norm(x))
        if self.padded:
            labels, scored = F.pad(labels, (5, 0), value=-100), logits
        else:
            scored = logits[:, 5:]
        end = scored.shape[1] - self.shift
        loss = F.cross_entropy(scored[:, :end].flatten(0, 1), labels[:, self.shift :].flatten())
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("shift", "said"), [(1, None), (0, "its own token"), (2, "shifted twice")])
def test_positions_of_a_picture_before_the_ids_are_no_tokens(shift: int, said: str | None, padded: bool) -> None:
    torch.manual_seed(0)
    ids = torch.randint(4, VOCABULARY, (3, 12))
    batch = {"pixels": torch.randn(3, 5, 6), "input_ids": ids, "labels": ids}
    found = [one for one in isograd.check(Captioned(shift, padded), batch, prove=False) if one.code == "loss-shifted"]
    assert [one.severity for one in found] == ([] if said is None else ["error"])
    assert said is None or said in found[0].message


def test_a_loss_of_ones_own_is_read_as_well() -> None:
    torch.manual_seed(0)
    ids = torch.randint(4, VOCABULARY, (3, 12))
    for shift, codes in ((0, {"loss-shifted"}), (1, set())):

        def loss(logits: Tensor, batch: Any, by: int = shift) -> Tensor:
            end = logits.shape[1] - by
            return F.cross_entropy(logits[:, :end].flatten(0, 1), ids[:, by:].flatten())

        found = isograd.check(pre(2), ids, loss=loss)
        assert found.codes & {"loss-shifted", "target-leaks"} == codes, str(found)


class Deciding(nn.Module):
    """States and actions in turn; the action is read from its own token, or from the state's before it."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.states, self.actions, self.at = nn.Linear(5, WIDTH), nn.Linear(2, WIDTH), at
        self.layers, self.norm, self.head = (
            nn.ModuleList(PreLayer() for _ in range(2)),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2),
        )

    def forward(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.stack([self.states(states), self.actions(actions)], 2).flatten(1, 2)
        for layer in self.layers:
            x = layer(x)
        made = self.head(self.norm(x)[:, self.at :: 2])
        return F.mse_loss(made, actions), made


@pytest.mark.parametrize(("at", "found"), [(0, False), (1, True)])
def test_a_target_that_is_read(at: int, found: bool) -> None:
    torch.manual_seed(0)
    batch = {"states": torch.randn(3, 8, 5), "actions": torch.randn(3, 8, 2)}
    assert ("target-leaks" in isograd.check(Deciding(at), batch).codes) == found


class Masked(nn.Module):
    """An encoder that pools; it hides the keys of padding, or the queries."""

    def __init__(self, keys: bool) -> None:
        super().__init__()
        self.tokens, self.layer, self.keys = nn.Embedding(VOCABULARY, WIDTH), PreLayer(), keys
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, words: Tensor, how_long: Tensor) -> Tensor:
        real = torch.arange(words.shape[1]) < how_long[:, None]
        x = self.tokens(words)
        scores = x @ x.transpose(1, 2) / WIDTH
        hidden = ~real[:, None, :] if self.keys else ~real[:, :, None]
        x = x + scores.masked_fill(hidden, -1e4).softmax(-1) @ x
        return self.head((self.layer.ffn(x) * real[..., None]).sum(1) / how_long[:, None])


@pytest.mark.parametrize("keys", [True, False])
def test_padding_by_any_name(keys: bool) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([9, 5, 7, 3])
    words = torch.randint(4, VOCABULARY, (4, 9)).masked_fill(torch.arange(9) >= lengths[:, None], 0)
    found = isograd.check(Masked(keys), (words, lengths))
    assert ("padding-leaks" in found.codes) == (not keys), str(found)


class Numpy(Decoder):
    def forward(self, ids: Any) -> Tensor:
        return super().forward(torch.as_tensor(ids))


def test_arrays_of_numpy_are_inputs() -> None:
    torch.manual_seed(0)
    plain = pre(2)
    model = Numpy.__new__(Numpy)
    model.__dict__ = plain.__dict__
    found = isograd.check(model, (torch.randint(4, VOCABULARY, (2, 8)).numpy(),))
    assert set(found.placements.values()) == {"pre-ln"} and not found.errors


@pytest.mark.parametrize("axis", [2, 3, None])
def test_a_picture_whose_axis_has_no_position(axis: int | None) -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.layer = nn.Conv2d(3, WIDTH, 4, 4), Mixing()
            self.rows, self.columns = (nn.Parameter(torch.randn(WIDTH, *s) * 0.3) for s in ((4, 1), (1, 4)))
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, pixels: Tensor) -> Tensor:
            x = self.patch(pixels)
            x = x + (0 if axis == 2 else self.rows) + (0 if axis == 3 else self.columns)
            return self.head(self.layer(x.flatten(2).transpose(1, 2)).mean(1))

    torch.manual_seed(0)
    errors = {one.code for one in isograd.check(Patches(), torch.randn(2, 3, 16, 16)).errors}
    assert ("positions-missing" in errors) == (axis is not None)
