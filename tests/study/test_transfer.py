"""Rules over depth and width, against the papers' equations and their authors' code, written here by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from isograd import IsogradConfig, IsogradForCausalLM
from isograd.errors import IsogradError, RecipeError, UnknownPlacement
from isograd.lab.study.transfer.coordinates import coordinate_check
from isograd.lab.study.transfer.drift import DriftVerdict, drifts
from isograd.lab.study.transfer.plan import KEPT, MEASURED, parse_size, plan
from isograd.lab.train.recipe import load_run
from isograd.lab.train.run import Run
from isograd.placement import get, sites
from isograd.placement.formula import Role
from tests.build import theoretical_std
from tests.study.arms import called, refused

MATRIX: tuple[Role, ...] = ("query", "key", "value", "attn_out", "ffn_in", "ffn_out")


def run(**model: object) -> Run:
    words = {"layers": 4, "width": 32, "heads": 2, "placement": "pre-ln", **model}
    return load_run(None, [*(f"model.{key}={value}" for key, value in words.items()), "training.optimizer=adamw"])


@pytest.mark.parametrize("alpha, rule", [(1.0, "completep"), (0.5, "depth-mup")])
@pytest.mark.parametrize("base, layers", [(2, 12), (12, 96), (12, 3)])
def test_depth_rules_are_the_papers(alpha: float, rule: str, base: int, layers: int) -> None:
    """Branch m_L^-a, rates of matrices, biases and norms m_L^(a-1), eps m_L^-a, decay as it is (a = 1 and 1/2)."""
    m = layers / base
    placement = get(f"pre-ln@{rule}-{base}")
    for site in sites(layers):
        assert placement.at(site).scale == pytest.approx(m**-alpha, rel=1e-12)
        for role in (*MATRIX, "norm", "bias"):
            lr, eps, decay = placement.rates.at(role, site)
            assert (lr, eps, decay) == pytest.approx((m ** (alpha - 1), m**-alpha, 1.0), rel=1e-12)
        assert placement.rates.at("embed", site) == placement.rates.at("head", site) == (1.0, 1.0, 1.0)


def test_at_two_layers_the_names_are_the_catalogues_entries() -> None:
    """CompleteP's base depth in the catalogue is 2; depth-muP's factor there is that of 1 layer."""
    for entry, named in (("completep", "pre-ln@completep-2"), ("depth-mup", "pre-ln@depth-mup-1")):
        for site in sites(24):
            assert get(entry).at(site).scale == pytest.approx(get(named).at(site).scale, rel=1e-12)
            for role in MATRIX:
                assert get(entry).rates.at(role, site) == pytest.approx(get(named).rates.at(role, site), rel=1e-12)


def test_an_init_that_falls_with_depth_stays_that_of_the_source() -> None:
    """The authors' code draws W_O and W_2 without GPT-2's 1/sqrt(2L): the branch factor takes its place."""
    for site in sites(32):
        assert get("gpt2@completep-8").init.at(site)["attn_out"] == 0.25
        assert get("gpt2").init.at(site)["attn_out"] == 0.125


def test_width_and_depth_multiply() -> None:
    """The authors' code: rate 1/m_N, eps m_N^-1 m_L^-1, decay m_N on matrices; rate 1 on biases and norms."""
    site = sites(24)[0]
    rates = get("pre-ln@completep-12@mup-4").rates
    assert rates.at("ffn_in", site) == pytest.approx((1 / 4, 1 / 8, 4.0), rel=1e-12)
    assert rates.at("bias", site) == pytest.approx((1.0, 1 / 8, 1.0), rel=1e-12)
    assert rates.at("norm", site) == pytest.approx((1.0, 1 / 2, 1.0), rel=1e-12)
    assert rates.at("embed", site) == pytest.approx((1.0, 1 / 4, 1.0), rel=1e-12)


def leaves(name: str, width: int, **options: object) -> tuple[IsogradForCausalLM, dict[str, float]]:
    config = IsogradConfig(
        placement=name,
        vocab_size=40,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=width // 16,
        is_decoder=True,
        **options,
    )
    model = IsogradForCausalLM(config)
    modules = dict(model.named_modules())
    stds = {
        address: theoretical_std(module, config, config.scheme())
        for address, module in modules.items()
        if getattr(module, "role", None) in (*MATRIX, "embed", "head")
    }
    return model, stds


