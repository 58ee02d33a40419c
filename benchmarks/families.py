"""`isograd check` on every model type of transformers that reads language, sequences, images or sound.

    python benchmarks/families.py --out sweep.csv [--part development|held-out] [--only gpt2,bert] [--again]

Each is built small by `small_configs`, on its own in a process that a time-out and a memory limit end, and gives a row:
built or not, the inputs found or not, placements, findings, seconds of one core. What is in the file is not run again.
A model type is held out of development by the hash of its name, one in three.
"""

import argparse
import csv
import gc
import hashlib
import json
import multiprocessing as mp
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADS = (  # of a model type the first that it has
    "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CTC", "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "PRETRAINING",
    "TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM", "TIME_SERIES_PREDICTION", "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION",
    "OBJECT_DETECTION", "",
)  # fmt: skip
COLUMNS = (
    "model_type", "part", "class", "status", "detail", "placement", "findings", "messages", "missed", "parameters",
    "seconds", "source",
)  # fmt: skip
MOST_PARAMETERS = 60_000_000
MEMORY = 5 * 2**30
EXPECTED = Path(__file__).parent / "expected_placements.csv"  # of the source alone


def expected() -> dict[str, dict[str, str]]:
    """Model type -> the placements that its source says, with file, line and reason."""
    with EXPECTED.open() as file:
        return {row["model_type"]: row for row in csv.DictReader(file)}


def part_of(model_type: str) -> str:
    """ "held-out" for one in three."""
    return "held-out" if hashlib.sha256(model_type.encode()).digest()[0] % 3 == 0 else "development"


def classes() -> dict[str, str]:
    """Model type -> the name of its class."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for head in HEADS:
        name = f"MODEL_FOR_{head}_MAPPING_NAMES" if head and head != "PRETRAINING" else f"MODEL_{head}_MAPPING_NAMES"
        name = "MODEL_FOR_PRETRAINING_MAPPING_NAMES" if head == "PRETRAINING" else name.replace("__", "_")
        for kind, architecture in getattr(modeling_auto, name).items():
            found.setdefault(kind, architecture if isinstance(architecture, str) else architecture[0])
    return dict(sorted(found.items()))


def build(model_type: str, architecture: str) -> Any:
    """The small model of a model type.

    Raises:
        ValueError: it cannot be built below `MOST_PARAMETERS`; with the reasons of each try.
    """
    import torch
    import transformers
    from small_configs import adjusted, constructed, of_text
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = getattr(transformers, architecture)
    config_class = CONFIG_MAPPING[model_type]
    reasons = []
    for make, narrow in ((constructed, True), (adjusted, True), (constructed, False), (of_text, True)):
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(make(config_class, narrow)).parameters())
            if size > MOST_PARAMETERS:
                raise ValueError(f"{size:,} parameters")
            torch.manual_seed(0)
            return cls(make(config_class, narrow)).eval()
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:150]}")
    raise ValueError(" | ".join(dict.fromkeys(reasons)))


def row_of(model_type: str, architecture: str, prove: bool | None) -> dict[str, Any]:
    """What `isograd check` says of the small model of a model type; `prove` is that of `isograd.check`."""
    import isograd
    from isograd.errors import InputsError

    row: dict[str, Any] = {"model_type": model_type, "part": part_of(model_type), "class": architecture}
    try:
        model = build(model_type, architecture)
    except Exception as error:
        return row | {"status": "not built", "detail": str(error)}
    row["parameters"] = sum(p.numel() for p in model.parameters())
    row["source"] = sys.modules[type(model).__module__].__name__
    start = time.process_time()
    try:
        findings = isograd.check(model, prove=prove)
    except InputsError as error:
        return row | {"status": "no inputs", "detail": str(error), "seconds": _since(start)}
    except Exception as error:
        frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)][-4:]
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]} at {' '.join(frames)}"
        return row | {"status": "crash", "detail": detail, "seconds": _since(start)}
    return row | {
        "status": "ok",
        "placement": placement(findings),
        "findings": " ".join(f"{f.severity}:{f.code}" for f in findings),
        "messages": json.dumps([[f.code, f.address, f.message] for f in findings]),
        "missed": " | ".join(findings.missed),
        "seconds": _since(start),
    }


def placement(findings: Any) -> str:
    """As "attn pre-ln 3; ffn pre-ln 3": kinds in alphabetical order."""
    kinds, beside = dict[str, str](), list[str]()  # branches side by side have one formula
    for address, formula in findings.formulas.items():
        beside = beside or re.findall(r"(attn|cross|ffn|mix)[(\[]", formula) or ["?"]
        kinds[address] = beside.pop(0)
    counts = Counter((kinds[address], name) for address, name in findings.placements.items())
    return "; ".join(f"{kind} {name} {count}" for (kind, name), count in sorted(counts.items()))


def _since(start: float) -> float:
    return round(time.process_time() - start, 2)


def _work(connection: Any, other: Any, limit: float, prove: bool | None) -> None:
    """Rows for the model types that come, until there is none; ended by a signal in one that takes too long."""
    other.close()  # else this process would outlive the one that asks
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY * 2, MEMORY * 2))
    while (task := connection.recv()) is not None:
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            connection.send(row_of(*task, prove))
        except MemoryError:
            connection.send({"model_type": task[0], "class": task[1], "status": "memory"})
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.collect()


def rows(tasks: list[tuple[str, str]], limit: float, prove: bool | None) -> Iterator[dict[str, Any]]:
    """One row per task; where a process ends in one, another takes the next.

    Args:
        limit: seconds of one core, so that other work on the machine does not count.
    """
    import torch
    import transformers

    import isograd.lint.check  # noqa: F401

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    context = mp.get_context("fork")  # what is imported here is there
    process: Any = None
    for task in tasks:
        if process is None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, ours, limit, prove), daemon=True)
            process.start()
            theirs.close()
        ours.send(task)
        try:
            yield ours.recv()
        except (EOFError, ConnectionError):
            process.join()
            late = process.exitcode == -signal.SIGPROF
            row = {"model_type": task[0], "part": part_of(task[0]), "class": task[1]}
            yield row | ({"status": "time-out", "seconds": limit} if late else {"status": "died"})
            process = None
    if process is not None:
        ours.send(None)
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=("development", "held-out"))
    parser.add_argument("--only", help="model types, separated by commas")
    parser.add_argument("--status", help="only those whose row has this status, again")
    parser.add_argument("--limit", type=float, default=100, help="seconds of one core")
    parser.add_argument("--no-prove", action="store_true", help="try no suspicion: an error is then a fact")
    options = parser.parse_args()
    before: list[dict[str, Any]] = []
    if options.out.exists():
        with options.out.open() as file:
            before = list(csv.DictReader(file))
    only = options.only.split(",") if options.only else None
    if options.status:
        only = [r["model_type"] for r in before if r["status"] == options.status]
    if only is not None:
        before = [r for r in before if r["model_type"] not in only]
    known = {r["model_type"] for r in before}
    every = classes()
    tasks = [t for t in every.items() if t[0] not in known and (only is None or t[0] in only)]
    tasks = [t for t in tasks if options.part in (None, part_of(t[0]))]
    tasks.sort(key=lambda t: t[0] not in expected())
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(before)
        file.flush()
        for row in rows(tasks, options.limit, False if options.no_prove else None):
            writer.writerow({name: row.get(name, "") for name in COLUMNS})
            file.flush()
            print(row["model_type"], row["status"], row.get("seconds", ""), row.get("placement", ""), flush=True)


if __name__ == "__main__":
    main()
