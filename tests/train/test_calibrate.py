"""ADMIN's profile: against the original's, against the recursion written here, and what it leaves untouched."""

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd import IsogradConfig, IsogradForCausalLM, check
from isograd.diagnose.calibrate import CalibrationWarning, calibrate, together
from isograd.files import read_rows
from isograd.lab.train.train import load_task, train
from isograd.placement import Learned, Norm, Placement, Residual, register
from isograd.transformer.sublayer import Sublayer
from tests.build import HEADS, few, labelled, model, tokens
from tests.golden import PAD, REDUCED, WHOLE, load, present
from tests.train import calibrate_job
from tests.train.recipes import outcome, read_json, small
from tests.transformer.by_hand import Attend, Weights, feedforward, layernorm

CASE = "admin/admin_perturbed_learned"
ROOTS = [
    pytest.param(REDUCED, id="reduced"),
    pytest.param(
        WHOLE, id="whole", marks=pytest.mark.skipif(not present(CASE, WHOLE), reason="not beside this checkout")
    ),
]


def golden(root: Path) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """The model of the case with its skips spoiled, its tensors, and the batch of its profile."""
    network, t, _ = load(CASE, "init", root)
    source, written = t["in/src_tokens"], t["in/prev_output_tokens"]
    batch = {
        "input_ids": source,
        "attention_mask": (source != PAD).long(),
        "decoder_input_ids": written,
        "decoder_attention_mask": (written != PAD).long(),
    }
    network.config.calibration = None  # of its own skips, which are spoiled
    return spoiled(network), t, batch


def spoiled(network: Any) -> Any:
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, Sublayer):
                module.combine.skip.weight.uniform_(0.5, 3.0)
    return network


def skips_of(network: Any) -> list[float]:
    weights = [m.combine.skip.weight for m in network.modules() if isinstance(m, Sublayer)]
    assert all((w == w[0]).all() for w in weights)
    return [w[0].item() for w in weights]


@pytest.mark.parametrize("root", ROOTS)
def test_the_originals_omegas(root: Path) -> None:
    network, t, batch = golden(root)
    skips = calibrate(network.float(), batch)
    assert set(skips) == {"encoder", "decoder"} and len(skips["encoder"]) == 6 and len(skips["decoder"]) == 6
    for tower in ("encoder", "decoder"):
        assert skips[tower] == pytest.approx(t[f"profile/{tower}_omegas"].tolist(), rel=1e-5)
        assert skips[tower] == pytest.approx(skips_of(getattr(network, tower)), rel=1e-6)
        assert skips[tower][0] == 1.0
    assert network.config.calibration == {"method": "admin", **skips}


@pytest.mark.parametrize("root", ROOTS)
def test_the_profiled_network_gives_the_logits_of_its_profile(root: Path) -> None:
    network, t, batch = golden(root)
    calibrate(network, batch)
    got = network(**batch).logits
    real = batch["decoder_attention_mask"].bool()
    torch.testing.assert_close(got[real], t["out64/logits"][real], rtol=0, atol=1e-5)


@torch.no_grad()
def recursion(network: Any, ids: Tensor, variance: Any) -> list[float]:
    """omega_1 = 1; omega_{i+1} = sqrt(Var[omega_i x_{i-1}] + Var[f_i(x_{i-1})]), in place as it goes, in fp64."""
    config = network.config
    table = network.model.embedding.tokens.weight.double()
    positions = network.model.embedding.positions.weight.double()
    x = table[ids] * network.model.embedding.scale + positions[: ids.shape[1]]
    omegas, omega = [], 1.0
    for layer in network.model.layers:
        for sublayer in (layer.attn, layer.ffn):
            state = {n: p.detach().double() for n, p in sublayer.named_parameters()}
            w = Weights(state, layernorm)
            is_ffn = sublayer is layer.ffn
            u = feedforward(w, x) if is_ffn else Attend(config.num_attention_heads, causal=True).plain(w, x)
            omegas.append(omega)
            total = omega * x + u
            omega = float((variance(omega * x) + variance(u)) ** 0.5)
            x = w.norm("post", total)
    return omegas