@pytest.mark.parametrize("init", ["normal", "xavier-normal", "small-init"])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_mup_in_any_init_is_one_parametrization(init: str, scaled: bool, tied: bool) -> None:
    """What tables, matrices and logits effectively are, and how far a step of Adam moves them, is as muP's table says.

    Effective: token vectors sqrt(d) E or E; logits s h W. Matrices: std m^-1/2, step 1/m. Tables: std 1, step 1.
    Logits: the head's std over m, its step over m.
    """
    if init != "normal" and not scaled:
        with pytest.raises(RecipeError, match="shrink with the width"):
            plan(replace_model(run(), init=init, scale_embedding=False), width=128)
        return
    source = replace_model(run(), init=init, scale_embedding=scaled, tie_embeddings=tied)
    name = plan(source, width=128).target.model.placement
    options = {"init": init, "scale_embedding": scaled, "tie_word_embeddings": tied}
    (_, small), (large, wide) = leaves("pre-ln", 32, **options), leaves(name, 128, **options)
    rates, m = large.rates(), 4.0
    out = get(name).final
    assert out is not None and isinstance(out.scale, float)
    table = (128 / 32) ** 0.5 if scaled else 1.0  # how much more a token vector is scaled
    for address, std in wide.items():
        lr = rates.get(f"{address}.weight", (1.0, 1.0, 1.0))[0]
        if address == "lm_head":
            if tied:
                address, std, lr = "model.embedding.tokens", wide["model.embedding.tokens"], rates_of_table(rates)
            assert out.scale * std / small[address if tied else "lm_head"] == pytest.approx(1 / m, rel=1e-12)
            assert out.scale * lr == pytest.approx(1 / m, rel=1e-12)
        elif "tokens" in address:
            assert table * std / small[address] == pytest.approx(1.0, rel=1e-12)
            assert table * lr == pytest.approx(1.0, rel=1e-12)
        elif "layers" in address:
            assert std / small[address] == pytest.approx(m**-0.5, rel=1e-12)
            assert lr == pytest.approx(1 / m, rel=1e-12)


def rates_of_table(rates: dict[str, tuple[float, float, float]]) -> float:
    return rates.get("model.embedding.tokens.weight", (1.0, 1.0, 1.0))[0]


def replace_model(source: Run, **options: object) -> Run:
    return replace(source, model=replace(source.model, **options))


def test_a_rule_changes_nothing_where_it_was_tuned() -> None:
    """Same weights, same rates; elsewhere not."""
    torch.manual_seed(0)
    for base, named in (("pre-ln", "pre-ln@completep-4"), ("deepnorm", "deepnorm@fixed-4"), ("mhc", "mhc@completep-4")):
        models = []
        for name in (base, named):
            torch.manual_seed(3)
            config = IsogradConfig(placement=name, vocab_size=20, hidden_size=16, num_hidden_layers=4,
                                   num_attention_heads=2, is_decoder=True)  # fmt: skip
            models.append(IsogradForCausalLM(config).eval())
        ids = torch.arange(12).view(2, 6)
        assert torch.equal(models[0](ids).logits, models[1](ids).logits)
        assert models[1].rates() == {}
        deeper = get(named).at(sites(8)[0])
        init = get(named).init.at(sites(8)[0])
        assert (deeper, init) != (get(base).at(sites(8)[0]), get(base).init.at(sites(8)[0]))


def test_the_branch_factor_and_its_form_in_weights_train_alike() -> None:
    """x + c f with rate and init as they are, and x + f with those of W_O and W_2 times c: the same under Adam.

    The stream of one constant copy is a plain sum; that of hyper-connections takes the second form.
    """
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 6).double()
    c, lr, eps = 0.25, 1e-2, 1e-8
    plain, folded = [torch.nn.Parameter(layer.weight.detach().clone() * f) for f in (1.0, c)]
    one = torch.optim.AdamW([{"params": [plain], "lr": lr, "weight_decay": 0.1}], eps=eps * c)
    other = torch.optim.AdamW([{"params": [folded], "lr": lr * c, "weight_decay": 0.1 / c}], eps=eps)
    for step in range(5):
        x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        for weight, factor, optimizer in ((plain, c, one), (folded, 1.0, other)):
            optimizer.zero_grad()
            (x + factor * x @ weight.T).pow(3).sum().backward()
            optimizer.step()
        assert torch.allclose(c * plain, folded, rtol=0, atol=1e-12)
    site = sites(16)[0]
    stream = get("hyper-connections@completep-4")
    assert stream.init.at(site)["attn_out"] == c
    assert stream.rates.at("attn_out", site) == (c, 1.0, 1 / c)
    assert stream.rates.at("query", site) == (1.0, c, 1.0)


@pytest.mark.parametrize(
    "name, said",
    [
        ("post-ln@completep-4", "is for x"),
        ("rezero@completep-4", "is for x"),
        ("layerscale@completep-4", "trained"),
        ("completep@completep-4", "law of depth"),
        ("pre-ln@completep-4@depth-mup-4", "two rules over depth"),
        ("pre-ln@mup-4@completep-4", "over depth first"),
        ("pre-ln@mup-0", "no rule"),
        ("pre-ln@completep", "no rule"),
        ("deepnorm@mup-2XE", "untie"),
        ("hyper-connections@completep-4@mup-2", "one at a time"),
        ("nothing@completep-4", "unknown placement"),
    ],
)
def test_rules_that_do_not_fit_are_refused(name: str, said: str) -> None:
    with pytest.raises(UnknownPlacement, match=said):
        get(name)


