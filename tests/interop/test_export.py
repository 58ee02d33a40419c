"""An exported folder is complete: transformers alone loads model, tokenizer and settings from it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from isograd.convert import ctranslate2, gguf
from isograd.convert.checkpoints.card import write_run_card
from isograd.convert.checkpoints.folder import load_isograd
from isograd.convert.checkpoints.subwords import PairTokenizer
from isograd.convert.checkpoints.tokenizers import for_transformers, train_tokenizer
from isograd.convert.export import export_folder
from isograd.convert.parity import ParityError, hashes
from isograd.convert.pretrained import fit
from isograd.errors import InteropError
from isograd.lab.train.train import train
from tests import build
from tests.build import model
from tests.study.arms import read
from tests.study.conftest import _cache as _cache
from tests.train.recipes import small, small_translation

FEW: dict[str, Any] = {"steps": 4}
ALONE = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "isograd":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
try:
    import isograd
except ModuleNotFoundError:
    pass
else:
    sys.exit("isograd can be imported")

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

torch.set_num_threads(1)
out = {}
for folder, text in json.loads(sys.argv[1]):
    kind = json.load(open(folder + "/config.json"))["architectures"][0]
    masked = AutoModelForMaskedLM if "Masked" in kind else AutoModelForCausalLM
    auto = AutoModelForSeq2SeqLM if "Conditional" in kind else masked
    model, tokenizer = auto.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    given = tokenizer(text, return_tensors="pt")
    ids = given["input_ids"].tolist()
    if auto is AutoModelForSeq2SeqLM:
        written = model.generate(**given).tolist()
        given["decoder_input_ids"] = torch.tensor([[3, 5, 6]])
    elif auto is AutoModelForCausalLM:
        written = model.generate(**given, max_new_tokens=5, do_sample=False).tolist()
    else:
        written = None
    with torch.no_grad():
        logits = model(**given).logits.tolist()
    out[folder] = {"class": kind, "ids": ids, "logits": logits, "written": written}
print(json.dumps(out))
"""


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(small(model={"placement": "pre-ln"}, training=FEW), root / "language")
    train(small(task="masked", model={"placement": "post-ln", "embedding_norm": True}, training=FEW), root / "masked")
    train(small_translation(model={"placement": "admin"}, training=FEW), root / "pair")
    return root