@torch.no_grad()
def population(x: Tensor) -> Tensor:
    return ((x - x.mean()) ** 2).mean()


CONTROLS = {
    "unbiased": lambda x: x.var(),
    "second moment": lambda x: x.square().mean(),
    "per token": lambda x: x.var(-1, unbiased=False).mean(),
    "per feature": lambda x: x.var((0, 1), unbiased=False).mean(),
}


def causal(**options: Any) -> Any:
    network = spoiled(model(placement="admin", num_hidden_layers=3, scale_embedding=True, **options))
    with torch.no_grad():  # a mean that is not zero, or some of the controls would be true
        network.model.embedding.positions.weight.add_(0.3)
    return network


def test_the_recursion_by_hand() -> None:
    network, ids = causal(), tokens(3, 9)
    expected = recursion(network, ids, population)
    assert calibrate(network, {"input_ids": ids})["decoder"] == pytest.approx(expected, rel=1e-5)
    assert skips_of(network) == pytest.approx(expected, rel=1e-5)


def test_double_precision_stays_double() -> None:
    network, ids = causal(dtype=torch.float64), tokens(3, 9)
    expected = recursion(network, ids, population)
    assert calibrate(network, {"input_ids": ids})["decoder"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", CONTROLS)
def test_foils_other_variances_are_seen(name: str) -> None:
    network, ids = causal(), tokens(3, 9)
    got = calibrate(network, {"input_ids": ids})["decoder"][1:]
    wrong = recursion(network, ids, CONTROLS[name])[1:]
    assert max(abs(a / b - 1) for a, b in zip(got, wrong, strict=True)) > 1e-4


@pytest.mark.parametrize("root", ROOTS)
def test_foils_of_the_golden_case(root: Path) -> None:
    """Without the padding, and from an encoder's profile carried into the decoder: not the original's numbers."""
    network, t, batch = golden(root)
    golden_values = t["profile/encoder_omegas"].tolist() + t["profile/decoder_omegas"].tolist()
    skips = calibrate(network.float(), batch, padding=False)
    got = skips["encoder"] + skips["decoder"]
    assert max(abs(a / b - 1) for a, b in zip(got, golden_values, strict=True)) > 1e-2
    assert skips["decoder"][0] == 1.0


@pytest.mark.parametrize("head", HEADS)
def test_all_but_the_skips_stays_as_it_was(head: str) -> None:
    network = spoiled(model(head, placement="admin", hidden_dropout=0.1)).train()
    batch = labelled(head)
    network(**batch).loss.backward()
    weights, buffers = copy.deepcopy(dict(network.named_parameters())), copy.deepcopy(dict(network.named_buffers()))
    grads = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    objects = {n: id(p) for n, p in network.named_parameters()}
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in network.modules())
    state = torch.get_rng_state()
    calibrate(network, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training
    assert sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in network.modules()) == hooks
    assert {n: id(p) for n, p in network.named_parameters()} == objects
    for name, p in network.named_parameters():
        assert torch.equal(p, weights[name]) != name.endswith("combine.skip.weight"), name
        assert (p.grad is None) == (name not in grads) and (p.grad is None or torch.equal(p.grad, grads[name]))
        assert p.requires_grad
    for name, b in network.named_buffers():
        assert torch.equal(b, buffers[name])
    if network.config.tie_word_embeddings and head == "causal":
        assert network.lm_head.weight is network.model.embedding.tokens.weight


def test_bf16_is_profiled_in_fp32() -> None:
    network = causal().to(torch.bfloat16)
    twin = copy.deepcopy(network).float()
    batch = {"input_ids": tokens(3, 9)}
    assert calibrate(network, batch) == calibrate(twin, batch)
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}


