"""The harness' model class in our batches: the same numbers as in its own, and texts of any length."""

import copy
import math
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from isograd.errors import DataError
from isograd.lab.evaluate import harness
from isograd.lab.evaluate.harness import Scorer, quiet_harness
from isograd.lab.evaluate.harness_tasks import load_tasks
from isograd.lab.evaluate.loading import load_causal_model
from isograd.lab.evaluate.zero_shot import zero_shot
from tests.evaluate import items
from tests.evaluate.items import COUNT, LABEL, WORDS, log_likelihood, write

SHORT = 16  # tokens that the model of the tests on length reads


def requests(*pairs: tuple[str, str]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Items of two tasks."""
    folder = tmp_path_factory.mktemp("items")
    for task in ("hellaswag", "winogrande"):
        write(folder, task, [row | {LABEL[task]: i % 2} for i, row in enumerate(items.items(task))])
    return folder


@pytest.fixture(scope="module", name="loaded")
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load_causal_model(items.saved(tmp_path_factory.mktemp("causal")))


@pytest.mark.parametrize("batch", [None, 5])
def test_the_same_as_the_harness_alone(batch: int | None, loaded: tuple[Any, Any], folder: Path) -> None:
    """Its model class as it comes, one text at a time; its `evaluate` without anything of ours around it."""
    model, tokenizer = loaded
    with quiet_harness():  # it prints
        alone = HFLM(pretrained=model, backend="causal", tokenizer=tokenizer, batch_size=1, prefix_token_id=3)
        tasks = load_tasks(None, folder)
        for task in tasks.values():
            task.set_config("num_fewshot", 0)
        told = lm_eval.evaluate(alone, {"tasks": tasks, "groups": {}}, bootstrap_iters=10)["results"]
    found = zero_shot(model, tokenizer, load_tasks(None, folder), batch=batch).scores
    assert [(s.task, s.metric) for s in found] == [
        ("hellaswag", "acc"),
        ("hellaswag", "acc_norm"),
        ("winogrande", "acc"),
    ]
    for score in found:
        assert score.value == told[score.task][f"{score.metric},none"]
        assert score.stderr == told[score.task][f"{score.metric}_stderr,none"]


def test_a_batch_is_a_number_of_tokens(loaded: tuple[Any, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding included, whatever the lengths; and no fewer texts than would fit, but in the last one."""
    model, tokenizer = loaded
    monkeypatch.setitem(harness.PLACES, "cpu", 200)
    shapes: list[tuple[int, int]] = []
    hook = model.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    zero_shot(model, tokenizer, load_tasks(["hellaswag"], folder))
    hook.remove()
    assert sum(count for count, _ in shapes) == 4 * COUNT
    assert all(count * length <= 200 for count, length in shapes)
    assert all((count + 1) * (length + 1) > 200 for count, length in shapes[:-1])


def test_texts_longer_than_the_model_reads(tmp_path: Path) -> None:
    """Before a text what fits; a text that is longer by itself in halves of a window, each after all that fits."""
    model, tokenizer = load_causal_model(items.saved(tmp_path, max_position_embeddings=SHORT))
    context, rest, long = " ".join(WORDS[:8]), " below a", " " + " ".join(WORDS[5:])
    with quiet_harness():
        scorer = Scorer(model, tokenizer)
        answers = scorer.loglikelihood(requests(("a wolf", " ran"), (context, rest), (context, long)))
    assert answers[0][0] == pytest.approx(log_likelihood(model, tokenizer, "a wolf", " ran"), abs=1e-4)
    assert answers[1][0] == pytest.approx(by_hand(model, tokenizer, context, rest, len(rest)), abs=1e-4)
    assert answers[2][0] == pytest.approx(by_hand(model, tokenizer, context, long, SHORT // 2), abs=1e-4)
    cut = by_hand(model, tokenizer, context, long[-SHORT:], SHORT)  # negative control: what is left of it on the right
    assert abs(answers[2][0] - cut) > 1
    assert (scorer.texts, scorer.truncated, scorer.pieced) == (3, 2, 1)


@torch.no_grad()
def by_hand(model: nn.Module, tokenizer: Any, context: str, rest: str, size: int) -> float:
    """One token of a piece after the other, in a window that ends with the piece."""
    ids, total = tokenizer(context + rest).input_ids, 0.0
    begin = len(ids) - len(rest)
    for piece in range(begin, len(ids), size):
        end = min(piece + size, len(ids))
        window = torch.tensor([ids[max(0, end - 1 - SHORT) : end - 1]])
        scores = model(window).logits[0].log_softmax(-1)[piece - end :]
        total += sum(float(row[i]) for row, i in zip(scores, ids[piece:end], strict=True))
    return total


@pytest.fixture(name="gpt2")
def _gpt2(tmp_path: Path) -> tuple[Any, Any]:
    """Any causal model will do: transformers' GPT-2, one token per word, a table that is rounded up."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<end>", "?", *WORDS])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="?")
    config = GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=1.0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    fast.save_pretrained(tmp_path / "gpt2")
    return load_causal_model(tmp_path / "gpt2")


def test_lambada(gpt2: tuple[Any, Any], tmp_path: Path) -> None:
    """Every third word is the one that the model finds likeliest; the perplexity is that of the words alone."""
    model, tokenizer = gpt2
    rows, sums = [], []
    for i, row in enumerate(items.items("openbookqa", 12)):
        context = f"{row['question_stem']} {row['choices'][0]}"
        by_word = {word: log_likelihood(model, tokenizer, context, f" {word}") for word in WORDS}
        best = max(by_word, key=by_word.__getitem__)
        with torch.no_grad():
            likeliest = model(**tokenizer(context, return_tensors="pt")).logits[0, -1].argmax()
        if likeliest >= len(tokenizer) or tokenizer.decode(likeliest) != best:
            best = "the"  # no word at all is likelier than all words
        word = best if i % 3 == 0 else next(word for word in WORDS if word != best)
        rows.append({"context": context, "continuation": word})
        sums.append((by_word[word], word == best and best != "the"))
    write(tmp_path, "lambada_openai", rows)
    found = {score.metric: score for score in zero_shot(model, tokenizer, load_tasks(None, tmp_path)).scores}
    assert found["acc"].value == sum(right for _, right in sums) / 12 > 0
    assert found["acc"].chance == 0
    assert found["perplexity"].value == pytest.approx(math.exp(-sum(value for value, _ in sums) / 12), rel=1e-4)
    assert found["perplexity"].chance is found["perplexity"].verdict is None
    assert found["perplexity"].stderr and found["perplexity"].stderr > 0


def test_a_model_that_diverged(loaded: tuple[Any, Any], folder: Path) -> None:
    """It would always choose the first."""
    broken = copy.deepcopy(loaded[0])
    broken.lm_head.weight.data[5] = math.nan
    found = zero_shot(broken, loaded[1], load_tasks(["winogrande"], folder))
    assert found.scores == [] and "has its run diverged?" in found.failures["winogrande"]


def test_from_the_hub_by_the_harness_itself(
    loaded: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the data set's name stands for the hub."""
    rows = [row | {"label": i % 2} for i, row in enumerate(items.items("piqa"))]
    write(tmp_path, "piqa", rows)
    hub = tmp_path / "cwd/baber/piqa"
    hub.mkdir(parents=True)
    for part in ("train", "validation"):
        write(hub, "piqa", rows if part == "validation" else rows[:2]).rename(hub / f"{part}.jsonl")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    ours = zero_shot(*loaded, load_tasks(None, tmp_path)).scores
    theirs = zero_shot(*loaded, load_tasks(["piqa"], None)).scores
    assert theirs == ours != []


def test_the_hub_cannot_be_reached() -> None:
    with pytest.raises(DataError, match=r"piqa: its data cannot be loaded from the hub .*; with files: --data FOLDER"):
        load_tasks(["piqa"], None)
