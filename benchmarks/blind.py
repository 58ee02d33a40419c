"""First sight: `isograd check` on folders of models that nobody tuned it to, each looked at in a process of its own.

    python -m benchmarks.blind FOLDER [FOLDER ..] --out first-sight.csv

A folder holds files with `build()`, often `batch()` and `loss(output, batch)`, and manifest.csv: file, kind (fault or
clean), fault. A row of the result has what was found; whether a fault was named is judged by a reader, in the column
`named`, and then

    python -m benchmarks.blind --sum first-sight.csv [..]

gives the share of faults named, and of clean models with an error, or an error or warning, with Wilson's intervals.
"""

import argparse
import csv
import importlib.util
import multiprocessing
import queue
import sys
import time
from pathlib import Path
from typing import Any

FIELDS = ("set", "file", "kind", "named", "errors", "warnings", "infos", "crash", "seconds", "fault", "said")
LIMIT = 180  # seconds of one model
LOUD = ("error", "warning")


def looked(path: Path, answer: Any, old: bool) -> None:
    """One model, checked; the row's part that is found is put into the queue."""
    import torch

    torch.set_num_threads(1)
    import isograd

    sys.path.insert(0, str(path.parent))
    begun = time.process_time()
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        given: dict[str, Any] = {"batch": module.batch()} if hasattr(module, "batch") else {}
        if hasattr(module, "loss") and not old:
            given["loss"] = module.loss
        model = module.build()
        begun = time.process_time()
        found = list(isograd.check(model, **given))
        row = {
            f"{severity}s": " ".join(dict.fromkeys(f.code for f in found if f.severity == severity))
            for severity in ("error", "warning", "info")
        }
        row["said"] = " | ".join(f"{f.severity} {f.code} {f.address}: {f.message}{_proof(f)}" for f in found)
    except Exception as problem:
        row = {"crash": f"{type(problem).__name__}: {problem}"[:200]}
    answer.put(row | {"seconds": f"{time.process_time() - begun:.1f}"})


def _proof(finding: Any) -> str:
    proof = getattr(finding, "proof", None)
    return f" [{proof.says}; {proof.seconds:.1f} s]" if proof else ""


def rows(folder: Path, old: bool = False, only: str = "") -> list[dict[str, str]]:
    """A row for each line of a folder's manifest."""
    context = multiprocessing.get_context("fork")
    made = []
    for line in csv.DictReader((folder / "manifest.csv").open()):
        if only and only not in line["file"]:
            continue
        answer = context.Queue()
        child = context.Process(target=looked, args=(folder / line["file"], answer, old))
        child.start()
        try:
            found = answer.get(timeout=LIMIT)
        except queue.Empty:
            found = {"crash": f"no answer in {LIMIT} s" if child.is_alive() else f"exit code {child.exitcode}"}
        child.kill()
        row = dict.fromkeys(FIELDS, "") | {"set": folder.name, "file": line["file"], "kind": line["kind"]}
        made.append(row | {"fault": line.get("fault", "")} | found)
        print(
            *(made[-1][name] for name in ("set", "file", "kind", "errors", "warnings", "crash", "seconds")), flush=True
        )
    return made


def wilson(hits: int, of: int, z: float = 1.96) -> str:
    """
    >>> wilson(28, 56)
    '28 of 56, 50 % (37 .. 63)'
    """
    if not of:
        return "0 of 0"
    share, room = hits / of, z * z / of
    middle, half = share + room / 2, z * (share * (1 - share) / of + room / of / 4) ** 0.5
    low, high = ((middle + sign * half) / (1 + room) for sign in (-1, 1))
    return f"{hits} of {of}, {100 * share:.0f} % ({100 * low:.0f} .. {100 * high:.0f})"


def told(made: list[dict[str, str]]) -> str:
    faults = [row for row in made if row["kind"] == "fault"]
    clean = [row for row in made if row["kind"] == "clean"]
    seconds = sorted(float(row["seconds"] or 0) for row in made)
    return "\n".join((
        f"faults named: {wilson(sum(row['named'] == 'yes' for row in faults), len(faults))}",
        f"faults with an alarm: {wilson(sum(bool(r['errors'] + r['warnings']) for r in faults), len(faults))}",
        f"clean models with an error: {wilson(sum(bool(row['errors']) for row in clean), len(clean))}",
        f"clean models with an error or a warning: "
        f"{wilson(sum(bool(row['errors'] + row['warnings']) for row in clean), len(clean))}",
        f"crashes: {sum(bool(row['crash']) for row in made)}",
        f"seconds: median {seconds[len(seconds) // 2]:.1f}, most {seconds[-1]:.1f}",
    ))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--old", action="store_true", help="of a version without loss=")
    parser.add_argument("--sum", nargs="*", type=Path)
    asked = parser.parse_args()
    if asked.sum:
        made = [row for path in asked.sum for row in csv.DictReader(path.open())]
    else:
        import isograd
        import isograd.lint.check  # once, before the children

        _ = isograd
        made = [row for folder in asked.folders for row in rows(folder, asked.old, asked.only)]
        if asked.out:
            with asked.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
                writer.writeheader()
                writer.writerows(made)
    print(told(made))


if __name__ == "__main__":
    main()
