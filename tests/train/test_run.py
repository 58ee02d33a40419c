"""Recipes: what is read, what is refused and with which words, and that every key changes what is built."""

import dataclasses
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from isograd.errors import RecipeError
from isograd.lab.train.optim import optimizer_of, schedule_of
from isograd.lab.train.recipe import known_keys, load_run, run_from_dict
from isograd.lab.train.run import Model, Run, written
from isograd.lab.train.tasks import TASKS
from isograd.lab.train.tasks.language import LanguageModelling, LanguageRun
from isograd.lab.train.train import load_task
from isograd.lab.train.trainer import IsogradTrainer, arguments, check_machine
from isograd.lab.train.validation import Validate
from tests.build import few
from tests.train.recipes import pairs_files, small, small_translation


def refused(*parts: str, overrides: tuple[str, ...] = (), recipe: Path | None = None) -> None:
    with pytest.raises(RecipeError) as error:
        load_run(recipe, overrides)
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("lr=3", "training.lr"),
        ("model.layer=3", "model.layers"),
        ("placment=post-ln", "model.placement"),
        ("layers=3", "model.layers"),
        ("model.lr=3", "training.lr"),
        ("training.warm_up=3", "training.warmup"),
        ("optimiser=sgd", "training.optimizer"),
        ("data.lenght=3", "data.length"),
        ("sed=3", "seed"),
        ("modle.layers=3", "model"),
    ],
)
def test_an_unknown_key_is_refused_with_the_right_one(override: str, suggestion: str) -> None:
    key = override.partition("=")[0].removesuffix(".layers")
    refused(f"unknown key {key!r}", f"did you mean {suggestion!r}?", overrides=(override,))


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("model.layers=two", ["model.layers", "a whole number", "two"]),
        ("model.layers=2.5", ["model.layers", "a whole number"]),
        ("model.layers=true", ["model.layers", "a whole number"]),
        ("training.lr=fast", ["training.lr", "expected a number"]),
        ("training.lr=true", ["training.lr", "expected a number"]),
        ("training.compile=1", ["training.compile", "true or false"]),
        ("training.decay=cos", ["training.decay", "cosine"]),
        ("training.optimizer=adagrad", ["training.optimizer", "adamw"]),
        ("training.precision=fp8", ["training.precision", "bf16"]),
        ("training.betas=[0.9]", ["training.betas", "2 elements"]),
        ("training.track=tensorboard", ["training.track", "a list"]),
        ("training.track=[paper]", ["training.track", "trackio"]),
        ("data.level=word", ["data.level", "char"]),
        ("model=3", ["model is a section"]),
        ("model.layers.x=3", ["model.layers", "a whole number"]),
        ("training.steps=null", ["training.steps is empty", "300"]),
        ("training.lr=", ["training.lr is empty"]),
        ("training.lr=[1", ["'training.lr=[1'", "not YAML"]),
        ("steps", ["'steps' is an invalid override", "key=value"]),
    ],
)
def test_wrong_types(override: str, parts: list[str]) -> None:
    refused(*parts, overrides=(override,))


@pytest.mark.parametrize(
    "overrides",
    [
        ("training.steps=0",),
        ("training.batch=0",),
        ("training.accumulation=0",),
        ("training.accumulation=3", "training.batch=16"),
        ("training.lr=0",),
        ("training.lr=-1e-3",),
        ("training.lr=.nan",),
        ("training.lr=.inf",),
        ("training.clip=-1",),
        ("training.clip=.nan",),
        ("training.weight_decay=-1",),
        ("training.eps=-1e-8",),
        ("training.betas=[0.9, 1.0]",),
        ("training.betas=[-0.1, 0.9]",),
        ("training.label_smoothing=1.0",),
        ("training.probe_every=-1",),
        ("training.warmup=-1",),
        ("training.warmup=10", "training.steps=10", "training.decay=linear"),
        ("training.warmup=12", "training.steps=10", "training.decay=cosine"),
        ("data.length=0",),
        ("data.vocab_size=0",),
        ("data.seed=-1",),
        ("seed=-1",),
        ("seed=4294967296",),
        ("model.norm_eps=0",),
        ("training.optimizer=lamb", "training.fsdp=true"),
        ("training.stop_at=-1",),
        ("training.recover=rollback", "training.fsdp=true"),
        ("training.stop_at=20", "training.steps=10"),
    ],
)
def test_values_that_nothing_can_be_built_of(overrides: tuple[str, ...]) -> None:
    refused(overrides[0].partition("=")[0], overrides=overrides)


