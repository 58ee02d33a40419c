"""`isograd import`: a model with its tokenizer and report, or one line and nothing."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from isograd.convert.parity import hashes
from isograd.lab.evaluate.translation import Translator
from isograd.models import IsogradForCausalLM, IsogradForSeq2SeqLM
from tests.build import few
from tests.golden import PAD, read, state_of
from tests.interop.fairseq_by_hand import by_hand, random_state
from tests.interop.test_checkpoint import Calls
from tests.interop.test_fairseq import DECODER, ENCODER, PAIR, flags
from tests.interop.test_torch_nn import Language, finished
from tests.study.arms import called, refused
from tests.study.arms import read as read_json

ROWS = 41
EXTRA: dict[str, Any] = {"extra_state": {"epoch": 2}, "optimizer_history": [{"num_updates": 7}]}


def floats(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.float() for name, value in state.items()}


def checkpoint(
    path: Path, options: dict[str, Any], kind: str, *, rows: int = ROWS, form: str = "args", **more: Any
) -> Path:
    """As fairseq saves it: options as a Namespace, or as a configuration; new format or legacy."""
    state = floats(random_state(options, kind, rows))
    said = {"source_lang": "de", "target_lang": "en", "arch": "transformer", "share_all_embeddings": False} | options
    given: dict[str, Any] = {"args": argparse.Namespace(**said)}
    if form == "cfg":
        task = {"_name": "translation", "source_lang": "de", "target_lang": "en", "data": "/data"}
        given = {"args": None, "cfg": {"model": argparse.Namespace(**said), "task": task, "common": {"seed": 1}}}
    torch.save(EXTRA | given | {"model": state} | more, path, _use_new_zipfile_serialization=form != "legacy")
    return path


def dictionary(path: Path, words: int) -> Path:
    path.write_text("".join(f"w{i} {words - i}\n" for i in range(words)))
    return path


@pytest.mark.parametrize("form", few(["args", "cfg", "legacy"], ["cfg"]))
def test_a_translator(form: str, tmp_path: Path) -> None:
    options = PAIR | flags("AHF") | {"share_decoder_input_output_embed": True}
    path = checkpoint(tmp_path / "model.pt", options, "pair", form=form)
    words, out = dictionary(tmp_path / "dict.txt", ROWS - 4), tmp_path / "new/folder"
    code, said, err = called("import", str(path), "--out", str(out), "--dict", str(words))
    assert code == 0, err
    assert "parity: passed" in said and f"model: {out}" in said and "against its equations" in said
    report = read_json(out / "parity.json")
    assert report["passed"] and report["files"] == hashes(out) and set(report["source"]) == {"model.pt"}
    assert [row["search"] for row in report["generated"] if row["judged"]] == ["greedy", "beam 5"]
    model = IsogradForSeq2SeqLM.from_pretrained(out, dtype=torch.float64)
    assert model.config.placement == "normformer-fairseq" and model.config.of("encoder").placement == "pre-ln"
    state, ids, written = random_state(options, "pair", ROWS), torch.tensor([[5, 9, 2]]), torch.tensor([[2, 7]])
    rounded = {name: value.double() for name, value in floats(state).items()}
    expected = by_hand(model, rounded, options, ids, written)
    torch.testing.assert_close(model(ids, decoder_input_ids=written).logits, expected, rtol=0, atol=1e-11)
    translator = Translator.load(out)
    assert read_json(out / "translation.json")["source"] == "de"
    assert len(list(translator.translate(["w1 w2", "w0 unheard w3"]))) == 2
    assert sorted(p.name for p in out.parent.iterdir()) == ["folder"]
    assert read_json(out / "generation_config.json")["decoder_start_token_id"] == 2


def test_merges_and_two_dictionaries(tmp_path: Path) -> None:
    """Pieces and ids are those that subword-nmt and fairseq's dictionaries give."""
    texts = {"de": ["neu er tag", "neue tage", "er lehrt"] * 9, "en": ["new day", "it teach es", "news days"] * 9}
    codes = tmp_path / "codes"
    with (tmp_path / "text").open("w") as file:
        file.writelines(f"{line}\n" for lines in texts.values() for line in lines)
    with (tmp_path / "text").open() as infile, codes.open("w") as outfile:
        learn_bpe(infile, outfile, 12)
    with codes.open() as file:
        bpe, ids = BPE(file), dict[str, dict[str, int]]()
    for side, lines in texts.items():
        pieces = sorted({piece for line in lines for piece in bpe.process_line(line).split()})
        ids[side] = {piece: number for number, piece in enumerate(pieces, start=4)}
        (tmp_path / f"dict.{side}.txt").write_text("".join(f"{piece} 9\n" for piece in pieces))
    rows = {side: len(table) + 4 for side, table in ids.items()}
    assert rows["de"] != rows["en"]
    state = floats(random_state(PAIR, "pair", rows["en"]))
    state["encoder.embed_tokens.weight"] = torch.randn(rows["de"], PAIR["encoder_embed_dim"])
    torch.save({"args": argparse.Namespace(**PAIR), "model": state}, tmp_path / "model.pt")
    words = [f"--dict={tmp_path}/dict.{side}.txt" for side in texts]
    out = tmp_path / "out"
    code, _, err = called("import", str(tmp_path / "model.pt"), "--out", str(out), *words, "--bpe-codes", str(codes))
    assert code == 0, err
    pair = Translator.load(out).tokenizer
    for side, subwords in (("de", pair.source), ("en", pair.target)):
        line = texts[side][1]
        assert subwords.encode([line])[0] == [*(ids[side][p] for p in bpe.process_line(line).split()), 2]
    assert not pair.joint


