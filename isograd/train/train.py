"""From a run to its folder: build, calibrate, train, judge, write. Started again, it goes on where it was."""

import json
import platform
import re
import shutil
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from transformers import set_seed

import isograd
from isograd.data import Corpus, PackedSequences, load_corpus
from isograd.data.tokenizers import SPECIAL, for_transformers
from isograd.models import IsogradConfig, IsogradForCausalLM
from isograd.models.config import TERMS
from isograd.placement import UnknownPlacement
from isograd.placement.text import final_formula, formulas, legend, numbers
from isograd.train.calibrate import calibrate
from isograd.train.callbacks import Log, Observe, Progress
from isograd.train.checkpoints import Seal, drop_broken, last_checkpoint, step_of
from isograd.train.metrics import finite, judge, keep_until, read_rows, write_json
from isograd.train.run import RecipeError, Run
from isograd.train.trainer import IsogradTrainer, check_machine

ENDED = ("finished", "diverged", "collapsed")


def train(run: Run, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Train `run` in `folder` and return its outcome; a run that has ended already is not trained again.

    A killed or interrupted run goes on from its last checkpoint, to the same numbers. An error during training is
    the outcome "failed"; started again, the run goes on.

    Args:
        progress: called with (step, loss) as the log is written.

    Raises:
        RecipeError, DataError: the recipe or the data cannot be used here; nothing has been written then.
        FileExistsError: the folder holds a run of another recipe, or on another text.
    """
    state = PartialState(cpu=not torch.cuda.is_available())
    done = ended(run, folder)
    if done is not None:
        return done
    check_machine(run)
    corpus = load_corpus_of(run)
    check_text(folder, corpus)
    config_of(run, corpus.vocab_size)
    set_seed(run.seed)
    samples = PackedSequences(
        corpus.train, run.data.length, run.training.steps * run.training.batch, seed=run.data_seed
    )
    if state.is_main_process:
        _claim(run, folder)
    state.wait_for_everyone()
    began = time.perf_counter()
    try:
        outcome = _train(run, folder, corpus, samples, progress)
    except KeyboardInterrupt:
        _write_outcome(folder, {"outcome": "interrupted"}, state)
        raise
    except Exception as error:
        outcome = {"outcome": "failed", "error": " ".join(str(error).split()) or type(error).__name__}
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    outcome["seconds"] = time.perf_counter() - began
    return _write_outcome(folder, outcome, state)


def ended(run: Run, folder: Path) -> dict[str, Any] | None:
    """The outcome of `run` in `folder` if it has ended there, else None.

    Raises:
        FileExistsError: the folder holds a run of another recipe.
    """
    if not (folder / "run.json").exists():
        return None
    there = _there(folder / "run.json")
    mine = run.as_dict()
    if {**there, "name": None} != {**mine, "name": None}:
        raise FileExistsError(f"{folder} holds a run of another recipe; choose another folder, or remove it")
    if not (folder / "outcome.json").exists():
        return None
    outcome = _there(folder / "outcome.json")
    return outcome if outcome.get("outcome") in ENDED else None


def check_text(folder: Path, corpus: Corpus) -> None:
    """A run goes on with the text that it began with.

    Raises:
        FileExistsError: the folder holds a run on another text.
    """
    path = folder / "resolved.json"
    if path.exists() and _there(path).get("data", {}).get("sha256") != corpus.sha256:
        raise FileExistsError(
            f"{folder} holds a run on another text: {corpus.source} (or how it is read) has changed since;"
            " choose another folder, or remove it"
        )


def load_corpus_of(run: Run) -> Corpus:
    """The corpus that a run names."""
    data = run.data
    return load_corpus(data.source, level=data.level, vocab_size=data.vocab_size, field=data.field, valid=data.valid)


def config_of(run: Run, vocab_size: int) -> IsogradConfig:
    """The model's configuration that a run describes.

    Raises:
        RecipeError: a value that no model has, under the recipe's name for it.
    """
    ids = {name.replace("_token", "_token_id"): i for i, name in enumerate(SPECIAL) if name != "unk_token"}
    given: dict[str, Any] = {TERMS.get(name, name): value for name, value in vars(run.model).items()} | ids
    try:
        return IsogradConfig(vocab_size=vocab_size, max_position_embeddings=run.data.length, is_decoder=True, **given)
    except (ValueError, UnknownPlacement) as error:
        ours = {TERMS.get(name, name): f"model.{name}" for name in vars(run.model)}
        raise RecipeError(re.sub(r"\w+(?==)", lambda word: ours.get(word[0], word[0]), str(error))) from error


def gradient_ratio(rows: list[dict[str, Any]]) -> float | None:
    """mean |gradient| of W_2 in the first layer over that in the last, each averaged over the steps of `rows`."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row.get("kind") == "ffn" and row.get("gradient_mean_abs") is not None:
            values.setdefault(row["layer"], []).append(row["gradient_mean_abs"])
    if not values:
        return None
    first, last = (statistics.fmean(values[layer]) for layer in (min(values), max(values)))
    return first / last if last else None


def _train(
    run: Run, folder: Path, corpus: Corpus, samples: PackedSequences, progress: Progress | None
) -> dict[str, Any]:
    checkpoint = last_checkpoint(folder / "checkpoints")
    model = _model(run, corpus, samples, checkpoint)
    if run.training.gradient_checkpointing:
        # the name in newer versions of transformers, and in older ones, of the same method
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    trainer = IsogradTrainer(run, model, samples, folder / "checkpoints")
    log = Log(trainer, folder, progress=progress)
    trainer.add_callback(log)
    trainer.add_callback(Seal(trainer, folder / "checkpoints"))
    if run.training.probe_every:
        trainer.add_callback(Observe(trainer, folder, run.training.probe_every))
    if trainer.is_world_process_zero():
        drop_broken(folder / "checkpoints")
        write_json(folder / "resolved.json", resolved(run, model, corpus))
        for name in ("metrics.jsonl", "quantities.jsonl"):
            keep_until(folder / name, step_of(checkpoint) if checkpoint else 0)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    name, final = judge([row["loss"] for row in _losses(folder)], corpus.unigram_entropy)
    outcome: dict[str, Any] = {"outcome": name, "final_loss": final, "validation_loss": None}
    if name != "diverged":
        outcome["validation_loss"] = validation_loss(run, trainer.model, corpus)
    trainer.save_model(str(folder / "model"))
    if trainer.is_world_process_zero():
        for_transformers(corpus.tokenizer).save_pretrained(folder / "model")
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    rows = read_rows(folder / "quantities.jsonl")
    return outcome | {
        "steps": trainer.state.global_step,
        "unigram_entropy": corpus.unigram_entropy,
        "gradient_ratio_start": gradient_ratio([r for r in rows if r["step"] == 1]),
        "gradient_ratio_end": gradient_ratio([r for r in rows if r["step"] > trainer.state.global_step - 50]),
        "tokens_per_second": log.tokens_per_second(run.training.batch * run.data.length),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _model(run: Run, corpus: Corpus, samples: PackedSequences, checkpoint: Path | None) -> IsogradForCausalLM:
    """A fresh model, calibrated on the first batch, or an empty one of the checkpoint's configuration."""
    if checkpoint:
        return IsogradForCausalLM(IsogradConfig.from_pretrained(checkpoint))
    model = IsogradForCausalLM(config_of(run, corpus.vocab_size))
    if model.config.entry().calibrate:
        batch = samples.__getitems__(range(min(run.training.batch, len(samples))))
        calibrate(model, batch)
    return model


def validation_loss(run: Run, model: torch.nn.Module, corpus: Corpus) -> float | None:
    """Mean loss over at most `training.valid_sequences` held-out sequences; None when the text has none."""
    batch, limit = run.training.batch, run.training.valid_sequences
    if limit < 1 or len(corpus.valid) <= run.data.length:
        return None
    held_out = PackedSequences(corpus.valid, run.data.length)
    count = min(limit, len(held_out))
    device = next(model.parameters()).device
    total = 0.0
    model.eval()
    with torch.no_grad():
        for begin in range(0, count, batch):
            rows = held_out.__getitems__(range(begin, min(begin + batch, count)))
            loss = model(**{k: v.to(device) for k, v in rows.items()}).loss
            total += float(loss) * len(rows["input_ids"])
    return total / count


def resolved(run: Run, model: IsogradForCausalLM, corpus: Corpus) -> dict[str, Any]:
    """What was built: formulas, the numbers of every site, sizes, data."""
    entry = model.config.entry()
    return {
        "placement": run.model.placement,
        "formulas": formulas(entry),
        "legend": legend(entry),
        "final": final_formula(entry),
        "about": entry.about,
        "paper": entry.paper,
        "note": entry.note,
        "sites": numbers(entry, run.model.layers),
        "start": model.config.scheme(),
        "calibration": model.config.calibration,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": {
            "source": corpus.source,
            "sha256": corpus.sha256,
            "characters": corpus.characters,
            "tokens": len(corpus.train),
            "vocab_size": corpus.vocab_size,
            "unigram_entropy": corpus.unigram_entropy,
        },
    }


def provenance() -> dict[str, Any]:
    """Versions and hardware."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "isograd": isograd.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": gpu or f"{processor()}, {torch.get_num_threads()} threads",
        "system": platform.system(),
    }


def processor() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _there(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileExistsError(f"{path} is not JSON; choose another folder, or remove it") from error
    return content if isinstance(content, dict) else {}


def _losses(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{**row, "loss": float("nan") if row["loss"] is None else row["loss"]} for row in rows]


def _claim(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("outcome.json", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    write_json(folder / "run.json", run.as_dict())


def _write_outcome(folder: Path, outcome: dict[str, Any], state: PartialState) -> dict[str, Any]:
    whole = outcome | {"provenance": provenance()}
    if state.is_main_process:
        write_json(folder / "outcome.json", whole)
    return finite(whole)
