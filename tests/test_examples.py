"""The examples run, and the recipes say what they are named for."""

import json
import math
import re
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

from isograd.diagnose.calibrate import CalibrationWarning
from isograd.lab.study.compare import plan
from isograd.lab.study.plan import load_study
from isograd.lab.train.recipe import load_arms, load_run
from isograd.placement import CATALOGUE
from tests.build import few
from tests.study.arms import called

ROOT = Path(__file__).parents[1]


def named(recipe: Path) -> str:
    return f"{recipe.parent.name}-{recipe.stem}"


def test_own_placement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_catalogue: None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    main = runpy.run_path(str(ROOT / "examples/own_placement.py"))["main"]
    page = main(str(text), steps=2, out=tmp_path / "out").read_text(encoding="utf-8")
    assert "<i>x</i> + LN(Attn(<i>x</i>))" in page


def test_probe_any_model() -> None:
    rows = runpy.run_path(str(ROOT / "examples/probe_any_model.py"))["main"](layers=2)
    assert [row["address"] for row in rows] == ["transformer.h.0", "transformer.h.1"]
    assert all(row["gradient_mean_abs"] > 0 for row in rows)


@pytest.mark.parametrize("name", ["gpt", "gpt_residuals"])
def test_gpt(name: str) -> None:
    """Each learns: 5.5 nats of a uniform guess come down."""
    first, last = runpy.run_path(str(ROOT / f"examples/{name}.py"))["main"](steps=12, layers=1)
    assert last < first - 0.5


def own_loop(**options: Any) -> tuple[list[float], float]:
    return runpy.run_path(str(ROOT / "examples/own_loop.py"))["main"](**options)


@pytest.mark.slow
def test_own_loop() -> None:
    losses, entropy = own_loop(layers=2, steps=30)
    assert len(losses) == 30 and losses[-1] < losses[0] - 0.3 and 3.1 < entropy < 3.2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 17])
def test_own_loop_trains_a_deep_stack(seed: int) -> None:
    losses, entropy = own_loop(seed=seed)
    assert statistics.fmean(losses[-20:]) < entropy - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_own_loop_with_an_unscaled_embedding_collapses(seed: int) -> None:
    with pytest.warns(CalibrationWarning, match="scale_embedding=True"):
        losses, entropy = own_loop(seed=seed, scale_embedding=False)
    assert statistics.fmean(losses[-20:]) > entropy - 0.1


def deep_post_ln(*words: Any, **options: Any) -> tuple[list[float], str, list[str], float]:
    example = runpy.run_path(str(ROOT / "examples/deep_post_ln.py"))
    return *example["main"](*words, **options), example["unigram_entropy"](example["text"]())


@pytest.mark.slow
def test_deep_post_ln_is_warned_of_before_and_after_the_first_steps() -> None:
    _, said, messages, _ = deep_post_ln("own", steps=20)
    assert "error: collapse-predicted" in said and "self.ln1" in said
    assert "gradients vanish towards the input" in messages[0]


@pytest.mark.slow
@pytest.mark.parametrize(("style", "seed"), [("own", 0), ("torch", 1), ("gpt2", 2)])
@pytest.mark.parametrize("fix", ["", "pre", "rate"])
def test_deep_post_ln_trains_as_check_says(style: str, seed: int, fix: str) -> None:
    losses, said, messages, entropy = deep_post_ln(style, fix, seed=seed)
    assert ("collapse-predicted" in said) == (fix == "") == bool(messages)
    assert (statistics.fmean(losses[-20:]) > entropy - 0.1) == (fix == "")


