"""docs/catalogue.md and the table of docs/placements.md: `python docs/_ext/catalogue_page.py` writes both."""

import re
from itertools import groupby
from pathlib import Path

from isograd.placement.catalogue import CATALOGUE
from isograd.placement.formula import Placement
from isograd.placement.text import final_formula, first_formula, formulas, legend

LAYERS = 12
TABLE = re.compile(r"(<!-- placements -->\n).*?(<!-- /placements -->)", re.DOTALL)


def page() -> str:
    """Every entry: its formula, what the symbols mean, source, advice, families."""
    lines = ["# The catalogue", "", _INTRODUCTION, ""]
    for group, names in groupby(CATALOGUE, key=lambda name: CATALOGUE[name].group):
        lines += [f"## {group[:1].upper()}{group[1:]}", ""]
        for name in names:
            lines += _entry(name, CATALOGUE[name])
    return "\n".join([*lines, _NOT_LISTED])


def table() -> str:
    """A row per group: the names of its entries."""
    lines = ["| group | placements |", "|---|---|"]
    for group, names in groupby(CATALOGUE, key=lambda name: CATALOGUE[name].group):
        marked = [f"`{name}`" + ("\\*" if CATALOGUE[name].unconfirmed else "") for name in names]
        lines.append(f"| {group} | {', '.join(marked)} |")
    return "\n".join([*lines, "", "\\* equation unconfirmed", ""])


def with_table(text: str) -> str:
    """The text with the table between its two marks."""
    return TABLE.sub(lambda found: found[1] + table() + found[2], text)


def _entry(name: str, placement: Placement) -> list[str]:
    mark = " (equation unconfirmed)" if placement.unconfirmed else ""
    lines = [f"### {name}", "", f"{_sentence(placement.about)}{mark} {placement.paper}.", "", "```"]
    if first := first_formula(placement):
        lines.append(f"first: {first}")
    lines += [f"{where}: {line}" for where, line in formulas(placement, layers=LAYERS).items()]
    if final := final_formula(placement):
        lines.append(f"final: {final}")
    lines += [*legend(placement, LAYERS), "```", ""]
    if placement.note:
        lines += [placement.note, ""]
    if placement.families:
        lines += [f"Carried by {', '.join(placement.families)}.", ""]
    return lines


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


_INTRODUCTION = """\
Written by `python docs/_ext/catalogue_page.py` from the table: change `isograd/placement/catalogue/`, not this page.
Numbers are those of a decoder of 12 layers; `isograd show NAME layers=48` prints them for any depth."""

_NOT_LISTED = """\
## Not listed

*Equation unconfirmed* marks an entry whose equation one source gives, and no code by its authors. Left out, and why:

- **BranchNorm** (2023): its coefficient is a function of the step, which no placement knows.
- **FixUp** (2019): made for convolutions; T-Fixup is its form for this model.
- **PowerNorm** (2020): running statistics of a batch, which decoding step by step has not.
- **LipsFormer** (2023), **sigma-Reparam** (2023): a reparameterization of each matrix, not of the residual.
- **Lipschitz-constrained init** (2019), **GradInit** (2021): known by abstracts; an optimization before training.
- **BitNet's quantization**, **Gemma's logit cap of the head**, **value embeddings** (nanochat): not of the residual.
- **Muse Spark's input-scaled norm** n((1 + w) x), after its feed-forward: its weight stands before the division, where
  folding, export and every other norm here have it after; at init, w = 0, the two are one.
- **LUNAR**: no source was found.
"""

if __name__ == "__main__":
    docs = Path(__file__).parents[1]
    (docs / "catalogue.md").write_text(page(), encoding="utf-8")
    listed = docs / "placements.md"
    listed.write_text(with_table(listed.read_text(encoding="utf-8")), encoding="utf-8")
