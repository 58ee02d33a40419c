"""The prediction of a collapse: what it says at settings whose runs are known, and outside what was measured."""

import csv
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

import isograd
from isograd.lint.findings import Finding
from isograd.lint.initial.collapse import COLLAPSES, ROWS, SHARE, TRAINED, CollapseRule
from tests.lint.faults.plain import post, xavier

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "results" / "collapse-grid.csv"
EXAMPLE = ROOT / "examples/deep_post_ln.py"


def said(
    placement: str, layers: int, lr: float | None = None, warmup: int | None = None, **sizes: Any
) -> list[Finding]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 101}
    config = isograd.IsogradConfig(placement=placement, num_hidden_layers=layers, **sizes)
    model = isograd.IsogradForCausalLM(config)
    if placement == "admin" and config.calibration is None:
        isograd.calibrate(model, {"input_ids": torch.randint(0, 101, (8, 32))})
    found = isograd.check(model, {"input_ids": torch.randint(0, 101, (2, 16))}, lr=lr, warmup=warmup)
    assert found.missed == ()
    return [finding for finding in found if finding.code == "collapse-predicted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "layers", "lr", "warmup"),
    [
        ("post-ln", 48, 3e-4, 100),  # 3 of 3 collapse
        ("post-ln", 36, 1e-3, 0),
        ("post-ln", 36, 1e-3, 1),  # a warm-up of one step is none
    ],
)
def test_settings_that_are_known_to_collapse(placement: str, layers: int, lr: float, warmup: int) -> None:
    (finding,) = said(placement, layers, lr, warmup)
    assert finding.severity == "error" and COLLAPSES <= finding.measured <= 1
    assert f"at LR {lr:g}" in finding.message and "placement='pre-ln'" in finding.remedy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "layers", "lr", "warmup"),
    [
        ("post-ln", 12, 3e-4, 0),
        ("post-ln", 12, 1e-3, 150),
        ("pre-ln", 48, 3e-3, 0),
        ("admin", 12, 1e-3, 0),
        ("deepnorm", 12, 1e-3, 0),
    ],
)
def test_settings_that_are_known_to_train(placement: str, layers: int, lr: float, warmup: int) -> None:
    assert said(placement, layers, lr, warmup) == []


@pytest.mark.slow
def test_a_published_recipe_is_not_judged_by_small_models() -> None:
    """RoBERTa-base: 12 Post-LN layers at 6e-4 with 24,000 steps of warm-up. Width and layers here are smaller."""
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=101, hidden_size=768, num_hidden_layers=6, num_attention_heads=4, intermediate_size=128
    )
    found = isograd.check(RobertaForMaskedLM(config), lr=6e-4, warmup=24_000)
    (finding,) = [finding for finding in found if finding.code == "collapse-predicted"]
    assert finding.severity == "info"
    for outside in ("width 768", "warm-up 2.4e+04"):
        assert f"{outside}" in finding.message


@pytest.mark.slow
def test_without_a_rate_only_deep_stacks_are_mentioned() -> None:
    (finding,) = said("post-ln", 36)
    assert finding.severity == "info" and "lr=1e-3, warmup=0" in finding.remedy
    assert said("post-ln", 6) == [] and said("deepnorm", 36) == []


