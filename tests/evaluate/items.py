"""Zero-shot items in the form of local files, a causal model of random weights that reads them, and sums by hand.

rows = items("piqa")                         without labels
pairs = prompts("piqa", rows[0])             (context, continuation) of each choice, as the harness should ask
log_likelihood(model, tokenizer, *pairs[0])  nats, one text alone
"""

import gzip
import json
import random
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isograd.convert.checkpoints.tokenizers import for_transformers, train_tokenizer
from isograd.models import IsogradConfig, IsogradForCausalLM

COUNT = 24
WORDS = ["a", "an", "he", "the", "wolf", "ran", "over", "green", "hills", "below", "old", "trees", "slowly", "rained"]
LABEL = {"hellaswag": "label", "piqa": "label", "openbookqa": "label", "winogrande": "gold", "arc_easy": "gold"}
FILES = {
    "hellaswag": "hellaswag-val.jsonl.gz",
    "piqa": "piqa_valid.jsonl",
    "winogrande": "winogrande-dev-partial.jsonl.gz",
    "openbookqa": "openbookqa-test.jsonl",
    "arc_easy": "arc-easy-test.jsonl",
    "arc_challenge": "arc_challenge.jsonl",
    "lambada_openai": "lambada-openai-test.jsonl.gz",
    "blimp": "blimp.jsonl",
}

Row = dict[str, Any]
Pair = tuple[str, str]


def phrase(draw: random.Random, longest: int = 6) -> str:
    return " ".join(draw.sample(WORDS, draw.randint(1, longest)))


def items(task: str, count: int = COUNT) -> list[Row]:
    draw = random.Random(task)
    rows: list[Row] = []
    for i in range(count):
        words = draw.sample(WORDS, 3)
        orders = draw.sample(list(permutations(words)), 4) if i % 2 else [words[:2], words[1:], words, words[2:]]
        start, choices = phrase(draw), [" ".join(order) for order in orders]
        rows.append(
            {
                "hellaswag": {"ctx": f"{WORDS[3]}: {start.capitalize()}. {phrase(draw)}", "endings": choices},
                "piqa": {"goal": start, "sol1": choices[0], "sol2": choices[1]},
                "winogrande": {
                    "context_options": [f"{start} to {choices[0]}", f"{start} to {choices[1]}"],
                    "continuation": choices[2],
                },
                "openbookqa": {"question_stem": start, "choices": choices},
                "arc_easy": {"query": f"Question: {start}", "choices": choices},
                "blimp": {"sentence_good": f"{choices[0]} {start}", "sentence_bad": f"{start} {choices[0]}"},
            }[task]
        )
    return rows


def prompts(task: str, row: Row) -> list[Pair]:
    """What the published prompt of the task makes of a row."""
    if task == "hellaswag":
        sentence, begun = row["ctx"].split(". ")
        return [(f"{sentence}. {begun[0].upper()}{begun[1:]}", f" {ending}") for ending in row["endings"]]
    if task == "piqa":
        return [(f"Question: {row['goal']}\nAnswer:", f" {row[name]}") for name in ("sol1", "sol2")]
    if task == "winogrande":
        return [(context, f" {row['continuation']}") for context in row["context_options"]]
    if task == "openbookqa":
        return [(row["question_stem"], f" {choice}") for choice in row["choices"]]
    if task == "arc_easy":
        return [(f"{row['query']}\nAnswer:", f" {choice}") for choice in row["choices"]]
    return [("", f" {row[name]}") for name in ("sentence_good", "sentence_bad")]


def wrong_prompts(task: str, row: Row) -> list[Pair]:
    """Each off by one thing that is easily got wrong."""
    pairs = prompts(task, row)
    if task == "hellaswag":
        return [(row["ctx"], ending) for _, ending in pairs]
    if task == "winogrande":  # the whole sentence in place of what both have in common
        return [("a", f"{context}{rest}"[1:]) for context, rest in pairs]
    if task in ("piqa", "arc_easy"):
        return [(context.removesuffix("\nAnswer:"), rest) for context, rest in pairs]
    return [(context, rest[1:]) for context, rest in pairs]


def choices(task: str, row: Row) -> list[str]:
    """The texts whose characters `acc_norm` divides by."""
    return row["context_options"] if task == "winogrande" else [rest[1:] for _, rest in prompts(task, row)]


@torch.no_grad()
def log_likelihood(model: nn.Module, tokenizer: Any, context: str, rest: str, prefix: str = "</s>") -> float:
    """log p(rest | context), nats; an empty context is the token `prefix`."""
    whole = tokenizer(context + rest).input_ids
    begin = len(tokenizer(context).input_ids) if context else 1
    ids = torch.tensor([whole if context else [tokenizer.convert_tokens_to_ids(prefix), *whole]])
    logits: Tensor = model(ids[:, :-1]).logits[0]
    found = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]  # (time - 1,)
    return float(found[begin - 1 :].sum())


def saved(folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """A causal language model of one token per character, whose logits depend on all that it has read."""
    text = "".join(sorted(set(" ".join(WORDS) + "Question: Answer:.\n" + "".join(w.capitalize() for w in WORDS))))
    tokenizer = for_transformers(train_tokenizer([text], "char"))
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
        "scale_embedding": False,
        "is_decoder": True,
        "tie_word_embeddings": False,
        **{name: tokenizer.convert_tokens_to_ids(getattr(tokenizer, name.removesuffix("_id"))) for name in _IDS},
    }
    model = IsogradForCausalLM(IsogradConfig(**(settings | options)))
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def write(folder: Path, task: str, rows: Sequence[Row]) -> Path:
    path = folder / FILES[task]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
