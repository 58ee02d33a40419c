"""What tells the arms of a comparison apart, in words."""

import pytest

from isograd.lab.study.labels import differences, labels, shown
from isograd.lab.train.run import Run
from tests.train.recipes import small, small_translation


def said(*runs: Run) -> list[str]:
    return labels([run.as_dict() for run in runs])


def test_placement_and_warmup_always() -> None:
    assert said(small()) == ["pre-ln, no warm-up"]
    assert said(small(), small(model={"placement": "admin"}, training={"warmup": 3})) == [
        "pre-ln, no warm-up",
        "admin, warm-up 3",
    ]


def test_other_keys_where_arms_differ_in_them() -> None:
    """In every arm then, also in one at the recipe's own value; a key that all share is not said."""
    runs = [
        small(training={"lr": 2e-3}),
        small(training={"lr": 5e-4}),
        small(training={"lr": 5e-4, "optimizer": "sgd"}),
    ]
    assert said(*runs) == [
        "pre-ln, no warm-up, lr 0.002, optimizer adam",
        "pre-ln, no warm-up, lr 0.0005, optimizer adam",
        "pre-ln, no warm-up, lr 0.0005, optimizer sgd",
    ]
    assert said(*runs[1:]) == ["pre-ln, no warm-up, optimizer adam", "pre-ln, no warm-up, optimizer sgd"]
    deep = [small(model={"layers": n}, training={"betas": [0.9, b]}) for n, b in ((2, 0.98), (3, 0.99))]
    assert said(*deep)[1] == "pre-ln, no warm-up, 3 layers, betas (0.9, 0.99)"


def test_seed_and_name_make_no_arm() -> None:
    one, two = small(name="a", seed=1), small(name="b", seed=2)
    assert said(one, two) == ["pre-ln, no warm-up"] * 2
    assert differences([one.as_dict(), two.as_dict()]) == []
    assert differences([one.as_dict(), small(training={"lr": 1e-4}).as_dict()]) == ["training.lr"]


def test_what_is_not_read_is_not_said() -> None:
    runs = [small(), small(training={"decay": "step", "decay_at": 4})]
    assert said(*runs) == ["pre-ln, no warm-up, decay constant", "pre-ln, no warm-up, decay step, decay at 4"]


def test_labels_of_different_runs_differ() -> None:
    runs = [
        small_translation(model={"encoder_layers": None}),
        small_translation(model={"encoder_layers": 3}),
        small_translation(model={"encoder_layers": None}, pairs={"valid": ["/a folder/held-out"]}),
    ]
    found = said(*runs)
    assert len(set(found)) == 3
    assert found[2].endswith(", 2 encoder layers, valid (held-out)")
    assert found[0] == "pre-ln, no warm-up, 2 encoder layers, valid ()"
    assert found[1] == "pre-ln, no warm-up, 3 encoder layers, valid ()"


@pytest.mark.parametrize(
    ("value", "text"), [(1e-3, "0.001"), (5e-5, "5e-05"), (None, "none"), (True, "true"), ((1, 2.5), "(1, 2.5)")]
)
def test_values(value: object, text: str) -> None:
    assert shown(value) == text
