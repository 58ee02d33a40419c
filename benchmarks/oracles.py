"""One layer of each transformers family that carries a design against ours: docs/results/oracles.md.

python -m benchmarks.oracles
"""

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.transformer.oracles import FAMILIES, Family, difference, promoted

PAGE = Path(__file__).parents[1] / "docs/results/oracles.md"
HEAD = """\
# One layer against transformers' own

Layers of transformers {transformers}, put together from the modules that carry a design, run by their own `forward` and
compared with ours, with copied random weights. Largest difference of a layer's output over its largest value, float64;
*promoted*: transformers' casts to float32 go to float64; *as released*: they stay. Where a row says *wiring*,
both branches are the same fixed map tanh(x W) on both sides. One draw each; torch {torch}, CPU.

`python -m benchmarks.oracles` writes this page. `tests/transformer/test_oracles.py` requires 1e-9 and 1e-5, and that
another wiring with the same weights differs by more than 1e-3.

| family | class | what | promoted | as released |
|---|---|---|---|---|
"""


def row(name: str, family: Family) -> str:
    try:
        with promoted():
            exact = f"{difference(family):.1e}"
        released = f"{difference(family):.1e}"
    except pytest.skip.Exception as skipped:
        exact = released = f"skipped: {skipped}"
    return f"| {name} | `{family.layer}` | {family.about} | {exact} | {released} |\n"


def main() -> None:
    """Measure all, and write the page."""
    rows = [row(name, family) for name, family in FAMILIES.items()]
    PAGE.write_text(HEAD.format(**{p: version(p) for p in ("transformers", "torch")}) + "".join(rows), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
