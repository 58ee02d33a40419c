"""`model.from`: a model that is trained further begins as what it is, with its shape and its tokenizer."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from isograd.convert.pretrained import import_pretrained
from isograd.errors import DataError, ModelError, RecipeError
from isograd.lab.train.recipe import load_run, run_from_dict
from isograd.lab.train.run import Run
from isograd.lab.train.train import load_task, train
from isograd.models import IsogradForCausalLM
from tests.build import few, in_turn, randomised
from tests.train.recipes import (
    TEXT,
    losses,
    outcome,
    pairs_files,
    read_json,
    same_run,
    small,
    small_translation,
    text_file,
)

TRAINING = {"steps": 6, "batch": 4, "probe_every": 0, "checkpoint_every": 2, "valid_sequences": 4}
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
Made = Callable[[str], Path]


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """As other people's: special tokens of other names at other ids, and a tokenizer.json that cuts."""
    if kind == "bert":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=names, show_progress=False)
        special = dict(zip(("pad", "unk", "cls", "sep", "mask"), names, strict=True))
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        names = ["<s>", "<pad>", "</s>", "<unk>"] if kind == "bart" else ["<|end|>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=names, initial_alphabet=alphabet, show_progress=False
        )
        special = {"bos": names[0], "eos": names[-1]}
        if kind == "bart":
            special = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    made.train_from_iterator([TEXT], trainer)
    if kind == "bart":
        from tokenizers.processors import TemplateProcessing

        made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made.enable_truncation(8)
    return PreTrainedTokenizerFast(tokenizer_object=made, **{f"{role}_token": name for role, name in special.items()})


def network(kind: str, rows: int) -> PreTrainedModel:
    """A model of transformers' with every weight at random, no dropout."""
    off = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    made: dict[str, Callable[[], PreTrainedModel]] = {
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=rows + 5, num_key_value_heads=1, max_position_embeddings=32, **SIZES, **ends
            )
        ),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=rows, n_embd=16, n_layer=2, n_head=2, n_positions=32, n_inner=24, **ends,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            )
        ),
        "bert": lambda: transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=rows, max_position_embeddings=32, hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0, **SIZES,
            )
        ),
        "bart": lambda: transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                vocab_size=rows, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
                decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=120,
                dropout=0.0, activation_dropout=0.0, bos_token_id=0, pad_token_id=1, eos_token_id=2,
                decoder_start_token_id=2, forced_eos_token_id=2, **off,
            )
        ),
    }  # fmt: skip
    torch.manual_seed(3)
    model = made[kind]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of a model of transformers', by its kind."""

    def made(kind: str) -> Path:
        folder = tmp_path_factory.getbasetemp() / f"theirs-{kind}"
        if not folder.exists():
            own = tokenizer(kind)
            network(kind, len(own)).save_pretrained(folder)
            own.save_pretrained(folder)
        return folder

    return made


def recipe(kind: str, source: Path | str, **sections: dict[str, Any]) -> Run:
    if kind == "bart":
        pairs = {"train": [pairs_files()], "longest": 40}
        content = {"task": "translation", "pairs": pairs, "search": {"pairs": 0, "extra": 5}}
        content["training"] = {"steps": 4, "tokens": 300, "probe_every": 0, "checkpoint_every": 2, "valid_every": 2}
    else:
        data = {"source": str(text_file()), "length": 12}
        content = {"task": "masked" if kind == "bert" else "language", "data": data, "training": TRAINING}
    content = {part: (value | sections.get(part, {})) if part != "task" else value for part, value in content.items()}
    return run_from_dict(content | {"model": {"from": str(source)} | sections.get("model", {})})


def their_loss(kind: str, folder: Path, batch: dict[str, torch.Tensor]) -> float:
    """The original's own forward pass on a batch of ours, and the mean cross-entropy of what is predicted."""
    cls = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    model = cls.from_pretrained(folder, dtype=torch.float32).eval()
    labels = batch.get("shift_labels", batch.get("labels"))
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "token_type_ids")
    inputs = {name: batch[name] for name in names if name in batch}
    if kind == "bart" and "decoder_input_ids" not in inputs:
        inputs["labels"] = labels
    with torch.no_grad():
        logits = model(**inputs).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100))