def test_padding_left_out_is_a_batch_without_padding() -> None:
    """One padded row profiles as the row alone; counting the pads gives something else."""
    row = tokens(1, 6)
    padded = {"input_ids": torch.cat([row, row.new_full((1, 4), 1)], 1), "attention_mask": torch.ones(1, 10).long()}
    padded["attention_mask"][:, 6:] = 0
    alone = calibrate(causal(), {"input_ids": row})["decoder"]
    torch.manual_seed(0)
    network = causal()
    alone = calibrate(copy.deepcopy(network), {"input_ids": row})["decoder"]
    assert calibrate(copy.deepcopy(network), padded, padding=False)["decoder"] == pytest.approx(alone, rel=1e-5)
    assert calibrate(copy.deepcopy(network), padded)["decoder"] != pytest.approx(alone, rel=1e-3)


def test_dropout_is_on_in_training_mode() -> None:
    network = causal(hidden_dropout=0.3, embedding_dropout=0.2)
    batch = {"input_ids": tokens(3, 9)}
    torch.manual_seed(1)
    evaluated = calibrate(copy.deepcopy(network).eval(), batch)["decoder"]
    first, same = (calibrate(copy.deepcopy(network).train(), batch)["decoder"] for _ in range(2))
    torch.manual_seed(2)
    other = calibrate(copy.deepcopy(network).train(), batch)["decoder"]
    assert evaluated != first == same != other  # the random state is where it was, so the second draws the same


def test_a_second_profile_is_refused_also_after_loading(tmp_path: Path) -> None:
    network, batch = causal(), {"input_ids": tokens(3, 9)}
    first = calibrate(network, batch)
    network.save_pretrained(tmp_path)
    loaded = IsogradForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.calibration == network.config.calibration
    for one in (network, loaded):
        before = skips_of(one)
        with pytest.raises(RuntimeError, match="again=True"):
            calibrate(one, batch)
        assert skips_of(one) == before
        assert calibrate(one, batch, again=True)["decoder"] == pytest.approx(first["decoder"], rel=1e-6)


@pytest.mark.parametrize("placement", ["post-ln", "admin-closed", "deepnorm"])
def test_other_placements_are_refused(placement: str) -> None:
    network = model(placement=placement)
    with pytest.raises(ValueError, match=f"'{placement}' has nothing to calibrate"):
        calibrate(network, {"input_ids": tokens(2, 5)})
    assert network.config.calibration is None


def test_own_placements_with_a_gain(own_catalogue: None) -> None:
    """The variance of the branch counts its gain."""
    for name, gain in (("a", 1.0), ("b", 2.0)):
        register(name, Placement(each=Residual(post=Norm(), skip=Learned(), scale=gain), calibrate="admin"))
    plain, doubled = (model(placement=name) for name in "ab")
    doubled.load_state_dict(plain.state_dict(), strict=False)
    batch = {"input_ids": tokens(3, 9)}
    one, two = (calibrate(m, batch)["decoder"][1] ** 2 for m in (plain, doubled))
    x = plain.model.embedding(plain.model.embedding.tokens(batch["input_ids"]), torch.arange(9)[None])
    assert two - 4 * one == pytest.approx(-3 * population(x.detach()).item(), rel=1e-4)


def test_a_profile_that_is_not_finite_is_refused_and_sets_nothing() -> None:
    network = causal()
    with torch.no_grad():
        network.model.layers[1].ffn.branch.out.weight[0, 0] = float("inf")
    before = [m.combine.skip.weight.clone() for m in network.modules() if isinstance(m, Sublayer)]
    with pytest.raises(ValueError, match="not finite at sublayer 4 of the decoder"):
        calibrate(network, {"input_ids": tokens(3, 9)})
    after = [m.combine.skip.weight for m in network.modules() if isinstance(m, Sublayer)]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert network.config.calibration is None


# ------------------------------------------------------------------------------------------------------- in parts