@pytest.mark.slow
def test_without_isograd(runs: Path, tmp_path: Path) -> None:
    """In an interpreter that refuses to import isograd: the same ids, logits and texts as here."""
    texts = {"language": "line 7: the", "masked": "the quick", "pair": "one two"}
    folders = {name: str(tmp_path / name) for name in texts}
    for name, folder in folders.items():
        export_folder(runs / name, folder)
    asked = json.dumps([(folders[name], text) for name, text in texts.items()])
    done = subprocess.run([sys.executable, "-I", "-c", ALONE, asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {name: json.loads(done.stdout)[folder] for name, folder in folders.items()}
    classes = {name: found[name]["class"] for name in found}
    assert classes == {
        "language": "GPT2LMHeadModel",
        "masked": "BertForMaskedLM",
        "pair": "FSMTForConditionalGeneration",
    }
    for name, text in texts.items():
        ours: Any = load_isograd(runs / name / "model")
        given = AutoTokenizer.from_pretrained(runs / name / "model")(text, return_tensors="pt")
        assert found[name]["ids"] == given["input_ids"].tolist()
        settings = {} if name == "pair" else {"max_new_tokens": 5, "do_sample": False}
        if name != "masked":
            assert found[name]["written"] == ours.generate(**given, **settings).tolist()
        if name == "pair":
            given["decoder_input_ids"] = torch.tensor([[3, 5, 6]])
        with torch.no_grad():
            expected = ours(**given).logits
        torch.testing.assert_close(torch.tensor(found[name]["logits"]), expected, rtol=0, atol=1e-5)


def test_what_lies_in_the_folder(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new/out"
    done = export_folder(runs / "pair", out)
    assert (done.to, done.form, done.report.passed) == ("fsmt", "FSMTForConditionalGeneration", True)
    assert sorted(p.name for p in out.iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "parity.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "translation.json",
    ]
    report = read(out / "parity.json")
    assert report["files"] == {k: v for k, v in hashes(out).items() if k != "README.md"}
    assert report["source"] == hashes(runs / "pair/model")
    assert read(out / "generation_config.json")["num_beams"] == 2  # of the recipe's search
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_the_tokenizer_says_what_the_class_reads(runs: Path, tmp_path: Path) -> None:
    """GPT-2 adds the vectors of tokens 0 and 1 where it is given token types."""
    export_folder(runs / "language", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert set(tokenizer("the", "fox")) == {"input_ids", "attention_mask"}
    assert tokenizer.model_max_length == 1024


def test_two_vocabularies(tmp_path: Path) -> None:
    shape = {"placement": "post-ln", "share_embeddings": False}
    run = small_translation(model=shape, pairs={"joint": False}, training=FEW)
    train(run, tmp_path / "run")
    out = tmp_path / "out"
    export_folder(tmp_path / "run", out)
    pair = PairTokenizer.load(tmp_path / "run/model")
    source = AutoTokenizer.from_pretrained(out)
    target = AutoTokenizer.from_pretrained(out, subfolder="target_tokenizer")
    assert source("one two")["input_ids"] == pair.source.encode(["one two"])[0]
    assert target("eins")["input_ids"] == pair.target.encode(["eins"])[0]
    assert 'subfolder="target_tokenizer"' in (out / "README.md").read_text()
    config = read(out / "config.json")
    sizes = (config["src_vocab_size"], config["tgt_vocab_size"])
    assert sizes == (pair.source.vocab_size, pair.target.vocab_size) and sizes[0] != sizes[1]


def test_the_cards_are_what_the_hub_reads(runs: Path, tmp_path: Path) -> None:
    export_folder(runs / "pair", tmp_path / "out", license="mit")
    exported = ModelCard.load(tmp_path / "out" / "README.md").data
    assert (exported.license, exported.library_name, exported.language) == ("mit", "transformers", ["en", "de"])
    outcome = read(runs / "pair" / "outcome.json")
    assert outcome["validation_loss"] is not None  # so that there is something to compare
    written = write_run_card(runs / "pair")
    assert written == runs / "pair" / "model" / "README.md"
    trained = ModelCard.load(written)
    written.unlink()
    for card in (exported, trained.data):
        found = {one.metric_type: one.metric_value for one in card.eval_results}
        assert found["loss"] == pytest.approx(outcome["validation_loss"], abs=1e-6)
        assert {one.task_type for one in card.eval_results} == {"translation"}
        assert {"isograd", "admin"} <= {*card.tags}
    assert "## Parity report" not in trained.text and "AutoModelForSeq2SeqLM.from_pretrained" in trained.text
    assert exported.to_dict().keys() - trained.data.to_dict().keys() == {"license", "language"}


TASK = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: TESTS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{start}}"
doc_to_target: "{{right}}"
doc_to_choice: "{{ends}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


@pytest.mark.slow
def test_lm_eval_scores_an_export_as_any_model_of_the_hub(runs: Path, tmp_path: Path) -> None:
    """By the harness' own command and its model type hf, without isograd; against log-likelihoods taken by hand."""
    pytest.importorskip("lm_eval")
    out = tmp_path / "out"
    rows = [("the quick ", [" fox", "brown fox"]), ("line 7", [":", "zzz"]), ("over", [" the", "qq"])]
    export_folder(runs / "language", out)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)

    def likelihood(start: str, end: str) -> float:
        context, whole = (tokenizer(text, return_tensors="pt")["input_ids"] for text in (start, start + end))
        with torch.no_grad():
            scores = model(whole).logits[0, :-1].log_softmax(-1)
        return sum(float(scores[i - 1, whole[0, i]]) for i in range(context.shape[1], whole.shape[1]))

    best = [max((0, 1), key=lambda i, s=start, e=ends: likelihood(s, e[i])) for start, ends in rows]
    right = [best[0], best[1], 1 - best[2]]  # two of three
    tests = [{"start": s, "ends": e, "right": r} for (s, e), r in zip(rows, right, strict=True)]
    (tmp_path / "tests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tests))
    (tmp_path / "colours.yaml").write_text(TASK.replace("TESTS", str(tmp_path / "tests.jsonl")))
    words = ["--model", "hf", "--model_args", f"pretrained={out}", "--tasks", "colours", "--device", "cpu"]
    words += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "scores"), "--batch_size", "2"]
    there = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_DATASETS_OFFLINE": "1"}
    there.pop("PYTHONPATH", None)
    done = subprocess.run([sys.executable, "-m", "lm_eval", "run", *words], capture_output=True, text=True, env=there)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = (tmp_path / "scores").rglob("results*.json")
    assert read(file)["results"]["colours"]["acc,none"] == pytest.approx(2 / 3)


def test_our_own_class(runs: Path, tmp_path: Path) -> None:
    made = model(placement="normformer")
    made.save_pretrained(tmp_path / "model")
    done = export_folder(tmp_path / "model", tmp_path / "out", to="isograd")
    assert done.form == "IsogradForCausalLM" and done.report.logits[0].difference == 0
    assert "install isograd" in ((tmp_path / "out") / "README.md").read_text()
    again: Any = load_isograd(tmp_path / "out")
    assert all(torch.equal(again.state_dict()[name], value) for name, value in made.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "name", "library", "files"),
    [
        ("onnx", "pair", "onnxruntime", {"encoder_model.onnx", "decoder_model.onnx"}),
        ("ctranslate2", "language", "ctranslate2", {"model.bin", "vocabulary.json"}),
    ],
)
def test_other_runtimes(to: str, name: str, library: str, files: set[str], runs: Path, tmp_path: Path) -> None:
    pytest.importorskip(library)
    done = export_folder(runs / name, tmp_path / "out", to=to)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written >= files | {"README.md", "parity.json", "tokenizer.json"}
    assert done.report.passed and done.to == to
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_a_failed_parity_report_leaves_nothing(tmp_path: Path) -> None:
    made = model()
    torch.nn.init.constant_(made.model.layers[0].ffn.branch.out.weight, float("nan"))
    made.save_pretrained(tmp_path / "model")
    with pytest.raises(ParityError, match="not numbers"):
        export_folder(tmp_path / "model", tmp_path / "deep/out")
    assert list((tmp_path / "deep").iterdir()) == []