@pytest.mark.parametrize("page", ["docs/placements.md"])
def test_the_models_of_a_page_are_built(page: str, own_catalogue: None) -> None:
    """Every block of Python that makes a model runs as it stands, without a warning."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    made = [block for block in blocks if "IsogradConfig(" in block]
    for block in made:
        exec(compile(block, page, "exec"), {"__name__": "page"})
    assert made


@pytest.mark.slow
def test_initial_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down a Post-LN decoder gradients fall by about sqrt(2/3) per layer; in the encoder, and with Pre-LN, they do not.

    At a size for seconds; the figures at width 256 and 12 layers are in docs/results.
    """
    factors = runpy.run_path(str(ROOT / "examples/initial_gradients.py"))["factors"]
    post = factors("post-ln", layers=6, width=64, seed=0, source="numbers")
    assert 0.7 < post["decoder"] < 0.9 < post["encoder"] < 1.1
    assert factors("pre-ln", layers=6, width=64, seed=0, source="numbers")["decoder"] > 1.0


@pytest.mark.parametrize(
    "recipe", few(sorted((ROOT / "isograd/lab/recipes").rglob("*.yaml")), 3), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_recipes_load(recipe: Path) -> None:
    run = load_run(recipe)
    assert run.model.placement in CATALOGUE
    assert run.name
    name = recipe.relative_to(ROOT / "isograd/lab/recipes").as_posix()
    assert f"`{name.removesuffix('.yaml')}`" in (ROOT / "isograd/lab/recipes/README.md").read_text(encoding="utf-8")
    if recipe.parent.name == "studies":
        assert run.name == recipe.stem  # a study's folder is runs/NAME
    elif recipe.parent.name != "recipes":
        assert run.name == name.removesuffix(".yaml").replace("/", "-")


@pytest.mark.parametrize(
    "recipe",
    few(sorted(path for path in (ROOT / "isograd/lab/recipes").glob("*/*.yaml") if path.parent.name != "studies"), 3),
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_the_arms_of_the_papers_recipes(recipe: Path, tmp_path: Path) -> None:
    """Every arm is a run of its own, and the text says what the paper found and where ours is."""
    words, seeds = load_arms(recipe)
    arms = plan(tmp_path, load_run(recipe), words, seeds or [0])
    assert len({arm.folder for arm in arms}) == len(arms) >= 3
    assert {arm.run.model.placement for arm in arms} <= set(CATALOGUE)
    text = recipe.read_text(encoding="utf-8")
    assert "# Paper" in text and "# Ours" in text
    for page in re.findall(r"docs/results/[\w-]+\.md", text):
        assert (ROOT / page).exists(), page


@pytest.mark.parametrize("recipe", sorted((ROOT / "isograd/lab/recipes/studies").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_cells_of_the_studies(recipe: Path) -> None:
    """Every combination with every seed is a run of its own, and where it was run is a page."""
    study = load_study(recipe)
    points = sum(math.prod(map(len, grid.values())) for grid in study.grids or [study.axes])
    assert len({cell.name for cell in study.cells}) == points * len(study.seeds)
    (page,) = set(re.findall(r"docs/results/[\w-]+\.md", recipe.read_text(encoding="utf-8")))
    assert (ROOT / page).exists()


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.name)
def test_pages_are_filled_in(page: Path) -> None:
    """No placeholder is left, and what a page links to is there."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"@[A-Z]+@", text)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    ("name", "words", "below"),
    [
        ("regression", ["depth=2", "--arm", "norm=pre", "--arm", "norm=none"], 0.9),
        ("classification", ["depth=2", "--arm", "shortcut=true", "--arm", "shortcut=false"], 0.9),
        ("vision", ["depth=2", "--arm", "norm_first=true", "--arm", "norm_first=false"], 0.95),
        ("time_series", ["--arm", "depth=1", "--arm", "depth=2"], 0.9),
    ],
)
def test_tasks_of_ones_own(name: str, words: list[str], below: float, tmp_path: Path) -> None:
    """As typed, for a few steps: the first arm comes below the task's own baseline, and the page names it."""
    command = ["compare", "--model", str(ROOT / f"examples/tasks/{name}.py:build"), "training.probe_every=0"]
    command += ["training.steps=60", "training.lr=3e-3", *words]
    code, out, err = called(*command, "--jobs", "1", "--out", str(tmp_path), "--json")
    assert code == 0, err
    content = json.loads(out)
    assert content["arms"][0]["validation_loss"] < below * content["unigram_entropy"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "aseline" in page and "nigram" not in page