@in_turn("way, kind", ["imported", "theirs"], ["llama", "gpt2", "bert", "bart"])
def test_the_first_loss_is_the_models_own(kind: str, way: str, there: Made, tmp_path: Path) -> None:
    """Control: of fresh weights it is not."""
    source = folder = there(kind)
    if way == "imported":
        source = tmp_path / "ours"
        import_pretrained(folder, source)
    run = recipe(kind, source)
    task = load_task(run)
    at = range(run.training.batch) if kind != "bart" else [0]
    batch = task.samples.__getitems__(at) if kind != "bart" else task.samples[0]
    expected = their_loss(kind, folder, dict(batch))
    done = train(run, tmp_path / "run")
    assert done["outcome"] != "failed", done.get("error")
    assert losses(tmp_path / "run")[0] == pytest.approx(expected, rel=1e-5)
    torch.manual_seed(3)
    model, fresh = task.build(task.config()), task.empty(task.config())
    with torch.no_grad():
        assert float(model.eval()(**batch).loss) == pytest.approx(expected, rel=1e-5)
        assert float(fresh.eval()(**batch).loss) != pytest.approx(expected, rel=1e-3)


def test_the_run_says_what_it_began_with(there: Made, tmp_path: Path) -> None:
    run = recipe("llama", there("llama"))
    done = train(run, tmp_path / "run")
    said = read_json(tmp_path / "run/resolved.json")["from"]
    assert said == done["from"] == outcome(tmp_path / "run")["from"]
    assert said["model"] == str(there("llama")) and len(said["sha256"]) == 64
    written = read_json(tmp_path / "run/run.json")["model"]
    assert (written["from"], written["layers"], written["kv_heads"]) == (str(there("llama")), 2, 1)
    assert "from-theirs-llama-2l" in run.folder_name()
    assert run.folder_name() != recipe("gpt2", there("gpt2")).folder_name()
    assert run_from_dict(read_json(tmp_path / "run/run.json")).key() == run.key()
    original = transformers.AutoTokenizer.from_pretrained(there("llama"))
    kept = transformers.AutoTokenizer.from_pretrained(tmp_path / "run/model")
    assert kept("line 7: the fox")["input_ids"] == original("line 7: the fox")["input_ids"]


def test_a_run_of_ours_goes_on_from_its_model(tmp_path: Path) -> None:
    """Its second training begins at the loss that its weights have, on text that is encoded as it was."""
    first = small(training={"steps": 3, "lr": 0.01})
    train(first, tmp_path / "first")
    second = recipe("language", tmp_path / "first", data={"length": 8})
    one, other = load_task(first), load_task(second)
    assert (one.corpus.train == other.corpus.train).all()
    batch = other.samples.__getitems__(range(4))
    model = IsogradForCausalLM.from_pretrained(tmp_path / "first/model").eval()
    train(second, tmp_path / "second")
    with torch.no_grad():
        assert losses(tmp_path / "second")[0] == pytest.approx(float(model(**batch).loss), rel=1e-6)
    train(recipe("language", tmp_path / "second/model", data={"length": 8}), tmp_path / "third")


def test_a_translator_of_ours_goes_on(tmp_path: Path) -> None:
    first = small_translation(training={"steps": 2})
    train(first, tmp_path / "first")
    second = recipe("bart", tmp_path / "first", model={"dropout": 0.0})
    assert (second.pairs.source, second.pairs.joint, second.model.share_embeddings) == ("en", True, True)
    assert train(second, tmp_path / "second")["outcome"] != "failed"


def test_what_contradicts_the_model_is_one_line(there: Made, tmp_path: Path) -> None:
    name = str(there("llama"))

    def said(*words: str) -> str:
        with pytest.raises((RecipeError, DataError)) as error:
            load_task(load_run(None, [f"model.from={name}", f"data.source={text_file()}", *words])).config()
        assert "\n" not in str(error.value)
        return str(error.value)

    both = said("model.layers=7", "model.heads=4")
    assert f"model.from={name} contradicts model.layers=7, model.heads=4" in both
    assert "set model.layers=2 model.heads=2" in both
    assert 'data.level="bpe"' in said("data.level=bpe", "data.vocab_size=512")
    assert 'model.placement="post-ln"' in said("model.placement=post-ln")
    assert "set task=language" in said("task=masked")
    assert "set data.length=32" in said("data.length=40")
    assert load_run(None, [f"model.from={name}", "model.layers=2", "model.dropout=0.3"]).model.dropout == 0.3
    with pytest.raises(RecipeError, match="none is named"):
        load_run(None, ["data.level=model"])
    with pytest.raises(DataError, match="no such folder"):
        load_run(None, [f"model.from={tmp_path / 'nowhere'}"])


def test_fine_tuning_on_glue_takes_the_same_models(there: Made, tmp_path: Path) -> None:
    """glue.model and model.from are one key; a BERT of transformers' needs no import."""
    from tests.train.tuned import glue_folder

    name, glue = str(there("bert")), {"task": "mrpc", "source": str(glue_folder()), "length": 24}
    training = {"steps": 2, "batch": 8, "probe_every": 0}
    content: dict[str, Any] = {"task": "classification", "glue": glue, "training": training}
    run = run_from_dict(content | {"model": {"from": name}})
    assert (run.glue.model, run.model.placement) == (name, "post-ln")
    assert train(run, tmp_path / "run")["outcome"] != "failed"
    with pytest.raises(RecipeError, match="name two models"):
        run_from_dict(content | {"model": {"from": name}, "glue": glue | {"model": "other"}})