def test_a_stack_is_judged_by_its_function() -> None:
    """ADMIN that was never calibrated is Post-LN, whatever its skips are called."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 24, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 101}
    model = isograd.IsogradForCausalLM(isograd.IsogradConfig(placement="admin", **sizes))
    found = isograd.check(model, {"input_ids": torch.randint(0, 101, (2, 16))}, lr=1e-3, warmup=100)
    (finding,) = [finding for finding in found if finding.code == "collapse-predicted"]
    assert finding.severity == "error" and "24 Post-LN layers" in finding.message
    assert said("admin", 24, 1e-3, 100) == []


@pytest.mark.slow
def test_another_initialization_has_another_line() -> None:
    """With N(0, 0.02^2) Post-LN tolerates more: another line of the rule."""
    for model, lr, severities in (
        (xavier(post(36)), 1e-3, ["error"]),
        (post(36), 1e-3, []),
        (post(36), 6e-3, ["error"]),
    ):
        found = isograd.check(model, lr=lr, warmup=0)
        assert [f.severity for f in found if f.code == "collapse-predicted"] == severities


def own(style: str = "own", pre: bool = False) -> Any:
    torch.manual_seed(0)
    return runpy.run_path(str(EXAMPLE))["LanguageModel"](101, style, pre)


def collapse_of(model: torch.nn.Module, **settings: Any) -> Finding | None:
    found = isograd.check(model, torch.randint(0, 101, (2, 16)), **settings)
    return next((finding for finding in found if finding.code == "collapse-predicted"), None)


@pytest.mark.slow
def test_branches_between_those_of_the_two_lines() -> None:
    """torch's own init: an error where even smaller branches collapse, a warning where only larger ones do."""
    model = own()
    for lr, warmup, severity in ((3e-3, 0, "error"), (1e-3, 0, "warning"), (3e-4, 100, None)):
        found = collapse_of(model, lr=lr, warmup=warmup)
        assert (found.severity if found else None) == severity
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert (found := collapse_of(model, optimizer=adam)) and "at LR 0.001" in found.message
    assert "pass warmup=" in found.remedy
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)  # its rates are no rates of Adam
    assert (found := collapse_of(model, optimizer=sgd)) and found.severity == "info"
    assert collapse_of(own(pre=True), lr=3e-3, warmup=0) is None


@pytest.mark.parametrize(
    ("style", "fix"),
    [
        ("own", "in Block.forward x + f(self.ln1(x))"),
        pytest.param("torch", "TransformerEncoderLayer(..., norm_first=True)", marks=pytest.mark.slow),
    ],
)
def test_the_remedy_is_in_words_of_the_users_code(style: str, fix: str) -> None:
    found = collapse_of(own(style), lr=3e-3, warmup=0)
    assert found and fix in found.remedy and "lr=0.0003 with 100 steps of warm-up" in found.remedy


@pytest.mark.slow
def test_a_stack_that_is_wider_than_any_measured_one() -> None:
    """No prediction where that size might train, a warning where the widest measured one collapses already."""
    config = isograd.IsogradConfig(
        placement="post-ln", num_hidden_layers=24, hidden_size=256, num_attention_heads=4, vocab_size=101
    )
    torch.manual_seed(0)
    model = isograd.IsogradForCausalLM(config)
    found = [collapse_of(model, lr=lr, warmup=0) for lr in (2e-4, 3e-3)]
    assert [one.severity for one in found if one] == ["info", "warning"]
    assert found[1] and "24 Post-LN layers of width 128 collapse already" in found[1].message


def test_a_trained_model_is_left_alone() -> None:
    model = xavier(post(36))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight += 0.01 * torch.randn(32)
    assert "collapse-predicted" not in isograd.check(model, lr=1e-3).codes


@pytest.mark.parametrize("function", ["post-ln", "admin", "deepnorm"])
def test_more_rate_is_never_safer_and_more_warm_up_never_worse(function: Any) -> None:
    stack = CollapseRule(function=function, layers=24, width=64)
    risks = [stack.risk(lr, 10) for lr in (2e-4, 6e-4, 1e-3, 6e-3)]
    assert risks == sorted(risks)
    risks = [stack.risk(1e-3, warmup) for warmup in (200, 50, 10, 0)]
    assert risks == sorted(risks)
    for warmup in (0, 100):
        assert stack.risk(stack.highest_rate(warmup), warmup) == pytest.approx(COLLAPSES)


