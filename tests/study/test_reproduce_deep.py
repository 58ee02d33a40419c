"""Items of ADMIN and Very Deep: what they measure of runs, against the models themselves; their rules."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.lab.data.pairs import find_pairs
from isograd.lab.evaluate.scores import paired_bootstrap, score
from isograd.lab.evaluate.translation import Translator
from isograd.lab.train.train import initial_model, train
from isograd.models import IsogradForSeq2SeqLM
from isograd.papers.reproduce import rules
from isograd.papers.reproduce.context import Context, Trained
from isograd.papers.reproduce.item import Judgement, Row, Rows
from isograd.papers.reproduce.measures import stacks, translations
from isograd.papers.reproduce.measures.dependency import dependency_map
from isograd.papers.reproduce.registry import ITEMS
from isograd.transformer.parameters import Coefficient
from tests.train.recipes import pairs_files, read_json, small_translation


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """ADMIN, four and three layers, six updates."""
    run = small_translation(
        model={"placement": "admin", "encoder_layers": 4, "layers": 3}, training={"steps": 6, "lr": 1e-3}
    )
    folder = tmp_path_factory.mktemp("runs") / "admin"
    train(run, folder)
    return Trained(group="", arm="ADMIN", run=run, values={}, folder=folder)


def context(folder: Path, *trained: Trained) -> Context:
    notes: list[str] = []
    return Context(
        trained=trained, settings={}, corpus=None, folder=folder, seeds=None, jobs=1, version="", note=notes.append
    )


def test_dependencies_before_and_after(trained: Trained, tmp_path: Path) -> None:
    found = stacks.dependencies(context(tmp_path, trained))
    (own,) = [row for row in found if "outcome" in row]
    task, model = initial_model(trained.run)
    given = {k: v for k, v in task.first_batch().items() if k != "labels"}
    given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(task.first_batch()["labels"])
    after = IsogradForSeq2SeqLM.from_pretrained(trained.folder / "model")
    for when, network in (("init", model), ("trained", after)):
        expected = dependency_map(network, given, "encoder")
        rows = [row for row in found if (row.get("when"), row.get("stack")) == (when, "encoder")]
        assert len(rows) == sum(range(2, 10))
        assert [r["beta2"] for r in rows] == pytest.approx([v for row in expected.rows for v in row], rel=1e-6)
        assert own[f"encoder {when}"] == pytest.approx(sum(expected.own[4:]) / 4)
    assert own["encoder init"] != pytest.approx(own["encoder trained"], rel=1e-6)


def test_skips_as_profiled_and_as_trained(trained: Trained, tmp_path: Path) -> None:
    found = stacks.skips(context(tmp_path, trained))
    calibration = read_json(trained.folder / "resolved.json")["calibration"]
    profiled = [row["skip"] for row in found if row.get("when") == "profile" and row["stack"] == "decoder"]
    assert profiled == calibration["decoder"]
    kept = IsogradForSeq2SeqLM.from_pretrained(trained.folder / "model")
    weights = [m.weight.mean().item() for m in kept.encoder.modules() if isinstance(m, Coefficient)]
    last = [row["skip"] for row in found if row.get("when") == "after 6 updates" and row["stack"] == "encoder"]
    assert last == pytest.approx(weights, abs=2e-2) and last != profiled
    assert found[0]["encoder_moved"] > 0


def test_the_factor_of_a_stack() -> None:
    """Gradients 1, 2, 8 of three layers: (1 / 8)^(1 / 2); other steps, stacks and kinds do not count."""
    rows: list[Row] = [
        {"step": 1, "stack": "decoder", "kind": "ffn", "layer": i, "gradient_norm": g}
        for i, g in ((1, 1.0), (2, 2.0), (3, 8.0))
    ]
    other = [
        {**row, "gradient_norm": 5.0, **change}
        for row in rows
        for change in ({"step": 2}, {"kind": "attn"}, {"stack": "encoder"})
    ]
    assert stacks.factor([*other, *rows], "decoder") == pytest.approx((1 / 8) ** 0.5)
    assert stacks.factor([*other, *rows], "encoder") == 1.0


def test_the_use_of_the_source(trained: Trained, tmp_path: Path) -> None:
    """Nothing of it comes through a cross-attention of zeros."""
    (row,) = stacks.gradients_of_runs(context(tmp_path / "own", trained))
    assert row["source_use"] != 0
    blind = replace(trained, folder=Path(shutil.copytree(trained.folder, tmp_path / "blind")))
    model = IsogradForSeq2SeqLM.from_pretrained(blind.folder / "model")
    crossing = [p for name, p in model.named_parameters() if "cross" in name]
    for parameter in crossing:
        torch.nn.init.zeros_(parameter)
    model.save_pretrained(blind.folder / "model")
    (row,) = stacks.gradients_of_runs(context(tmp_path / "other", blind))
    assert crossing and row["source_use"] == 0


def test_scores_are_those_of_the_translations(trained: Trained, tmp_path: Path) -> None:
    (row,) = translations.scores(context(tmp_path, trained))
    sources, references = translations.held_out(trained.run)
    found = [one.text for one in Translator.load(trained.folder).translate(sources)]
    expected = score(found, references, tokenized=False, language="de")
    assert (row["bleu"], row["chrf"], row["ter"]) == (expected.bleu, expected.chrf, expected.ter)
    (path,) = trained.folder.glob("translated-*.json")
    path.write_text(json.dumps(references))  # kept: nothing is translated again
    assert translations.scores(context(tmp_path, trained))[0]["chrf"] == 100
    assert translations.meteors(context(tmp_path, trained))[0]["meteor"] > 90  # one word is in a chunk of one
    path.unlink()


def test_folding_changes_no_translation(trained: Trained, tmp_path: Path) -> None:
    (row,) = translations.folded(context(tmp_path, trained))
    assert (row["same"], row["skips"], row["skips_left"]) == (100, 4 * 2 + 3 * 3, 0)
    assert judged("verydeep2020/fold", [row, row]).verdict == "same direction"


@pytest.mark.slow
def test_back_translation_of_a_part(trained: Trained, tmp_path: Path) -> None:
    """A quarter are pairs; of the others the targets, each behind a tagged translation; nothing is made twice."""
    rows = translations.back_translated(context(tmp_path, trained))
    assert [row["arm"] for row in rows] == ["ADMIN", "pairs alone", "one to one", "one to three", "back"]
    whole = find_pairs(pairs_files(), "en", "de").read()
    pairs = [json.loads(line) for line in (tmp_path / "corpus/pairs.jsonl").read_text().splitlines()]
    assert pairs == [{"en": a, "de": b} for a, b in list(zip(whole.source, whole.target, strict=True))[::4]]
    targets = [line for i, line in enumerate(whole.target) if i % 4]
    (synthetic,) = [path for path in (tmp_path / "corpus").glob("back-*") if not path.stem.endswith(("-40", "-120"))]
    made = [json.loads(line) for line in synthetic.read_text().splitlines()]
    assert all(row["en"].startswith("<BT> ") and row["de"] in targets for row in made) and made
    one = next(path for path in (tmp_path / "runs").iterdir() if path.name.startswith("one-to-one"))
    named = read_json(one / "run.json")["pairs"]["train"]
    assert named[0] == str(tmp_path / "corpus/pairs.jsonl") and len(named) == 2
    assert len(Path(named[1]).read_text().splitlines()) == min(40, len(made))
    back = next(path for path in (tmp_path / "runs").iterdir() if path.name.startswith("back"))
    assert read_json(back / "run.json")["pairs"]["source"] == "de"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}
    assert translations.back_translated(context(tmp_path, trained)) == rows
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}


def judged(item: str, rows: Rows) -> Judgement:
    judge = ITEMS[item].judge
    assert judge is not None
    return judge(rows)


def of(arm: str, outcomes: list[str], **more: Any) -> list[Row]:
    return [{"arm": arm, "seed": i, "outcome": outcome, **more} for i, outcome in enumerate(outcomes)]


def test_the_rule_of_sixty_layers() -> None:
    good, bad = ["finished"] * 3, ["collapsed", "diverged", "undecided"]
    trains = [*of("Post-LN, 6+6", good, validation_loss=4.0), *of("ADMIN, 60+12", good, validation_loss=4.1)]

    def found(outcomes: list[str], loss: float) -> str:
        return judged("verydeep2020/60l-12l", [*trains, *of("Post-LN, 60+12", outcomes, validation_loss=loss)]).verdict

    assert found(bad, 5.0) == "same direction"  # a diverged run is worse than any loss
    assert found(["collapsed", "finished", "collapsed"], 5.0) == "not seen"
    assert found(["undecided"] * 3, 4.3) == "not seen"  # not far behind
    own = [*of("a", good, validation_loss=4.0), *of("b", good, validation_loss=5.0)]
    assert rules.fails(own, "b", "a").verdict == "opposite" and rules.fails(own[:3], "b", "a").verdict == "not seen"


@pytest.mark.parametrize(
    ("apart", "verdict"),
    [((0.01, -0.02, 0.04), "same direction"), ((0.2, 0.3, 0.1), "opposite"), ((0.01, 0.02, 0.2), "not seen")],
)
def test_the_rule_of_alike(apart: tuple[float, ...], verdict: str) -> None:
    rows = [
        {
            "arm": arm,
            "seed": i,
            "outcome": "finished",
            "validation_loss": 4.0 + (gap if arm == "profiled at 0.1" else 0),
        }
        for arm in ("profiled at 0.1", "profiled at 0.2")
        for i, gap in enumerate(apart)
    ]
    assert rules.alike(rows, "profiled at 0.1", "profiled at 0.2", 0.05).verdict == verdict
    assert judged("verydeep2020/profile-dropout", rows).verdict == (
        "same direction" if verdict == "same direction" else "not seen"
    )


def test_the_rule_of_ranges() -> None:
    rows = [
        {"arm": arm, "seed": seed, "bucket": name, "value": value + seed}
        for arm, values in (("ADMIN, 9+3", (20, 30)), ("Post-LN, 3+3", (10, 25)))
        for name, value in zip(("1", "2 to 4"), values, strict=True)
        for seed in (1, 2, 3)
    ]
    assert judged("verydeep2020/word-frequency", rows).verdict == "same direction"
    assert judged("verydeep2020/word-frequency", rows).ours[2].label == "F1 of words seen 2 to 4 times, ADMIN, 9+3"
    worse = [{**row, "value": 50} if row["arm"] == "Post-LN, 3+3" and row["bucket"] == "1" else row for row in rows]
    assert judged("verydeep2020/word-frequency", worse).verdict == "not seen"


def test_the_rule_of_output_changes() -> None:
    """Post-LN a + b N and the others a + b ln N exactly, and the other way round."""

    def rows(swap: bool) -> list[Row]:
        found: list[Row] = []
        for arm, (_, law) in rules.LAWS.items():
            if swap:
                law = rules.LAWS["Pre-LN" if arm == "Post-LN" else "Post-LN"][1]
            for direction in ("random", "gradient"):
                for seed in (1, 2):
                    values = [2 + 3 * law(n) for n in (6, 12, 48, 96)]
                    found += [
                        {
                            "arm": arm,
                            "direction": direction,
                            "seed": seed,
                            "sublayers": n,
                            "change": v,
                            "relative": v / values[0],
                        }
                        for n, v in zip((6, 12, 48, 96), values, strict=True)
                    ]
        return found

    assert rules.output_changes(rows(swap=False)).verdict == "same direction"
    assert rules.output_changes(rows(swap=True)).verdict == "not seen"


def test_the_rule_of_vanishing() -> None:
    def rows(factor: float) -> list[Row]:
        return [
            {"arm": arm, "stack": stack, "layers": 18, "layer": 1, "seed": seed, "relative": fall**17}
            for arm, pair in stacks.PAIRS.items()
            for stack, placement in zip(("encoder", "decoder"), pair, strict=True)
            for seed in (1, 2)
            for fall in [factor if (stack, placement) == ("decoder", "post-ln") else 1.0]
        ]

    assert rules.vanishing(rows(0.8), 18, stacks.PAIRS).verdict == "same direction"
    assert rules.vanishing(rows(0.95), 18, stacks.PAIRS).verdict == "not seen"


def test_every_two_of_a_seed(trained: Trained, tmp_path: Path) -> None:
    """Both directions and the diagonal, in one order of the arms; the p of `paired_bootstrap`."""
    _, references = translations.held_out(trained.run)
    worse = [line[::-1] for line in references]
    made = {"a": worse, "b": references, "c": worse}
    arms = []
    for arm, lines in made.items():
        (folder := tmp_path / arm).mkdir()
        (folder / "outcome.json").write_text('{"outcome": "finished"}')
        (folder / f"translated-{translations.LINES}.json").write_text(json.dumps(lines))
        arms.append(replace(trained, arm=arm, folder=folder))
    found = [row for row in translations.differences(context(tmp_path, *arms)) if "first" in row]
    assert list(dict.fromkeys(row["first"] for row in found)) == list(dict.fromkeys(row["second"] for row in found))
    of = {(row["first"], row["second"]): row for row in found}
    assert len(of) == 9 and of["a", "c"]["chrf p"] == 1 and of["a", "a"]["bleu difference"] == 0
    expected = {
        (d.first, d.second): d for d in paired_bootstrap(made, references, tokenized=False) if d.measure == "chrf"
    }
    assert of["a", "b"]["chrf p"] == expected["a", "b"].p < 0.05
    assert of["a", "b"]["chrf difference"] == expected["a", "b"].score < 0
