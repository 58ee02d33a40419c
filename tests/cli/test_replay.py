"""`isograd replay`: what it refuses in a line, and what it prints of what is known."""

from pathlib import Path

from isograd.files import write_json
from isograd.hub import is_watched
from tests.study.arms import called, refused
from tests.study.test_explain import GOOD, written


def test_what_is_refused(tmp_path: Path) -> None:
    assert "no folder of a run" in refused("replay", str(tmp_path / "nowhere"))
    folder = str(written(tmp_path / "run", [*GOOD, *[2.0] * 50], "finished"))
    assert "--from -1: expected a step" in refused("replay", folder, "--from", "-1")


def test_a_watched_loop_is_named_as_one(tmp_path: Path) -> None:
    """Neither a run nor a model: its page is what there is."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    for verb in ("check", "replay"):
        said = refused(verb, str(folder))
        assert "this is a watched loop" in said and f"isograd report {folder}" in said, said
        assert "config.json" not in said
    assert "OwnLoop" in refused("replay", str(folder))
    (folder / "run.json").write_text("{}")
    assert not is_watched(folder)


def test_a_replay_is_reported_from_its_files(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", [3.0] * 100, "collapsed") / "replay"
    folder.mkdir()
    run = {"seed": 0, "cell": "gone", "outcome": "finished", "final_loss": 2.25}
    change = {"change": "lr 0.0003", "settings": ["training.lr=3e-4"], "control": False, "begins": 40, "seeds": 1}
    other = {"change": "another seed", "control": True, "verdict": "fails", "finished": 0}
    content = {
        "parent": str(tmp_path / "run"),
        "run": {"outcome": "collapsed", "reason": "because"},
        "broke_from": 50,
        "begins": 40,
        "stop_at": 100,
        "changes": [
            change | {"verdict": "cures", "finished": 1, "runs": [run]},
            change | other | {"runs": [run | {"outcome": "collapsed", "final_loss": 3.0}]},
        ],
        "cures": ["lr 0.0003"],
        "by_chance": False,
    }
    write_json(folder / "replay.json", content)
    code, said, _ = called("report", str(folder))
    assert code == 0 and "lr 0.0003 cures the run; another seed fails too." in said
    assert "It began to fail at step 50. The last checkpoint before is that of step 40." in said
    assert "One seed per change" in said and "2.250" in said and (folder / "report/report.html").is_file()