def test_plans_that_contradict_are_refused() -> None:
    with pytest.raises(RecipeError, match="nothing to transfer to"):
        plan(run())
    with pytest.raises(RecipeError, match="recipe's own"):
        plan(run(), depth=4)
    with pytest.raises(RecipeError, match="no rule 'completeP'; did you mean 'completep'"):
        plan(run(), depth=8, rule="completeP")
    with pytest.raises(RecipeError, match="over depth, and the depth stays"):
        plan(run(), width=64, rule="completep")
    with pytest.raises(RecipeError, match="size of a head"):
        plan(run(), width=40)
    with pytest.raises(RecipeError, match="for Adam"):
        plan(load_run(None, ["training.optimizer=sgd"]), depth=24)
    with pytest.raises(IsogradError, match="constants of its own"):
        plan(run(placement="deepnorm"), depth=8, rule="output-change")
    with pytest.raises(RecipeError, match="has depth 4; write 4:8"):
        parse_size("12:8", 4, "depth")


def test_the_verb_writes_a_recipe_that_trains(tmp_path: Path) -> None:
    recipe, target = tmp_path / "small.yaml", tmp_path / "large.yaml"
    recipe.write_text(
        "name: small\nmodel: {layers: 2, width: 16, heads: 2}\ntraining: {steps: 2, batch: 2, valid_sequences: 2}\n"
    )
    words = ["transfer", str(recipe), "--depth", "2:4", "--width", "32"]
    code, out, _ = called(*words, "--out", str(target), "--json")
    assert code == 0 and json.loads(out)["rule"] == "completep"
    assert "branch factor: 1 -> 0.5" in target.read_text().partition("name:")[0]
    made = load_run(target)
    assert (made.name, made.layers, made.model.placement) == ("small-4l-32w", 4, "pre-ln@completep-2@mup-2XE")
    code, _, err = called("train", str(target), "--out", str(tmp_path / "run"), "--quiet")
    assert code == 0, err
    assert json.loads((tmp_path / "run/outcome.json").read_text())["steps"] == 2
    for bad in (
        ["--out", str(target)],
        ["--depth", "3:6"],
        ["--depth", "2:x"],
        ["--rule", "mup"],
        ["--width", "24:48"],
    ):
        assert "isograd transfer: " in refused(*words, *bad)
    assert "--depth FROM:TO" in refused(*words[:2])


def test_what_theory_says_of_post_ln_and_pre_ln() -> None:
    """S = N/2 in Post-LN, so the rate goes as N^-1/2; S = H_(N+1) - 1 in Pre-LN."""
    post = plan(run(placement="post-ln"), depth=16, rule="output-change").target.training.lr
    assert post == pytest.approx(1e-3 * 0.5, rel=1e-12)
    shares = [sum(1 / (i + 1) for i in range(1, 2 * layers + 1)) for layers in (4, 16)]
    pre = plan(run(), depth=16, rule="output-change").target.training.lr
    assert pre == pytest.approx(1e-3 * math.sqrt(shares[0] / shares[1]), rel=1e-12)


def test_placements_with_constants_of_their_own_keep_them_and_the_control_does_not() -> None:
    own = plan(run(placement="deepnorm"), depth=16)
    assert (own.rule, own.target.model.placement) == ("own", "deepnorm")
    skips = {s.name: (s.source, s.target) for s in own.settings}["skip factor"]
    assert skips == (f"{8**0.25:.4g}", f"{32**0.25:.4g}")
    assert plan(run(placement="deepnorm"), depth=16, rule=KEPT).target.model.placement == "deepnorm@fixed-4"
    assert plan(run(placement="post-ln"), depth=16).rule == KEPT
    assert "profile" in " ".join(plan(run(placement="admin"), depth=16).cautions)


def row(layers: int, placement: str, lr: float, seed: int, loss: float | None, width: int = 64) -> dict[str, object]:
    values = {"model.layers": layers, "model.width": width, "model.placement": placement, "training.lr": lr}
    return {"cell": f"{values}{seed}", "values": values, "seed": seed, "validation_loss": loss, "unigram_loss": 3.5}


def ledger(best: dict[tuple[str, int], float], bend: float = 0.1, seeds: int = 3) -> list[dict[str, object]]:
    """Parabolas in log rate whose vertices are known."""
    rates = [1e-3 * 3**i for i in range(5)]
    return [
        row(layers, name, lr, seed, 2.0 + bend * math.log(lr / vertex / 1.05**seed) ** 2)
        for (name, layers), vertex in best.items()
        for lr in rates
        for seed in range(seeds)
    ]


