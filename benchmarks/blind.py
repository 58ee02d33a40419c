"""First sight: `isograd check` on models that nobody tuned it to, and `isograd preflight` on such training setups.

    python -m benchmarks.blind FOLDER [FOLDER ..] --out first-sight.csv

A folder holds files with `build()`, often `batch()` and `loss(output, batch)`, or with `setup()`, and manifest.csv:
file, kind (fault or clean), fault. Each is looked at in a process of its own. A row of the result has what was found;
whether a fault was named is judged by a reader, in the column `named`, and then

    python -m benchmarks.blind --sum first-sight.csv [..]

gives the share of faults named, and of clean models with an error, or an error or warning, with Wilson's intervals. The
sets are in blind_sets.tar.xz and blind_setups.tar.xz; each was counted once, before its authors' answers were read.

    python -m benchmarks.blind --curve docs/results/first-sight/series.csv
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

from isograd.lab.statistics import wilson

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
        if hasattr(module, "setup"):
            setup = module.setup()
            begun = time.process_time()
            found = list(isograd.preflight(setup))
        else:
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
        row["said"] = " | ".join(
            f"{f.severity} {f.code} {f.address}: {f.message}; {f.remedy}{_line(f)}{_proof(f)}" for f in found
        )
    except Exception as problem:
        row = {"crash": f"{type(problem).__name__}: {problem}"[:200]}
    answer.put(row | {"seconds": f"{time.process_time() - begun:.1f}"})


def _line(finding: Any) -> str:
    """What a reader is shown of the code."""
    source = getattr(finding, "source", None)
    return f" [line {source.own().line}: {source.own().text.strip()}]" if source else ""


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


def share(hits: int, of: int) -> str:
    """
    >>> share(28, 56)
    '28 of 56, 50 % (37 .. 63)'
    """
    middle, low, high = interval(hits, of) if of else (0.0, 0.0, 0.0)
    return f"{hits} of {of}, {middle:.0f} % ({low:.0f} .. {high:.0f})"


def told(made: list[dict[str, str]]) -> str:
    faults = [row for row in made if row["kind"] == "fault"]
    clean = [row for row in made if row["kind"] == "clean"]
    seconds = sorted(float(row["seconds"] or 0) for row in made)
    return "\n".join((
        f"faults named: {share(sum(row['named'] == 'yes' for row in faults), len(faults))}",
        f"faults with an alarm: {share(sum(bool(r['errors'] + r['warnings']) for r in faults), len(faults))}",
        f"clean models with an error: {share(sum(bool(row['errors']) for row in clean), len(clean))}",
        f"clean models with an error or a warning: "
        f"{share(sum(bool(row['errors'] + row['warnings']) for row in clean), len(clean))}",
        f"crashes: {sum(bool(row['crash']) for row in made)}",
        f"seconds: median {seconds[len(seconds) // 2]:.1f}, most {seconds[-1]:.1f}",
    ))  # fmt: skip


def interval(hits: int, of: int) -> tuple[float, float, float]:
    """Share, and Wilson's bounds at 95 %, in percent."""
    bounds = wilson(hits, of)
    return 100 * hits / of, 100 * bounds.low, 100 * bounds.high


def curve(path: Path) -> None:
    """series.svg: first sight set by set, with intervals."""
    from isograd.lab.report import style
    from isograd.lab.report.style import drawing, label, shade

    rows = list(csv.DictReader(path.open()))
    with style.settings():
        drawn = drawing(1, height=4.4)
        (axes,) = drawn.panels
        for name, hits, of, colour in (
            ("faults named", "named", "faults", shade(0.9)),
            ("clean models with an error or a warning", "alarms", "clean", shade(0.1)),
        ):
            points = [interval(int(row[hits]), int(row[of])) for row in rows]
            middles = [point[0] for point in points]
            bars = [[m - low for m, low, _ in points], [high - m for m, _, high in points]]
            axes.errorbar(range(len(rows)), middles, yerr=bars, label=name, color=colour, marker="o", capsize=3)
        axes.set_xticks(
            range(len(rows)),
            [row["set"].replace(": ", "\n").replace(" (", "\n(").replace(" round", "") for row in rows],
            fontsize=7,
        )
        axes.set_ylim(0, 100)
        label(axes, "", "percent of the models")
        style.save(drawn, path.with_name("series"), ("svg",))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--old", action="store_true", help="of a version without loss=")
    parser.add_argument("--sum", nargs="*", type=Path)
    parser.add_argument("--curve", type=Path, help="draw the series of all sets beside its table")
    asked = parser.parse_args()
    if asked.curve:
        curve(asked.curve)
        return
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
