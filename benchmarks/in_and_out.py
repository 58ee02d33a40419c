"""Every family in and out: the differences and the seconds as CSV, the largest of them on a page.

    python -m benchmarks.in_and_out docs/results          in-and-out.csv and in-and-out.md
    python -m benchmarks.in_and_out docs/results --page   the page alone, from the rows that are there

For each class of tests/interop/families.py, and those of tests/interop/test_import_hf.py: tiny models with random
weights, norms' and learned coefficients' too. In: logits of isograd's model beside the class's, over the largest, in
float64 with transformers' casts to float32 promoted, and in float32 as they are; gradients of all parameters. Out:
weights that came back bit for bit.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from isograd.convert.hf import FAMILIES as HERE
from isograd.convert.pretrained import from_transformers, to_transformers
from isograd.errors import InteropError
from tests.interop.families import FAMILIES, gradients, logits, padded

HEAD = """# Families in and out

Written by `python -m benchmarks.in_and_out docs/results`: models of 2 or 3 layers and width 16 or 32 with random
weights, norms and learned coefficients away from their init; {rows} sets of options of {classes} classes, n = 1 each
([in-and-out.csv](in-and-out.csv) has all, with seconds: in, saved, loaded and out again, on one core of a shared
machine).
Differences are of logits, over the largest: fp64 with transformers' casts to float32 promoted, fp32 as it is; 0 is the
same operations in the same order. The gradient is of every parameter, in float64 with the casts promoted, each over
its own largest, by the importer's own table of names; where it is zero in theory (of a key's bias) it is measured over
a millionth of the largest of all. Of a BART whose tables are apart `model.shared` is one that nothing reads: it goes
out as a copy of the encoder's.

| | largest | of | 0 in |
|---|---|---|---|
{largest}

Weights come back bit-equal in {equal} of {rows}{rest}. Classes: {names}.
"""
COLUMNS = ("class", "options", "fp64", "fp32", "gradient", "back", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    file = args.out / "in-and-out.csv"
    if not args.page:
        rows = [row(native.cls, native.options, native.build()) for native in FAMILIES] + list(map(other, elsewhere()))
        with file.open("w", newline="", encoding="utf-8") as out:
            csv.writer(out, lineterminator="\n").writerows([COLUMNS, *rows])
    with file.open(encoding="utf-8") as kept:
        (args.out / "in-and-out.md").write_text(page(list(csv.DictReader(kept))), encoding="utf-8")


def page(rows: list[dict[str, str]]) -> str:
    largest = []
    for name in ("fp64", "fp32", "gradient"):
        worst = max(rows, key=lambda found: float(found[name]))
        none = sum(float(found[name]) == 0 for found in rows)
        largest.append(f"| {name} | {worst[name]} | {worst['class']} | {none} of {len(rows)} |")
    changed = [
        f"{found['class']} ({found['options']}): {found['back']}" for found in rows if found["back"] != "bit-equal"
    ]
    names = ", ".join(dict.fromkeys(found["class"] for found in rows))
    return HEAD.format(
        rows=len(rows),
        classes=len({found["class"] for found in rows}),
        largest="\n".join(largest),
        equal=len(rows) - len(changed),
        rest=f"; {'; '.join(changed)}" if changed else "",
        names=names,
    )


def elsewhere() -> list[str]:
    from tests.interop.test_import_hf import MODELS

    here = {native.cls for native in FAMILIES}
    return [name for name, (cls, _) in MODELS.items() if cls not in here]


def other(name: str) -> tuple[str, ...]:
    from tests.interop import test_import_hf as those

    native = those.theirs(name)
    kind, options = those.MODELS[name]
    shown = {k: v for k, v in options.items() if isinstance(v, bool | str | float)}
    return row(kind, shown, native)


def row(cls: str, options: Any, native: Any, read: Any = logits) -> tuple[str, ...]:
    given, mask = padded()
    begin = time.perf_counter()
    ours = from_transformers(native)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        again = type(ours).from_pretrained(folder, dtype=torch.float64)
    back = returned(native, again)
    seconds = time.perf_counter() - begin
    family = next(f for f in HERE.values() if cls in (*f.classes.values(), f.second_head))
    exact = family.in_fp64(native)
    gradient = gradients(native, ours, exact)
    fp64 = difference(read(ours, given, mask, exact=True), read(exact, given, mask, exact=True))
    whole = family.comparable(native.float())
    fp32 = difference(*(read(network, given, mask, exact=False) for network in (ours.float(), whole)))
    shown = ", ".join(f"{k}={v}" for k, v in options.items())
    shown = shown if len(shown) < 110 else f"{shown[:107]}..."
    return cls, shown, f"{fp64:.1e}", f"{fp32:.1e}", f"{gradient:.1e}", back, f"{seconds:.2f}"


def returned(native: Any, ours: Any) -> str:
    name = next(f.name for f in HERE.values() if type(native).__name__ in (*f.classes.values(), f.second_head))
    try:
        back = to_transformers(ours, name).state_dict()
    except InteropError as error:
        return str(error).partition(": ")[2].partition(". ")[0][:90]
    before = native.state_dict()
    same = sum(name in back and torch.equal(back[name], value) for name, value in before.items())
    return "bit-equal" if same == len(before) == len(back) else f"{same} of {len(before)} bit-equal"


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


if __name__ == "__main__":
    main()