@pytest.mark.parametrize(("kind", "options"), [("causal", DECODER), ("masked", ENCODER)])
def test_a_model_of_one_tower(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model.pt", options, kind)
    words = dictionary(tmp_path / "dict.txt", ROWS - 4 - (kind == "masked"))  # RoBERTa has <mask> behind it
    code, said, err = called(
        "import",
        str(path),
        "--out",
        str(tmp_path / "out"),
        "--dict",
        str(words),
        "--json",
        "--option",
        "arch=mine",
    )
    assert code == 0, err
    assert json.loads(said)["passed"] and "(mine)" in json.loads(said)["about"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ends = {"causal": [4, 6], "masked": [0, 4, 6, 2]}[kind]
    assert tokenizer("w0 w2")["input_ids"] == ends and tokenizer.decode([4, 6]) == "w0 w2"
    assert tokenizer.pad_token_id == PAD and tokenizer("never")["input_ids"].count(3) == 1
    if kind == "masked":
        assert tokenizer.mask_token_id == ROWS - 1


def test_safetensors_with_options_beside(tmp_path: Path) -> None:
    tensors, index = read("lm/lm_pre_AHFR")
    state = {k: v.float() for k, v in state_of(tensors).items() if not k.endswith("table")}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "options.json").write_text(json.dumps(index))
    command = ["import", str(tmp_path / "model.safetensors"), "--out", str(tmp_path / "out")]
    assert "no options in it ('args' or 'cfg'); give them as --options" in refused(*command)
    code, _, err = called(*command, "--options", str(tmp_path / "options.json"))
    assert code == 0, err
    model = IsogradForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64)
    ids = tensors["in/src_tokens"]
    with torch.no_grad():
        got = model(ids, attention_mask=(ids != PAD).long()).logits
    torch.testing.assert_close(got[ids != PAD], tensors["out64/logits"][ids != PAD], rtol=0, atol=1e-9)


def bad(folder: Path) -> dict[str, tuple[list[str], str]]:
    """What -> the command behind `import`, and what is said."""
    good = checkpoint(folder / "good.pt", PAIR, "pair")
    words, out = dictionary(folder / "dict.txt", 30), str(folder / "out")
    (folder / "cut.pt").write_bytes(good.read_bytes()[:-3000])
    (folder / "renamed.pt").write_text("not a checkpoint\n" * 9)
    mark = folder / "mark"
    torch.save({"model": {}, "args": Calls(os.system, f"touch {mark}")}, folder / "evil.pt")
    torch.save({"net": {"w": torch.ones(1)}, "args": None}, folder / "keys.pt")
    checkpoint(folder / "few.pt", {k: v for k, v in PAIR.items() if k != "unused"}, "pair")
    few = torch.load(folder / "few.pt", weights_only=False)
    del few["args"].encoder_attention_heads
    torch.save(few, folder / "few.pt")
    lost = torch.load(good, weights_only=False)
    lost["model"].pop("decoder.layers.1.fc1.weight")
    torch.save(lost, folder / "lost.pt")
    new = torch.load(good, weights_only=False)
    new["model"]["decoder.adapter.weight"] = torch.ones(2)
    torch.save(new, folder / "new.pt")

    plain = folder / "plain.pt"
    torch.save(lost["model"], plain)

    def fairseq(name: str, *more: str) -> list[str]:
        return [str(folder / name), "--out", out, *more]

    return {
        "cut": (fairseq("cut.pt"), "cut.pt: no checkpoint of torch.save or safetensors, or one that is cut short"),
        "renamed": (fairseq("renamed.pt"), "renamed.pt: no checkpoint"),
        "absent": (fairseq("none.pt"), "none.pt: no such file"),
        "evil": (fairseq("evil.pt"), "refused, nothing of it was run: it wants posix.system"),
        "keys": (fairseq("keys.pt"), "no state dict under 'model'; found net, args"),
        "option": (fairseq("few.pt"), "options that are missing: encoder_attention_heads"),
        "shape": (fairseq("good.pt", "--option", "decoder_ffn_embed_dim=25"), "decoder.layers.0.fc1.weight (24, 16)"),
        "lost": (fairseq("lost.pt"), "missing keys: decoder.layers.1.fc1.weight"),
        "new": (fairseq("new.pt"), "unexpected keys: decoder.adapter.weight"),
        "network": (fairseq("good.pt", "--option", "adaptive_input=true"), "adaptive_input=True"),
        "dictionary": (fairseq("good.pt", "--dict", str(words)), "34 ids, 4 special ones among them, but the token"),
        "no dictionary": (fairseq("good.pt", "--dict", str(folder / "none.txt")), "none.txt"),
        "merges": (fairseq("good.pt", "--bpe-codes", str(words)), "merges need the dictionary"),
        "word": (fairseq("good.pt", "--option", "heads"), "expected NAME=VALUE"),
        "there": ([str(good), "--out", str(folder)], "exists already"),
        "heads": ([str(plain), "--out", out], "of torch.nn.Transformer? --heads N"),
        "layers": ([str(good), "--out", out, "--heads", "4"], "no layers of torch.nn.TransformerEncoder"),
        "folder": ([str(folder / "none/such/model"), "--out", out], "no such folder"),
    }


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    commands = bad(tmp_path / "in")
    before = sorted((tmp_path / "in").iterdir())
    for name, (command, said) in commands.items():
        assert said in refused("import", *command), name
        assert sorted((tmp_path / "in").iterdir()) == before, name  # no folder, no part of one, no mark


