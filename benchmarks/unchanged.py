"""What a rebuilding must not change: recorded before, recorded after, and compared item by item.

    PYTHONPATH=BEFORE python benchmarks/unchanged.py record before.json      (BEFORE: a worktree of the old commit)
    PYTHONPATH=$PWD   python benchmarks/unchanged.py record after.json
    python benchmarks/unchanged.py compare before.json after.json

Seven minutes of one core (`--full` measures every claim of `theory` with its own seeds: four more). Recorded are the
losses of fifteen short runs over the four tasks, the initialization, logits, gradients and outputs of every placement,
the golden cases, theory verdicts, parity reports of imports, exports and folds, what the verbs say with --json, sizes,
and statistics. Everything is reached by doors that stay (the command line, the models); what moves has a row in
`DOORS`, `OPTIONS`, `RECIPE` or `RENAMED`. Exit code 1 with a difference.
"""

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

TOLERANCE = {"statistics": 1e-9, "sizes": 1e-2, "parity": 1e-6}  # relative (parity: absolute); all else bit-equal
DOORS = {
    "fairseq": ("isograd.export.fairseq", "isograd.papers.fairseq"),
    "statistics": ("isograd.lab.statistics",),
}
OPTIONS = (("--foils", "--negative-controls"),)  # of the command line, before and after
RECIPE: tuple[tuple[str, str], ...] = ()  # keys of a recipe, before and after: "training.smoothing", "..."
RENAMED: tuple[tuple[str, str], ...] = (  # patterns of paths in this record, and what they are called since
    (r"/gain$", "/scale"),
    (r"/start\.out$", "/init.attn_out"),
    (r"/start\.(\w+)$", r"/init.\1"),
    (r"/towers/", "/stacks/"),
    (r"/tower$", "/stack"),
    (r"/start_rms$", "/input_rms"),
    (r"/foils/", "/negative_controls/"),
    (r"^(parity/.*)/writing/", r"\1/generated/"),
    (r"^(parity/.*)/holds$", r"\1/passed"),
)
DROPPED = re.compile(r"/(lines_per_second|cpu_seconds(_per_step)?)$")  # times
VOLATILE = re.compile(  # times, places, hashes and versions
    r"(^|/)(seconds|time|date|tokens_per_second|lines_per_second|folder|page|report|versions|facts|files|source|path|model|out|said)(/|$)"
)
TEXT = "".join(f"line {i}: the quick brown fox, {i * i % 97} times\n" + "\n" * (i % 7 == 6) for i in range(300))
SMALL = {"model.layers": 2, "model.width": 16, "model.heads": 2}
TEXTUAL = {"data.source": "text.txt", "data.length": 8, "training.batch": 4, "training.valid_sequences": 4}
SHORT = {"training.steps": 6, "training.probe_every": 3, "training.checkpoint_every": 0, "training.lr": 1e-3}
PAIRS = {"pairs.train": "[pairs]", "pairs.source": "en", "pairs.target": "de", "pairs.longest": 120, "search.pairs": 4}
PAIRS |= {"pairs.vocabulary": "char", "training.tokens": 300, "search.beam": 2, "search.extra": 5}
GLUE = {"glue.source": "glue", "glue.model": "runs/masked-pre-ln", "glue.length": 24, "training.batch": 8}
TASKS: dict[str, dict[str, Any]] = {
    "language": SMALL | TEXTUAL | SHORT,
    "masked": SMALL | TEXTUAL | SHORT | {"data.length": 24, "data.documents": "blank-line"},
    "translation": SMALL | PAIRS | SHORT | {"model.encoder_layers": 1, "model.share_embeddings": "true"},
    "classification": GLUE | SHORT | {"training.probe_every": 0},
}
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("language", "post-ln", {"training.warmup": 3, "model.dropout": 0.1}),
    ("language", "pre-ln", {"training.optimizer": "adamw", "training.weight_decay": 0.1, "training.decay": "cosine"}),
    (
        "language",
        "gpt2",
        {"model.positions": "learned", "model.act": "gelu_tanh", "data.level": "bpe", "data.vocab_size": 300},
    ),
    ("language", "admin", {"training.clip": 0.5, "training.label_smoothing": 0.1, "training.accumulation": 2}),
    ("language", "deepnorm", {"training.precision": "bf16"}),
    ("language", "normformer-resscale", {"training.optimizer": "sgd"}),
    ("language", "qk-norm", {"model.norm": "rmsnorm", "model.act": "swiglu", "model.positions": "rotary"}),
    ("masked", "pre-ln", {"model.embedding_norm": "true"}),
    ("masked", "normformer", {"training.valid_every": 2, "training.select": "best"}),
    ("masked", "admin-closed", {"data.packing": "segment-pair", "training.optimizer": "radam"}),
    ("translation", "admin", {"training.valid_every": 2, "training.select": "average", "training.average": 2}),
    ("translation", "deepnorm", {"training.label_smoothing": 0.1, "training.smoothing": "fairseq"}),
    ("translation", "normformer-resscale-qkv", {"training.decay": "inverse-sqrt", "training.warmup": 2}),
    ("classification", "pre-ln", {}),
    ("classification", "pre-ln", {"glue.scratch": "true", "glue.task": "sts-b", "glue.warmup": 0}),
]
TINY = {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TINY |= {"max_position_embeddings": 32, "scale_embedding": False, "bos_token_id": 0, "pad_token_id": 1}
TINY |= {"eos_token_id": 2, "decoder_start_token_id": 2}
HEADS = {"CausalLM": {}, "MaskedLM": {}, "Seq2SeqLM": {"encoder_layers": 3}, "SequenceClassification": {}}
LLAMA = {"norm": "rmsnorm", "hidden_act": "swiglu", "bias": False, "position_embedding_type": "rotary"}
SINES = {"position_embedding_type": "sinusoidal"}
NORMED = {"embedding_norm": True}
EXPORTS: list[tuple[str, str, dict[str, Any]]] = [  # format, head, options
    ("gpt2", "CausalLM", {"placement": "gpt2", "hidden_act": "gelu_tanh"}),
    ("opt", "CausalLM", {"placement": "admin", "position_offset": 2}),
    ("llama", "CausalLM", LLAMA),
    ("qwen3", "CausalLM", LLAMA | {"placement": "qk-norm", "norm_eps": 1e-6}),
    ("gpt-neox", "CausalLM", {"position_embedding_type": "rotary", "hidden_size": 64}),
    ("isograd", "CausalLM", {"placement": "normformer-resscale-qkv"}),
    ("onnx", "CausalLM", {"placement": "normformer"}),
    ("bert", "MaskedLM", NORMED | {"placement": "post-ln"}),
    ("roberta", "MaskedLM", NORMED | {"placement": "deepnorm", "position_offset": 2}),
    ("roberta-prelayernorm", "MaskedLM", NORMED | SINES),
    ("megatron-bert", "SequenceClassification", {}),
    ("bart", "Seq2SeqLM", NORMED | {"placement": "admin"}),
    ("mbart", "Seq2SeqLM", NORMED),
    ("fsmt", "Seq2SeqLM", SINES | {"placement": "post-ln", "encoder_vocab_size": 50}),
    ("marian", "Seq2SeqLM", {"placement": "post-ln", "position_embedding_type": "sinusoidal_interleaved"}),
    ("m2m100", "Seq2SeqLM", SINES | {"position_offset": 2, "scale_embedding": True}),
    ("blenderbot", "Seq2SeqLM", {"share_encoder_embeddings": True}),
    ("folded", "CausalLM", {"placement": "deepnorm"}),
    ("folded", "Seq2SeqLM", {"placement": "admin"}),
    ("folded", "MaskedLM", {"placement": "normformer"}),
]
IMPORTS = ("GPT2LMHeadModel", "OPTForCausalLM", "BertForMaskedLM", "RobertaForMaskedLM")
IMPORTS += ("BartForConditionalGeneration", "MBartForConditionalGeneration", "MarianMTModel")
QUICK = ("lemma-1", "lemma-3", "theorem-1", "theorem-1-attention", "hidden-state-growth", "mismatch-12", "admin-skip")
LOSSES = ([2.1, 2.3, 2.2, 2.5, 2.4, 2.6, 2.0], [2.0, 2.1, 2.25, 2.2, 2.3, 2.35, math.inf])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "median": lambda s: s.median(LOSSES[0]),
    "median_interval": lambda s: [s.median_interval(LOSSES[0][:n]) for n in (2, 3, 5, 7)],
    "mean_interval": lambda s: s.mean_interval(LOSSES[0]),
    "wilson": lambda s: [s.wilson(k, 7) for k in range(8)],
    "sign_flip": lambda s: s.sign_flip([-0.1, -0.2, 0.1, 0.0, -math.inf, 0.3, 0.3]),
    "holm": lambda s: s.holm([0.01, 0.04, 0.03, 0.5]),
    "compare": lambda s: s.compare(*(dict(enumerate(losses)) for losses in LOSSES)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--full", action="store_true", help="every claim of theory, with its own seeds")
    parser.add_argument("--golden", type=Path, default=Path(__file__).parents[1] / "tests/data/golden")
    parser.add_argument("--only", nargs="+", choices=tuple(RECORDED), default=tuple(RECORDED))
    options = parser.parse_args()
    if options.what == "compare":
        return compare(*(json.loads(path.read_text()) for path in options.files))
    file, golden = options.files[0].resolve(), options.golden.resolve()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        write_inputs()
        found = {name: dict(flat(RECORDED[name](options.full, golden))) for name in RECORDED if name in options.only}
    file.write_text(json.dumps(found, indent=0) + "\n")
    print(f"{file}: {', '.join(f'{len(items)} {name}' for name, items in found.items())}")
    return 0


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """A table: items, and those that differ, are gone, are new; each difference in a line below it."""
    lines, differing = [], 0
    print(f"{'':12}{'items':>8}{'differ':>8}{'gone':>8}{'new':>8}")
    for part, items in before.items():
        if part not in after:
            continue
        old = {renamed(f"{part}/{n}"): value for n, value in items.items() if not DROPPED.search(f"{part}/{n}")}
        old = {name.partition("/")[2]: value for name, value in old.items()}
        new = {n: value for n, value in after[part].items() if not DROPPED.search(f"{part}/{n}")}
        differ = [n for n in old.keys() & new.keys() if not same(part, old[n], new[n])]
        gone, more = old.keys() - new.keys(), new.keys() - old.keys()
        print(f"{part:12}{len(old):8}{len(differ):8}{len(gone):8}{len(more):8}")
        lines += [f"{part}/{n}: {old[n]} -> {new[n]}" for n in sorted(differ)]
        lines += [f"{part}/{n}: gone (was {old[n]})" for n in sorted(gone)]
        lines += [f"{part}/{n}: new ({new[n]})" for n in sorted(more)]
        differing += len(differ) + len(gone)
    print("\n".join(lines))
    return 1 if differing else 0


def renamed(path: str) -> str:
    for pattern, name in RENAMED:
        path = re.sub(pattern, name, path)
    return path


def same(part: str, old: Any, new: Any) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new))
    if not numbers or part not in TOLERANCE:
        return bool(old == new)
    return math.isclose(old, new, rel_tol=TOLERANCE[part], abs_tol=TOLERANCE[part] if part == "parity" else 0)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and truth value of nested data with its path; of a text that it is there."""
    if VOLATILE.search(path):
        return
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        for name, one in value.items():
            yield from flat(one, f"{path}/{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from flat(one, f"{path}/{index}")
    else:
        yield path, "text" if isinstance(value, str) and not value.startswith("#") else value


def said(*words: str) -> tuple[int, Any]:
    """Exit code and the JSON (or the text's presence) that `isograd WORDS` prints, in this process."""
    since = [dict(RECIPE + OPTIONS).get(key := word.partition("=")[0], key) + word[len(key) :] for word in words]
    before = [word for word in words if word != "--out" or words[0] not in ("export", "import")]
    for now in dict.fromkeys((words, tuple(since), tuple(before))):
        out, err = io.StringIO(), io.StringIO()
        code, argv = 0, sys.argv
        sys.argv = ["isograd", *now]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                runpy.run_module("isograd", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:
            print(f"isograd {' '.join(words)}: {type(error).__name__}: {error}", file=sys.stderr)
            return 70, type(error).__name__
        finally:
            sys.argv = argv
        if code != 2:
            break
    if code == 2:
        print(f"isograd {' '.join(words)}: {err.getvalue().strip()[-400:]}", file=sys.stderr)
    try:
        return code, json.loads(out.getvalue())
    except ValueError:
        return code, bool(out.getvalue())


def digest(*tensors: Any) -> str:
    """Of values alone, whatever their names and order."""
    parts = sorted(hashlib.sha256(t.detach().contiguous().float().double().numpy()).hexdigest() for t in tensors)
    return "#" + hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def write_inputs() -> None:
    Path("text.txt").write_text(TEXT)
    numbers = [
        "one two three four five six seven eight nine ten",
        "eins zwei drei vier fünf sechs sieben acht neun zehn",
    ]
    for language, words in zip(("en", "de"), (side.split() for side in numbers), strict=True):
        lines = (" ".join(words[int(d)] for d in str(i * 7)) for i in range(160))
        Path(f"pairs.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tables = (("MRPC", "Quality\t#1 String\t#2 String", lambda i, a, b: f"{i % 3 % 2}\t{a}\t{b}"),)
    tables += (("STS-B", "sentence1\tsentence2\tscore", lambda i, a, b: f"{a}\t{b}\t{i % 2 * 3 + i % 5 / 2.5:.2f}"),)
    for name, header, line in tables:
        Path("glue", name).mkdir(parents=True)
        for part, begin, end in (("train", 0, 42), ("dev", 42, 52)):
            rows = [line(i, f"line {i} fox", f"fox {i * i % 97} line") for i in range(begin, end)]
            Path("glue", name, f"{part}.tsv").write_text("\n".join([header, *rows]) + "\n")


def settings(task: str, placement: str, more: dict[str, Any]) -> list[str]:
    keys = TASKS[task] | {"model.placement": placement, "task": task} | more
    return [f"{key}={value}" for key, value in keys.items()]


def record_losses(full: bool, golden: Path) -> Any:
    """Per run: every loss and gradient norm, every quantity of the probe, the outcome, the weights."""
    from safetensors.torch import load_file

    found = {}
    for task, placement, more in RUNS:
        name = f"{task}-{placement}{'-scratch' * ('glue.scratch' in more)}"
        code, outcome = said("train", *settings(task, placement, more), "--out", f"runs/{name}", "--json")
        rows = {
            part: [json.loads(line) for line in path.read_text().splitlines()]
            for part in ("metrics", "quantities")
            if (path := Path(f"runs/{name}/{part}.jsonl")).exists()
        }
        weights = Path(f"runs/{name}/model/model.safetensors")
        found[name] = {"exit": code, "outcome": outcome, **rows}
        found[name]["weights"] = digest(*load_file(weights).values()) if weights.exists() else None
    return found


def made(head: str, options: dict[str, Any]) -> Any:
    """A tiny model, its norms and coefficients away from where they begin."""
    import torch

    import isograd

    torch.manual_seed(0)
    config = isograd.IsogradConfig(**(TINY | HEADS[head] | options))
    model = getattr(isograd, f"IsogradFor{head}")(config).eval()
    draw = torch.Generator().manual_seed(1)
    model.begun = digest(*model.state_dict().values())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or parameter.shape[-1] == 1:
                parameter.add_(torch.rand(parameter.shape, generator=draw) * 0.4)
    return model


def record_models(full: bool, golden: Path) -> Any:
    """Every placement under every head: initialization, logits, gradients, what it generates."""
    import torch

    found: dict[str, Any] = {}
    ids = torch.arange(3, 27).view(3, 8)
    for placement in said("show", "--json")[1]:
        for head in HEADS:
            model = made(head, {"placement": placement})
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            given["attention_mask"][1, 5:] = 0
            given |= {"decoder_input_ids": ids[:, 1:]} if head == "Seq2SeqLM" else {}
            logits = model(**given).logits
            logits.square().mean().backward()
            found[f"{placement} {head}"] = one = {"init": model.begun, "logits": digest(logits)}
            one["gradients"] = digest(*(p.grad for p in model.parameters() if p.grad is not None))
            if "LM" in head and head != "MaskedLM":
                for beams in (1, 3):
                    written = model.generate(ids[:1], max_new_tokens=6, num_beams=beams, do_sample=False)
                    one[f"written with {beams} beams"] = digest(written)
    return found


def record_golden(full: bool, golden: Path) -> Any:
    from safetensors.torch import load_file

    module = door("fairseq")
    found = {}
    for index in sorted(golden.glob("*/index.json")):
        for name, case in json.loads(index.read_text()).items():
            file = index.parent / f"{name}.safetensors"
            if not file.exists():
                continue
            tensors = load_file(file)
            state = {
                k.partition("state/")[2]: v.double()
                for k, v in tensors.items()
                if k.startswith(("state/", "init/state/"))
            }
            state |= {k.removeprefix("aux/"): v for k, v in tensors.items() if k.endswith("sinusoidal_table")}
            model = module.from_fairseq(state, case)
            ids = tensors["in/src_tokens"]
            given = {"attention_mask": (ids != 1).long()}
            if "in/prev_output_tokens" in tensors:
                given["decoder_input_ids"] = tensors["in/prev_output_tokens"]
            logits = model(ids, **given).logits
            logits.square().sum().backward()
            gradients = digest(*(p.grad for p in model.parameters() if p.grad is not None))
            found[name] = {"logits": digest(logits), "gradients": gradients, "sum": logits.sum().item()}
    return found


def record_theory(full: bool, golden: Path) -> Any:
    words = [] if full else [*QUICK, "--seeds", "2"]
    return said("reproduce", "theory", *words, "--negative-controls", "--json", "--out", "theory")


def record_parity(full: bool, golden: Path) -> Any:
    import torch
    import transformers

    found = {}
    for number, (to, head, options) in enumerate(EXPORTS):
        folder = f"made{number}"
        made(head, {"initializer_range": 0.25} | options).save_pretrained(folder)
        words = ["export", folder, "--out", f"out{number}", "--to", to]
        words += ["--untie"] if to == "folded" else []
        found[f"{words[0]} {to} {head} {options.get('placement', '')}"] = said(*words, "--json")
    for run, to in (
        ("translation-admin", "ctranslate2"),
        ("translation-deepnorm", "ctranslate2-int8"),
        ("language-pre-ln", "auto"),
        ("language-gpt2", "gguf"),
    ):
        found[f"run {to}"] = said("export", f"runs/{run}", "--out", f"out-{run}", "--to", to, "--json")
    tiny = {
        "d_model": 16,
        "hidden_size": 16,
        "n_embd": 16,
        "num_hidden_layers": 2,
        "n_layer": 2,
        "num_attention_heads": 2,
    }
    tiny |= {"n_head": 2, "intermediate_size": 24, "ffn_dim": 24, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    tiny |= {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tiny |= {"vocab_size": 41, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 64}
    tiny |= {"word_embed_proj_dim": 16, "forced_eos_token_id": 2, "decoder_start_token_id": 2}
    for name in IMPORTS:
        kind = getattr(transformers, name)
        torch.manual_seed(0)
        kind(kind.config_class(**tiny)).save_pretrained(name)
        found[f"import {name}"] = said("import", name, "--out", f"{name}-ours", "--json")
        found[f"back {name}"] = said("export", f"{name}-ours", "--out", f"{name}-back", "--json")
    return found


def record_fields(full: bool, golden: Path) -> Any:
    """What the verbs print with --json."""
    found = {"list": said("show", "--json")}
    for placement in found["list"][1]:
        found[f"show {placement}"] = said("show", placement, "layers=6", "--json")
        found[f"show {placement}, both"] = said("show", placement, "encoder=18", "decoder=6", "--json")
    for run in ("language-post-ln", "masked-pre-ln", "translation-admin"):
        found[f"check {run}"] = said("check", f"runs/{run}/model", "--json", "--lr", "1e-3")
        found[f"explain {run}"] = said("explain", f"runs/{run}", "--json", "--out", f"explain-{run}")
    found["check transformers' own"] = said("check", "GPT2LMHeadModel", "--json")
    found["theory --list"] = said("reproduce", "theory", "--list", "--json")
    shape = [
        "model.layers=2",
        "model.width=16",
        "model.heads=2",
        "data.length=8",
        "training.batch=4",
        "training.steps=6",
    ]
    shape += ["--data", "text.txt", "--jobs", "1"]
    found["compare"] = said("compare", *shape, "--placements", "post-ln", "pre-ln", "--seeds", "0", "1", "--json")
    found["report"] = said("report", "runs/language-post-ln", "runs/language-pre-ln", "--out", "report", "--json")
    pairs = ["--pairs", "pairs", "--json"]
    found["evaluate"] = said("evaluate", "runs/translation-deepnorm", *pairs)
    return found


def record_sizes(full: bool, golden: Path) -> Any:
    """`train --dry-run --json`: parameters and memory."""
    shapes = {"language": {"model.layers": 24, "model.width": 1024, "model.heads": 16, "training.batch": 32}}
    shapes["masked"] = {"model.layers": 12, "model.width": 256, "training.precision": "bf16"}
    shapes["translation"] = {"model.layers": 6, "model.encoder_layers": 18, "model.width": 512, "training.tokens": 4096}
    found = {}
    for task, shape in shapes.items():
        for placement in ("pre-ln", "admin", "normformer-resscale-qkv"):
            keys = settings(task, placement, shape)
            found[f"{task} {placement}"] = said("train", *keys, "--dry-run", "--json")
            found[f"{task} {placement}, 8 devices"] = said("train", *keys, "--dry-run", "--json", "--world-size", "8")
    return found


def record_statistics(full: bool, golden: Path) -> Any:
    return {name: call(door("statistics")) for name, call in FUNCTIONS.items()}


def door(name: str) -> Any:
    """The first of the modules that exists."""
    for path in DOORS[name]:
        with contextlib.suppress(ModuleNotFoundError):
            return import_module(path)
    raise ModuleNotFoundError(f"none of {', '.join(DOORS[name])}")


RECORDED: dict[str, Callable[[bool, Path], Any]] = {
    "losses": record_losses,
    "models": record_models,
    "golden": record_golden,
    "theory": record_theory,
    "parity": record_parity,
    "fields": record_fields,
    "sizes": record_sizes,
    "statistics": record_statistics,
}

if __name__ == "__main__":
    sys.exit(main())