TARGETS = ("auto", "gpt2", "fsmt", "ctranslate2", "gguf")


@build.crossed("placement, head", build.EVERY, ["causal", "seq2seq"])
def test_what_a_refusal_advises_is_taken(placement: str, head: str) -> None:
    """Each --to that the message names holds the model; ONNX and isograd's own class are said to hold all of them."""
    network = build.model(head, placement=placement)

    def refusal(to: str) -> str:
        check = {"ctranslate2": ctranslate2.held, "gguf": gguf.held}.get(to, lambda model: fit(model, to))
        try:
            check(network)
        except InteropError as error:
            return str(error)
        return ""

    for to in TARGETS:
        if said := refusal(to):
            advised = re.findall(r"--to (\w[\w-]*)", said)
            assert advised, said
            assert not any(refusal(one) for one in advised if one not in ("onnx", "isograd")), said


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["normformer", "mhc", "t-fixup"])
def test_the_ways_that_take_every_model(placement: str, tmp_path: Path) -> None:
    """By the command line's own words, as the refusal of GGUF prints them."""
    network = build.model("causal", placement=placement)
    network.save_pretrained(tmp_path / "model")
    for_transformers(train_tokenizer(["ab" * 9], "char")).save_pretrained(tmp_path / "model")
    with pytest.raises(InteropError, match=r"--to isograd.*--to onnx") as error:
        export_folder(tmp_path / "model", tmp_path / "gguf", to="gguf")
    for to in re.findall(r"--to (\w+)", str(error.value)):
        assert export_folder(tmp_path / "model", tmp_path / to, to=to).report.passed