def test_a_warm_up_to_the_end_is_allowed_where_nothing_divides_by_the_rest() -> None:
    for decay in ("constant", "inverse-sqrt"):
        run = load_run(None, ["training.warmup=10", "training.steps=10", f"training.decay={decay}"])
        assert schedule_of(run.training)(10) == 1.0


def test_recipes_from_files(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {layers: 3}\ntraining:\n  lr: 1e-4\n  track: [tensorboard]\n")
    run = load_run(recipe, ["model.width=32", "model.layers=5", "name=2024-01-01"])
    assert (run.model.layers, run.model.width, run.training.lr, run.name) == (5, 32, 1e-4, "2024-01-01")
    assert run.training.track == ("tensorboard",)
    recipe.write_text("")
    assert load_run(recipe) == LanguageRun()


@pytest.mark.parametrize(
    ("key", "right", "wrong"), [("model.bias", True, 1), ("training.lr", 1, True), ("seed", 2, 2.5)]
)
def test_a_value_is_read_as_its_own_whatever_was_read_before(key: str, right: Any, wrong: Any) -> None:
    """What reads as equal in Python is not the same in a recipe, in either order."""
    for _ in range(2):
        load_run(None, [f"{key}={json.dumps(right)}"])
        refused(key, overrides=(f"{key}={json.dumps(wrong)}",))
    rates = [load_run(None, [f"training.lr={text}"]).training.lr for text in ("1e-3", "0.001", "1")]
    assert rates == [1e-3, 1e-3, 1.0] and all(type(rate) is float for rate in rates)


def test_a_mapping_stays_its_owners() -> None:
    content = {"model": {"positions": "rotary", "rope": {"rope_type": "linear", "factor": 2.0}}}
    first = run_from_dict(content)
    content["model"]["rope"]["factor"] = 4.0  # type: ignore[index]
    again = run_from_dict(content)
    assert isinstance(first.model, Model) and isinstance(again.model, Model)
    assert first.model.rope == {"rope_type": "linear", "factor": 2.0} and again.model.rope["factor"] == 4.0  # type: ignore[index]


@pytest.mark.parametrize("text", ["model: [1", "- a\n- b\n", "just text", "model:\n", "\tmodel: 3", "1: 2\n"])
def test_files_that_are_no_recipe(text: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    refused(recipe=recipe)
    refused("nothing.yaml: no such recipe", recipe=tmp_path / "nothing.yaml")


OTHER: dict[str, Any] = {
    "name": "other", "seed": 1,
    "model.placement": "normformer", "model.layers": 3, "model.width": 8, "model.heads": 1, "model.ffn": 24,
    "model.act": "swiglu", "model.norm": "rmsnorm", "model.norm_eps": 1e-6, "model.bias": False,
    "model.positions": "learned", "model.scale_embedding": False, "model.embedding_norm": True,
    "model.tie_embeddings": False, "model.init": "normal", "model.initializer_range": 0.5, "model.dropout": 0.1,
    "model.attention_dropout": 0.1, "model.activation_dropout": 0.1, "model.embedding_dropout": 0.1,
    "model.kv_heads": 1, "model.head_dim": 4, "model.rope": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
    "model.rope_interleaved": True, "model.sliding_window": 3,
    "model.layer_types": ["full_attention", "sliding_attention"], "model.attention_multiplier": 0.5,
    "model.logits_scale": 0.5, "model.logits_cap": 2.0, "model.norm_bias": False,
    "data.source": "other.txt", "data.valid": "other.txt", "data.field": "body", "data.level": "bpe",
    "data.vocab_size": 300, "data.length": 4, "data.seed": 9,
    "training.steps": 7, "training.batch": 8, "training.accumulation": 2, "training.lr": 0.5, "training.warmup": 2,
    "training.decay": "cosine", "training.optimizer": "sgd", "training.betas": [0.8, 0.9], "training.eps": 1e-3,
    "training.weight_decay": 0.1, "training.label_smoothing": 0.1, "training.clip": 1.0, "training.precision": "bf16",
    "training.compile": True, "training.gradient_checkpointing": True, "training.fsdp": True,
    "training.probe_every": 3, "training.checkpoint_every": 3, "training.valid_sequences": 1,
    "training.track": ["wandb"], "training.valid_every": 4, "training.patience": 1, "training.select": "best",
    "training.average": 3, "training.profile_dropout": 0.5, "training.stop_when_broken": True,
    "data.documents": "blank-line", "training.stop_at": 5,
    "training.recover": "rollback", "training.recoveries": 1, "training.decay_all": True,
}  # fmt: skip
# keys of a model that is trained further; tests/train/test_from.py shows what they do
OF_A_MODEL = {"model.from", "model.optimizer_state", "training.keep_optimizer"}
OF_A_MASKED: dict[str, Any] = {
    "data.packing": "segment-pair", "data.mask": 0.5, "data.mask_random": 0.5, "data.mask_kept": 0.5,
}  # fmt: skip
OF_A_CLASSIFICATION: dict[str, Any] = {
    "glue.task": "rte", "glue.source": "other", "glue.model": "other", "glue.scratch": True, "glue.length": 9,
    "glue.warmup": 0.5, "glue.dropout": 0.2, "glue.attention_dropout": 0.2, "glue.keep": True,
}  # fmt: skip
OF_A_TRANSLATION: dict[str, Any] = {
    "model.encoder_layers": 3, "model.encoder_placement": "post-ln", "model.share_embeddings": False,
    "pairs.train": ["other"], "pairs.valid": ["other"], "pairs.source": "fr", "pairs.target": "fr",
    "pairs.vocabulary": "bpe", "pairs.vocab_size": 290, "pairs.joint": False, "pairs.codes": "other.codes",
    "pairs.dictionaries": ["other.dict"], "pairs.tokenized": True, "pairs.longest": 12, "pairs.ratio": 1.1,
    "pairs.pool": 5, "search.beam": 3, "search.length_penalty": 0.6,
    "search.early_stopping": True, "search.extra": 7, "search.stretch": 2.0,
    "search.pairs": 2, "training.epochs": 1, "training.tokens": 128, "training.smoothing": "fairseq",
    "training.valid_pairs": 2,
    "training.first": "fairseq", "training.warmup_from": 1e-4, "training.decay_to": 1e-4, "training.decay_at": 5,
    "training.power": 2.0,
}  # fmt: skip
READ_BY_BOTH = {f"training.{name}" for name in ("first", "warmup_from", "decay_to", "decay_at", "power")}
DEFAULT_THERE = {"model.share_embeddings", "pairs.vocabulary"}  # the other value is the other task's default
VALUES = OTHER | OF_A_MASKED | OF_A_CLASSIFICATION | OF_A_TRANSLATION
OWN = [key for key in VALUES if key not in READ_BY_BOTH | DEFAULT_THERE | set(OTHER)]
NEEDS: dict[str, dict[str, dict[str, Any]]] = {  # what else must be set for a key to be read
    "model.share_embeddings": {"training": {"steps": 3}},
    "model.rope": {"model": {"positions": "rotary"}},
    "model.rope_interleaved": {"model": {"positions": "rotary"}},
    "model.layer_types": {"model": {"sliding_window": 3}},
    "pairs.vocab_size": {"pairs": {"vocabulary": "bpe"}},
    "pairs.joint": {"model": {"share_embeddings": False}},
    "pairs.codes": {"pairs": {"vocabulary": "subword-nmt", "codes": "some.codes"}},
    "pairs.dictionaries": {"pairs": {"vocabulary": "subword-nmt", "codes": "some.codes"}},
    "training.epochs": {"training": {"steps": 40}},
    "training.average": {"training": {"select": "average", "valid_every": 3}},
    "training.patience": {"training": {"valid_every": 3}},
    "training.select": {"training": {"valid_every": 3}},
    "training.first": {"training": {"warmup": 4}},
    "training.warmup_from": {"training": {"warmup": 4}},
    "training.decay_to": {"training": {"decay": "linear"}},
    "training.decay_at": {"training": {"decay": "inverse-sqrt"}},
    "training.power": {"training": {"decay": "polynomial"}},
}


def changed(run: Run, key: str, value: Any) -> Run:
    content = run.as_dict()
    section = content
    for part in key.split(".")[:-1]:
        section = section.setdefault(part, {})
    section[key.split(".")[-1]] = value
    return run_from_dict(content)


def test_one_source_of_pairs_needs_no_brackets() -> None:
    run = load_run(None, ["task=translation", "pairs.train=data/train", "pairs.valid=[data/val]"])
    assert (run.pairs.train, run.pairs.valid) == (("data/train",), ("data/val",))
    refused("pairs.train", overrides=("task=translation", "pairs.train=3"))


ALL = {"name", "task", "seed"}
OF_ONES_OWN = {"model.build", "model.arguments", "model.sha256"}  # tests/train/test_own.py


def test_the_tables_hold_every_key() -> None:
    tables = (OTHER, OF_A_MASKED, OF_A_CLASSIFICATION, OF_A_TRANSLATION)
    assert {*VALUES, *OF_A_MODEL, *OF_ONES_OWN, "task"} == set(known_keys()) and sum(map(len, tables)) == len(VALUES)
    for task in TASKS.values():
        sections = {f.name: f.default_factory for f in dataclasses.fields(task.recipe) if f.name not in ALL}
        inside = {
            f"{s}.{written(f.name)}"
            for s, of in sections.items()
            if of is not dataclasses.MISSING
            for f in dataclasses.fields(of)
        }
        assert set(known_keys(task.name)) == inside | ALL


def base(key: str) -> Run:
    """A run in which the key is read."""
    if key in OTHER:
        return small(**NEEDS.get(key, {}))
    if key in OF_A_MASKED:
        parts = {"source": "parts.txt", "documents": "blank-line"} if key == "data.packing" else {}
        return small("masked", task="masked", data=parts)
    if key in OF_A_CLASSIFICATION:
        return run_from_dict({"task": "classification", "glue": {"model": "somewhere"}})
    given = NEEDS.get(key, {})
    shared = {"share_embeddings": key == "model.share_embeddings"}
    return small_translation(**given | {"model": shared | given.get("model", {})})


@pytest.mark.parametrize("key", few(VALUES, 4))
def test_round_trip_and_key(key: str) -> None:
    """as_dict and back is the same run; the key changes with everything but the name."""
    one = base(key)
    other = changed(one, key, VALUES[key])
    assert run_from_dict(other.as_dict()) == other != one
    assert (other.key() == one.key()) == (key == "name")
    assert len(one.key()) == 10 and int(one.key(), 16) >= 0


@pytest.mark.parametrize("key", [*OWN, "data.source", "training.batch"])
def test_what_the_other_task_reads_is_refused(key: str) -> None:
    other = small_translation() if key in OTHER else small()
    with pytest.raises(RecipeError, match=f"{key}.* is read by task"):
        changed(other, key, VALUES[key])


def built(run: Run, folder: Path) -> dict[str, Any]:
    """All that a run decides before its first step, as text."""
    task = load_task(run)
    made = task.samples
    options = arguments(task.run, folder).to_dict()
    schedule = schedule_of(task.run.training, task.updates_per_epoch)
    untracked = replace(task.run, training=replace(task.run.training, track=()))  # trackers need not be installed
    trainer = IsogradTrainer(untracked, task.build(task.config()), made, folder, task.updates_per_epoch)
    facts = {k: v for k, v in task.facts().items() if k not in ("source", "sha256")}
    return {
        "config": task.config().to_dict(),
        "arguments": {k: v for k, v in options.items() if k not in ("logging_dir", "output_dir")},
        "optimizer": [str(part) for part in optimizer_of(run.training)],
        "schedule": [schedule(t) for t in range(1, task.run.training.steps + 1)],
        "smoothing": trainer.smoothing,
        "order": [{k: v.tolist() for k, v in made[i].items()} for i in range(len(made))],
        "facts": facts,
        "valid": task.corpus.valid.tolist() if run.task in ("language", "masked") else list(task.corpus.valid_lines),
        "every": Validate(trainer, task, folder).every,
    }


ELSEWHERE = {  # keys that act in the training loop itself; test -> where they are shown to act
    "training.label_smoothing": "test_numbers", "training.clip": "test_numbers",
    "training.probe_every": "test_numbers", "training.valid_sequences": "test_numbers",
    "training.gradient_checkpointing": "test_numbers",
    "training.patience": "test_translation", "training.select": "test_translation",
    "training.average": "test_translation", "search.beam": "test_translation", "search.pairs": "test_translation",
    "search.length_penalty": "test_translation", "search.extra": "test_translation",
    "search.early_stopping": "test_translation",
    "search.stretch": "test_translation", "pairs.tokenized": "test_translation",
    "training.valid_pairs": "test_translation",
    "training.fsdp": "test_distributed", "training.stop_when_broken": "test_text",
    "training.compile": "test_numbers", "training.profile_dropout": "test_calibrate",
    "training.stop_at": "test_resume", "training.recover": "test_recover", "training.recoveries": "test_recover",
}  # fmt: skip
CODES = "#version: 0.2\no n\n"


@pytest.mark.filterwarnings("ignore")  # what is only named here says that it is not used
@pytest.mark.parametrize("key", few([k for k in VALUES if k not in {*ELSEWHERE, *OF_A_CLASSIFICATION}], 3))
def test_every_key_changes_what_is_built(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.txt").write_text("another text, of other words\n" * 40)
    Path("parts.txt").write_text("one document\n\nand another one\n\n" * 40)
    rows = [f'{{"text": "{"one " * 90}", "body": "{"two " * 90}"}}\n']
    Path("rows.jsonl").write_text("".join(rows))
    Path("some.codes").write_text(CODES)
    Path("other.codes").write_text(CODES + "t w\n")
    Path("other.dict").write_text("one 5\ntwo 4\n")
    for language in ("en", "de", "fr"):
        Path(f"other.{language}").write_text("".join(f"{language} {i}\n" for i in range(50)))
        prefix = Path(pairs_files())
        if language == "fr":
            prefix.with_suffix(".fr").write_text(prefix.with_suffix(".de").read_text()[::-1].strip() + "\n")
    one = base(key)
    data = {"level": "bpe"} if key == "data.vocab_size" else {"source": "rows.jsonl"} if key == "data.field" else {}
    data |= {"source": "parts.txt"} if key == "data.documents" else {}
    model = {"init": "normal"} if key == "model.initializer_range" else {}
    if key in OTHER and (data or model):
        one = small(data=data, model=model)
    first, second = (built(run, tmp_path) for run in (one, changed(one, key, VALUES[key])))
    assert first != second


def test_the_foil_a_name_changes_nothing(tmp_path: Path) -> None:
    assert built(small(), tmp_path) == built(small(), tmp_path)
    assert built(small_translation(), tmp_path) == built(small_translation(), tmp_path)


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ({"placement": "preln"}, ["'preln'", "pre-ln"]),
        ({"width": 30, "heads": 4}, ["model.width=30", "model.heads=4"]),
        ({"act": "gelou"}, ["model.act='gelou'", "gelu"]),
        ({"positions": "rope"}, ["model.positions='rope'", "rotary"]),
        ({"norm": "batchnorm"}, ["model.norm='batchnorm'", "rmsnorm"]),
        ({"init": "kaiming"}, ["model.init='kaiming'", "fairseq"]),
        ({"layers": 0}, ["model.layers=0"]),
        ({"dropout": 1.0}, ["model.dropout=1.0"]),
        ({"attention_dropout": -0.1}, ["model.attention_dropout=-0.1"]),
    ],
)
def test_shapes_no_model_has_are_named_as_in_the_recipe(model: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        LanguageModelling(small(model=model)).config()
    for part in parts:
        assert part in str(error.value), str(error.value)


def test_what_this_machine_cannot_do() -> None:
    check_machine(small())
    for training, part in (
        ({"precision": "fp16"}, "bf16 or fp32"),
        ({"track": ["trackio"]}, r"pip install 'isograd\[trackio\]'"),
    ):
        with pytest.raises(RecipeError, match=part):
            check_machine(small(training=training))
    if find_spec("tensorboard") is None:
        with pytest.raises(
            RecipeError, match=r"names tensorboard, which is not installed; pip install 'isograd\[track\]'$"
        ):
            check_machine(small(training={"track": ["tensorboard"]}))
