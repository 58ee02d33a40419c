"""The verdicts of the theory as files: a self-contained page, the numbers as JSON, a figure per claim."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.files import finite, write_text
from isograd.report.canvas import save, svg
from isograd.report.theory_figures import claim_figure

Row = Mapping[str, Any]


def write_theory(
    out: Path, claims: Sequence[Row], verdicts: Sequence[Row], foils: Sequence[Row], facts: Mapping[str, str]
) -> Path:
    """Write theory.html, theory.json and NAME.svg, NAME.png per claim into `out`.

    Args:
        claims: what is claimed, as `isograd.theory` prints it.
        verdicts: a row per case, with its curve and the lines of the theory.
        foils: rows of the same kind, where foils were measured.
        facts: name -> value, about the machine and the versions.

    Returns:
        the path of the page.
    """
    out.mkdir(parents=True, exist_ok=True)
    parts = []
    for claim in claims:
        name = claim["name"]
        own = [row for row in verdicts if row["claim"] == name]
        drawn = claim_figure(claim, own, [row for row in foils if row["claim"] == name])
        parts.append({**claim, "svg": svg(drawn, name)})
        save(drawn, out / name)
    page = Environment(
        loader=PackageLoader("isograd.report", "."), autoescape=True, undefined=StrictUndefined
    ).get_template("theory.html.j2")
    text = page.render(
        claims=parts,
        header=header(bool(foils)),
        table=[(row["holds"], row["claim"], cells(row, foils)) for row in verdicts],
        summary=summary(verdicts, foils),
        facts=facts,
    )
    content = {"verdicts": verdicts, "foils": foils, "claims": claims, "facts": facts}
    write_text(out / "theory.json", json.dumps(finite(content), indent=1, ensure_ascii=False) + "\n")
    write_text(out / "theory.html", text)
    return out / "theory.html"


def header(with_foils: bool) -> list[str]:
    return ["claim", "placement", "predicted", "measured", "tolerance", *(["foil"] if with_foils else []), "verdict"]


def cells(row: Row, foils: Sequence[Row]) -> list[str]:
    """A line of the table; with foils also what the foil of this case measures."""
    own = [foil for foil in foils if (foil["claim"], foil["placement"]) == (row["claim"], row["placement"])]
    said = [f"{foil['subject']}: {number(foil['measured'])}{' (passes)' if foil['holds'] else ''}" for foil in own]
    return [
        row["claim"],
        row["placement"],
        " to ".join(map(number, row["predicted"])) if _is_pair(row["predicted"]) else number(row["predicted"]),
        number(row["measured"]) + (f" ({interval(*row['interval'])})" if row.get("interval") else ""),
        interval(*row["tolerance"]),
        *(["".join(said)] if foils else []),
        "holds" if row["holds"] else "fails",
    ]


def interval(low: float | None, high: float | None) -> str:
    """What must hold of the number."""
    if low is None or high is None:
        return f"≤ {number(high)}" if low is None else f"≥ {number(low)}"
    return f"± {number(high)}" if low == -high else f"{number(low)} to {number(high)}"


def number(value: float | None) -> str:
    """Three digits after the point, or a power of ten where these would be zeros."""
    if value is None:
        return ""
    return f"{value:.2g}" if 0 < abs(value) < 5e-4 else f"{value:.3f}".rstrip("0").rstrip(".")


def summary(verdicts: Sequence[Row], foils: Sequence[Row]) -> str:
    """How many hold, in a sentence or two."""
    holding = sum(row["holds"] for row in verdicts)
    said = f"{holding} of {len(verdicts)} verdicts hold."
    if foils:
        refused = sum(not row["holds"] for row in foils)
        said += f" {refused} of {len(foils)} foils are refused, as they must be."
    return said


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple)