def test_moments_of_parts_are_those_of_the_whole() -> None:
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, generator=draw, dtype=torch.float64) + n for n in (1, 5, 40)]
    whole = torch.cat(parts)
    got = together([(p.numel(), p.mean().item(), p.var(correction=0).item()) for p in parts])
    assert got == pytest.approx((46, whole.mean().item(), ((whole - whole.mean()) ** 2).mean().item()), rel=1e-12)
    assert got[2] != pytest.approx(sum(p.numel() * p.var(correction=0).item() for p in parts) / 46, rel=0.1)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes on gloo end with, replicated and in shards."""
    folder = tmp_path_factory.mktemp("parts")
    command = [Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, calibrate_job.__file__, folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("way", ["replicas", "layers", "root"])
@pytest.mark.parametrize("head", ["causal", "seq2seq"])
def test_two_processes_profile_one_batch(head: str, way: str, parts: Path) -> None:
    """Each has a part of it; both end with the same bits, which are one process' on the whole to rounding."""
    first, second = (torch.load(parts / f"{head}-{way}-{rank}.pt") for rank in (0, 1))
    assert first["skips"] == second["skips"]
    network = calibrate_job.built(head)
    before = [p.detach().clone() for n, p in network.named_parameters() if "combine.skip" not in n]
    alone = calibrate(network, calibrate_job.batch_of(head, slice(0, 6)))
    for tower, skips in alone.items():
        assert first["skips"][tower] == pytest.approx(skips, rel=1e-6)
    half = calibrate(calibrate_job.built(head), calibrate_job.batch_of(head, slice(0, 4)))
    assert any(abs(a / b - 1) > 1e-4 for t in alone for a, b in zip(alone[t][1:], half[t][1:], strict=True))
    for one in (first, second):
        written = [v for tower in alone for v in one["skips"][tower]]
        assert [float(w[0]) for w in one["held"]] == pytest.approx(written, rel=1e-6)
        assert all((w == w[0]).all() for w in one["held"])
        assert all(torch.equal(a, b) for a, b in zip(one["others"], before, strict=True))


@pytest.mark.parametrize("task", ["language", "masked"])
def test_a_training_profiles_its_first_micro_batch(task: str, tmp_path: Path) -> None:
    """`batch / accumulation` sequences, not the whole batch; of several processes each its own."""
    run = small(task=task, model={"placement": "admin"}, training={"batch": 8, "accumulation": 2, "steps": 1})
    built = load_task(run)
    trained_on = built.samples.__getitems__(range(8))["input_ids"]
    assert torch.equal(built.first_batch()["input_ids"], trained_on[:4])
    parts = [built.first_batch(process, 2)["input_ids"] for process in (0, 1)]
    assert torch.equal(torch.cat(parts), trained_on[:4])
    assert not built.first_batch().keys() & {"labels", "shift_labels", "masked_positions"}
    train(run, tmp_path)
    torch.manual_seed(run.seed)
    given = {name: value[:4] for name, value in built.samples.__getitems__(range(8)).items() if name == "input_ids"}
    skips = calibrate(built.build(built.config()), given)
    assert read_json(tmp_path / "resolved.json")["calibration"] == {"method": "admin", **skips}


def test_a_training_keeps_what_a_calibration_says(tmp_path: Path) -> None:
    for name, scaled in (("scaled", True), ("not", False)):
        model = {"placement": "admin", "layers": 6, "scale_embedding": scaled, "positions": "learned"}
        train(small(model=model, training={"steps": 1}), tmp_path / name)
    assert not (tmp_path / "scaled/warnings.jsonl").exists()
    (row,) = read_rows(tmp_path / "not/warnings.jsonl")
    assert (row["step"], row["signal"]) == (0, "calibration") and "scale_embedding=True" in row["message"]
    assert outcome(tmp_path / "not")["warning"] == row


# --------------------------------------------------------------------------------------- what a newcomer's profile says

SHAPE: dict[str, Any] = {"vocab_size": 101, "hidden_size": 64, "num_attention_heads": 4}