def test_held_out_precision_of_what_is_published() -> None:
    """On depths and a width that the rule was not fitted on, from the table of the grid."""
    with TABLE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["init"] and row["outcome"] != "undecided"]
    held = [row for row in rows if int(row["layers"]) in (9, 18, 36) or int(row["width"]) == 64]
    assert len(held) > 100
    chosen = [row for row in held if row["placement"] in ("post-ln", "admin", "deepnorm")]
    stacks = [CollapseRule(function=r["placement"], layers=int(r["layers"]), width=int(r["width"])) for r in chosen]
    flagged = [r for r, s in zip(chosen, stacks, strict=True) if s.risk(float(r["lr"]), int(r["warmup"])) >= COLLAPSES]
    assert sum(row["outcome"] == "collapsed" for row in flagged) >= 0.95 * len(flagged) > 20


def test_norms_are_moved_under_their_own_names() -> None:
    """And the class that calls the last layer is named."""
    remedy = (found := collapse_of(own(), lr=3e-3, warmup=0)) and found.remedy
    assert remedy and "x + f(self.ln1(x)) in place of self.ln1(x + f(x))" in remedy
    assert "in LanguageModel.forward a LayerNorm after the last layer" in remedy
    assert found and "(p = 0.99, fitted on Post-LN from N(0, 0.02²))" in found.message


@pytest.mark.slow
def test_a_class_of_transformers_is_not_rewritten() -> None:
    config = BertConfig(
        vocab_size=101, hidden_size=32, num_hidden_layers=24, num_attention_heads=4, intermediate_size=64
    )
    torch.manual_seed(0)
    found = collapse_of(BertForMaskedLM(config), lr=3e-3, warmup=0)
    assert found and found.remedy.startswith("take a model that normalizes what each branch reads")


@pytest.mark.slow
def test_at_forty_layers_a_rate_and_a_warm_up_are_named() -> None:
    config = isograd.IsogradConfig(
        placement="post-ln", num_hidden_layers=40, hidden_size=64, num_attention_heads=4, vocab_size=101
    )
    torch.manual_seed(0)
    found = collapse_of(isograd.IsogradForCausalLM(config), lr=1e-3, warmup=0)
    assert found
    rate, warmup = re.search(r"train at lr=(\S+) with (\d+) steps of warm-up", found.remedy).groups()  # type: ignore[union-attr]
    drawn = CollapseRule(function="post-ln", layers=40, width=64, share=SHARE["post-ln, small"][1])
    assert drawn.risk(float(rate), int(warmup)) < COLLAPSES
    model = isograd.IsogradForCausalLM(config)
    assert collapse_of(model, lr=float(rate), warmup=int(warmup))
    exec(re.search(r"\((\[.*?\])\), and train at", found.remedy).group(1), {"torch": torch, "model": model})  # type: ignore[union-attr]
    assert collapse_of(model, lr=float(rate), warmup=int(warmup)) is None


def test_a_rate_is_given_only_as_deep_as_any_trained() -> None:
    """For the depths at which no run of the grid finished nothing says that a rate would."""
    deepest: dict[str, float] = {}
    for run in csv.DictReader(TABLE.read_text().splitlines()):
        if run["outcome"] == "finished" and run["placement"] in ROWS:
            line = run["placement"] + ", small" * (run["init"] == "normal")
            deepest[line] = max(deepest.get(line, 0), float(run["layers"]))
    assert deepest | {"post-ln": 24} == TRAINED  # 24: of the plain script, in its page


@cache
def printed_by(script: str) -> str:
    names: dict[str, Any] = {}
    exec(script, names)
    return str(isograd.check(names["model"], lr=3e-3, warmup=0))


@pytest.mark.parametrize("page", ["start.md", "ko.md"])
def test_the_start_page_shows_what_is_printed(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    script, shown = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)[0] for kind in ("python", "text"))
    printed = printed_by(script.partition("print(isograd.check")[0])
    assert printed == shown.rstrip("\n")
    assert max(len(line) for line in printed.splitlines() if " = " not in line) <= 100