def test_drift_is_read_off_parabolas_whose_vertex_is_known() -> None:
    """A rule that keeps the rate, and none: told apart; the rule's arm takes its source from the placement itself."""
    rows = ledger({("pre-ln", 4): 9e-3, ("pre-ln", 16): 3e-3, ("pre-ln@completep-4", 16): 8e-3})
    found = {one.arm: one for one in drifts(rows)}
    assert found["pre-ln"].drift == pytest.approx(3.0, rel=1e-6)
    assert found["pre-ln"].verdict == "does not transfer here"
    assert found["pre-ln@completep"].drift == pytest.approx(9 / 8, rel=1e-6)
    assert found["pre-ln@completep"].verdict == "transfers"
    assert found["pre-ln@completep"].middle(4) == pytest.approx(9e-3 * 1.05, rel=1e-6)
    assert {one.arm: one.verdict for one in drifts(ledger({("pre-ln", 4): 9e-3, ("pre-ln", 8): 9e-3}, seeds=1))} == {
        "pre-ln": "too few seeds"
    }


def test_a_best_rate_at_the_end_transfers_nothing() -> None:
    rows = ledger({("pre-ln", 4): 9e-3, ("pre-ln", 16): 9e-3})
    assert drifts(rows)[0].verdict == "transfers"
    lower = [one for one in rows if one["values"]["training.lr"] < 1e-2]  # type: ignore[index]
    assert (drifts(lower)[0].open, drifts(lower)[0].verdict) == (True, "does not transfer here")
    broken = [{**one, "validation_loss": None} if one["values"]["training.lr"] > 1e-2 else one for one in rows]  # type: ignore[index]
    assert not drifts(broken)[0].open  # what diverged counts with the loss of token frequencies


def test_the_verb_reads_a_study(tmp_path: Path) -> None:
    rows = ledger({("pre-ln", 4): 9e-3, ("pre-ln", 16): 3e-3})
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    code, out, _ = called("transfer", str(tmp_path), "--json")
    assert code == 0 and json.loads(out)[0]["verdict"] == "does not transfer here"
    assert "does not transfer here" in " ".join(called("transfer", str(tmp_path))[1].split())
    assert "no other option" in refused("transfer", str(tmp_path), "--depth", "4:8")
    (tmp_path / "ledger.jsonl").unlink()
    assert "no study" in refused("transfer", str(tmp_path))


def test_what_was_measured_is_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs/results/transfer.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    found = {
        (r[0], r[1]): (r[3], r[6]) for r in rows if len(r) == 7 and (r[6] in get_args(DriftVerdict)) and r[5] == "3"
    }
    assert found == MEASURED
    said = " ".join(plan(run(), depth=8).cautions)
    drift, verdict = MEASURED["pre-ln@completep", "depth"]
    assert f"pre-ln@completep: drift {drift}x, {verdict}" in said
    assert "does not transfer here" in " ".join(plan(run(), depth=8, rule=KEPT).cautions)


SMALL = ["model.width=32", "model.heads=2", "data.length=16", "training.batch=8", "training.lr=3e-3"]


def test_the_coordinate_check_is_flat_with_the_rule_and_not_without() -> None:
    """Depth 2 to 16: the stream of Pre-LN moves the farther the deeper; CompleteP's does not."""
    source = load_run(None, ["model.layers=2", *SMALL])
    verdicts, powers = {}, {}
    for rule in (KEPT, None):
        found = coordinate_check(source, [2, 16], rule=rule, seeds=(1, 2, 3))
        middle = next(one for one in found if one.quantity == "middle stream")
        verdicts[rule], powers[rule] = middle.verdict, middle.power
    assert verdicts[KEPT] == "not flat" and verdicts[None] != "not flat"
    assert powers[KEPT] > powers[None] + 0.2


def test_the_coordinate_check_over_width() -> None:
    source = load_run(None, ["model.layers=2", *SMALL])
    power = {}
    for without in (True, False):
        found = coordinate_check(source, [32, 128], axis="width", without=without, seeds=(1, 2, 3))
        power[without] = max(one.power for one in found)
    assert power[True] > power[False] + 0.2
    with pytest.raises(RecipeError, match="two sizes"):
        coordinate_check(source, [2])


@pytest.mark.slow
def test_the_verb_checks_coordinates() -> None:
    words = ["transfer", "pre-ln-needs-no-warmup", "model.layers=1", *SMALL, "--depth", "1:2", "--check", "--json"]
    code, out, err = called(*words)
    assert code == 0, err
    said = json.loads(out)["check"]
    assert {one["quantity"] for one in said["with"]} == {"logits", "last stream", "middle stream"}
    assert "doubles" in refused(*words[:-4], "--depth", "1:3", "--check")