def newcomer(layers: int = 12, **options: Any) -> Any:
    torch.manual_seed(0)
    return IsogradForCausalLM(IsogradConfig(placement="admin", num_hidden_layers=layers, **(SHAPE | options)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale_embedding": False}, r"1, 0\.1\d, .* RMS of 0\.1\d .*scale_embedding=True"),
        pytest.param(
            {"init": "normal"},
            r"RMS of 0\.1\d where ADMIN needs about 1: embedding_norm=True",
            marks=pytest.mark.slow,
        ),
        pytest.param({"init": "normal", "embedding_norm": True}, r"branches begin so small", marks=pytest.mark.slow),
    ],
)
def test_a_profile_that_leaves_post_ln_says_so(options: dict[str, Any], said: str) -> None:
    """And `check` sees the same: uncalibrated, and after such a calibration."""
    network, ids = newcomer(**options), tokens(4, 16, high=101)
    assert set(check(network, ids).placements.values()) == {"post-ln"}
    with pytest.warns(CalibrationWarning, match=said):
        calibrate(network, {"input_ids": ids})
    found = check(network, ids, lr=3e-3)
    assert set(found.placements.values()) == {"post-ln"}
    assert "init" in options or "collapse-predicted" in found.codes


@pytest.mark.parametrize(
    "options",
    few(
        [
            {},
            {"scale_embedding": False, "embedding_norm": True},
            {"position_embedding_type": "sinusoidal"},
            {"position_embedding_type": "rotary"},
        ],
        4,
    ),
)
def test_the_defaults_of_a_newcomer_are_admin(options: dict[str, Any]) -> None:
    network, ids = newcomer(**options), tokens(4, 16, high=101)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        skips = calibrate(network, {"input_ids": ids})["decoder"]
    assert min(skips) > 0.9 and skips[-1] > 2
    found = check(network, ids, lr=1e-3)
    assert set(found.placements.values()) == {"admin"} and "collapse-predicted" not in found.codes


def test_a_shallow_stack_trains_whatever_its_skips_are() -> None:
    network, ids = newcomer(layers=2, scale_embedding=False), tokens(4, 16, high=101)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrate(network, {"input_ids": ids})


def test_autocast_and_logits_are_left_out() -> None:
    """In a user's autocast the profile is float32's; the head, which no variance reads, is not run."""
    batch = {"input_ids": tokens(3, 9)}
    one = causal()
    two = copy.deepcopy(one)
    ran: list[str] = []
    handle = two.lm_head.register_forward_hook(lambda *_: ran.append("head"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = calibrate(two, batch)
    handle.remove()
    assert inside == calibrate(one, batch) and not ran


def test_a_profile_at_another_dropout() -> None:
    """The skips of a twin built with it, bit for bit; the model keeps its own dropout, and its own skips differ."""

    def profiled(built_with: float, dropout: float | None) -> tuple[Any, list[float]]:
        torch.manual_seed(0)
        both = {"hidden_dropout": built_with, "embedding_dropout": built_with}
        network = causal(**both).train()
        torch.manual_seed(1)
        return network, calibrate(network, {"input_ids": tokens(3, 9)}, dropout=dropout)["decoder"]

    _, expected = profiled(0.1, None)
    network, found = profiled(0.4, 0.1)
    assert found == expected != profiled(0.4, None)[1]
    drops = [m.drop.p for m in network.modules() if isinstance(m, Sublayer)] + [network.model.embedding.drop.p]
    assert drops == [0.4] * 7
    assert profiled(0.0, 0.1)[1] == expected and profiled(0.1, 0.0)[1] == profiled(0.0, None)[1]
    torch.manual_seed(0)
    calm = causal(hidden_dropout=0.4).eval()
    assert calibrate(calm, {"input_ids": tokens(3, 9)}, dropout=0.4)["decoder"] == profiled(0.0, None)[1]


def test_a_run_is_profiled_at_its_own_dropout(tmp_path: Path) -> None:
    """`training.profile_dropout`: the skips of a run without dropout, of which only the training differs."""
    skips = []
    for dropout, profiled in ((0.4, 0.0), (0.0, None), (0.4, None)):
        model = {"placement": "admin", "dropout": dropout, "embedding_dropout": dropout}
        run = small(model=model, training={"profile_dropout": profiled, "steps": 1})
        train(run, folder := tmp_path / f"{dropout}-{profiled}")
        skips.append(read_json(folder / "resolved.json")["calibration"]["decoder"])
    assert skips[0] == skips[1] != skips[2]