@pytest.mark.slow
def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Exit code 2 and one line, without a trace."""
    torch.save({"model": {}, "args": Calls(os.system, f"touch {tmp_path}/mark")}, tmp_path / "evil.pt")
    command = [
        sys.executable,
        "-m",
        "isograd",
        "import",
        str(tmp_path / "evil.pt"),
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["evil.pt"]


def test_layers_of_torch(tmp_path: Path) -> None:
    torch.save(finished(Language(False)).float().state_dict(), tmp_path / "model.pt")
    command = "--heads 4 --norm-first --activation gelu --causal --tokens embed.weight --positions place.weight"
    command += " --head out.weight --scale-embedding --eos 2"
    code, said, err = called("import", str(tmp_path / "model.pt"), "--out", str(tmp_path / "out"), *command.split())
    assert code == 0, err
    assert "imported as pre-ln" in said
    assert IsogradForCausalLM.from_pretrained(tmp_path / "out").config.head_bias


def test_a_model_of_transformers(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=41, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    code, said, err = called("import", str(tmp_path / "gpt2"), "--out", str(tmp_path / "out"))
    assert code == 0, err
    assert "GPT2LMHeadModel imported as gpt2" in said
    assert read_json(tmp_path / "out/config.json")["placement"] == "gpt2"


def llama(folder: Path) -> Path:
    """A checkpoint in several files."""
    shape = {"vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 1}
    ids = {"bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 32}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads, **ids)).save_pretrained(
        folder, max_shard_size="5KB"
    )
    return folder


@pytest.mark.slow
def test_a_sharded_checkpoint_in_bf16(tmp_path: Path) -> None:
    folder, out = llama(tmp_path / "llama"), tmp_path / "ours"
    transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(
        folder, max_shard_size="5KB"
    )
    assert len([*folder.glob("*.safetensors")]) > 2
    assert called("import", str(folder), "--out", str(out))[0] == 0
    assert IsogradForCausalLM.from_pretrained(out).dtype == torch.bfloat16
    code, _, err = called("export", str(out), "--out", str(tmp_path / "back"), "--to", "llama")
    assert code == 0, err
    before, after = (transformers.LlamaForCausalLM.from_pretrained(f).state_dict() for f in (folder, tmp_path / "back"))
    assert set(before) == set(after) and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("fault", ["cut", "absent", "shape", "json", "heads"])
def test_a_broken_checkpoint_is_one_line(fault: str, tmp_path: Path) -> None:
    folder, out = llama(tmp_path / "llama"), tmp_path / "ours"
    shard, config = sorted(folder.glob("*.safetensors"))[1], folder / "config.json"
    if fault == "cut":
        shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    elif fault == "absent":
        shard.unlink()
    elif fault == "json":
        config.write_text(config.read_text()[:-20])
    else:
        old, new = {
            "shape": ('"hidden_size": 16', '"hidden_size": 24'),
            "heads": ('_value_heads": 2', '_value_heads": 3'),
        }[fault]
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))
    assert str(folder) in refused("import", str(folder), "--out", str(out))
    assert not [path for path in tmp_path.iterdir() if path != folder]


WRITES = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
from isograd.cli import main
sys.exit(main(["import", sys.argv[1], "--out", sys.argv[2]]))
"""
DIES = """
import os, signal, sys
from isograd.cli import main

def die(event, arguments):
    if event == "os.rename" and ".ours." in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die)
main(["import", sys.argv[1], "--out", sys.argv[2]])
"""


@pytest.mark.slow
def test_a_full_disk_and_a_kill_leave_nothing(tmp_path: Path) -> None:
    folder, out = llama(tmp_path / "llama"), tmp_path / "ours"
    done = subprocess.run([sys.executable, "-c", WRITES, folder, out], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert not [path for path in tmp_path.iterdir() if path != folder]
    done = subprocess.run([sys.executable, "-c", DIES, folder, out], capture_output=True, text=True, check=False)
    assert done.returncode == -9 and not out.exists() and len([*tmp_path.glob(".ours.*")]) == 1
    code, _, err = called("import", str(folder), "--out", str(out))  # the next one goes through, and clears up
    assert code == 0 and out.is_dir() and not [*tmp_path.glob(".ours.*")], err