def _die(run: Run, folder: Path) -> None:
    train(run, folder, lambda step, _: os.kill(os.getpid(), signal.SIGKILL) if step >= 6 else None)


def test_a_killed_run_goes_on_to_the_bit(there: Made, tmp_path: Path) -> None:
    often = {"steps": 9, "checkpoint_every": 4, "probe_every": 3}
    run = recipe("gpt2", there("gpt2"), training=often, model={"dropout": 0.1})
    process = get_context("fork").Process(target=_die, args=(run, tmp_path / "killed"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    train(run, tmp_path / "killed")
    train(run, tmp_path / "whole")
    same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("optimizer", few(["adamw", "muon"], ["muon"]))
def test_a_stored_optimizer_goes_on(optimizer: str, tmp_path: Path) -> None:
    """Three steps and three more are six; with a fresh optimizer the fifth step is another one."""
    training = {"lr": 0.01, "optimizer": optimizer, "valid_sequences": 0}
    data: dict[str, Any] = {"source": str(text_file()), "length": 8, "seed": 5}
    train(small(data=data, training=training | {"steps": 3, "keep_optimizer": True}), tmp_path / "first")
    ended = {}
    for state in ("stored", "fresh"):
        model = {"optimizer_state": state}
        run = recipe("language", tmp_path / "first", data=data, model=model, training=training | {"steps": 3})
        assert train(run, tmp_path / state)["from"]["optimizer_state"] == state
        ended[state] = losses(tmp_path / state)
    whole = recipe("language", tmp_path / "first", data=data, training=training | {"steps": 3})
    held = torch.load(tmp_path / "first/model/optimizer.pt", weights_only=True)
    assert held["optimizer"] == optimizer and load_task(whole).pretrained is not None
    assert ended["stored"][0] == ended["fresh"][0] and ended["stored"][2] != ended["fresh"][2]
    with pytest.raises(RecipeError, match=f"set training.optimizer={optimizer}"):
        train(
            recipe("language", tmp_path / "first", data=data, model={"optimizer_state": "stored"}), tmp_path / "other"
        )
    with pytest.raises(RecipeError, match=r"no optimizer.pt beside .*; a run leaves it with training.keep_optimizer"):
        train(
            recipe("language", tmp_path / "fresh", data=data, model={"optimizer_state": "stored"}), tmp_path / "other"
        )
    assert not (tmp_path / "other").exists()


def test_six_steps_are_three_and_three(tmp_path: Path) -> None:
    """With the stored optimizer, on the same batch each time: what differs is only where the run was cut."""
    line = "a cat sat on a mat\n"
    (tmp_path / "text.txt").write_text(line * 2)
    data: dict[str, Any] = {
        "source": str(tmp_path / "text.txt"),
        "valid": str(text_file()),
        "length": len(line) * 2 - 2,
    }
    training = {"lr": 0.01, "batch": 2, "valid_sequences": 0}
    train(small(data=data, training=training | {"steps": 6}), tmp_path / "whole")
    train(small(data=data, training=training | {"steps": 3, "keep_optimizer": True}), tmp_path / "first")
    kept = {"optimizer_state": "stored"}
    train(
        recipe("language", tmp_path / "first", data=data, model=kept, training=training | {"steps": 3}), tmp_path / "b"
    )
    assert losses(tmp_path / "b") == losses(tmp_path / "whole")[3:]


@pytest.mark.parametrize("way", ["ours", "theirs"])
def test_broken_weights_are_refused_before_anything_is_written(way: str, there: Made, tmp_path: Path) -> None:
    source = tmp_path / "source"
    if way == "ours":
        import_pretrained(there("gpt2"), source)
    else:
        shutil.copytree(there("gpt2"), source)
    run = recipe("gpt2", source)
    (source / "model.safetensors").write_bytes(b"")
    with pytest.raises((DataError, ModelError), match=r"cannot be loaded|damaged or cut off"):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_weights_are_another_run(tmp_path: Path) -> None:
    train(small(training={"steps": 1}), tmp_path / "first")
    run = recipe("language", tmp_path / "first", data={"length": 8})
    train(run, tmp_path / "second")
    model = IsogradForCausalLM.from_pretrained(tmp_path / "first/model")
    randomised(model).save_pretrained(tmp_path / "first/model")
    (tmp_path / "second/outcome.json").unlink()
    with pytest.raises(FileExistsError, match="another"):
        train(run, tmp_path / "second")
