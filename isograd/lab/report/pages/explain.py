"""One page that explains a run or a model: the verdict, the causes by their evidence, the profile with references, the
next command.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from isograd.files import write_json
from isograd.lab.report import figures
from isograd.lab.report.figures import DEPTH_CHARTS, Subject
from isograd.lab.report.page import Page, Section, Table, warnings_table, write_page
from isograd.lab.report.pages.profile import COLUMNS, number
from isograd.lab.report.runs import arms_of
from isograd.lab.report.style import Drawing, drawing, label, plain, shade

Row = Mapping[str, Any]
MOST = 12  # lines of a profile in a terminal


def write_explanation(content: Row, out: Path) -> Path:
    """explain.html and explain.json of what `explain_run` or `isograd explain MODEL` found."""
    note = content.get("note", "")
    of_run = "outcome" in content
    sections = [
        Section(name="causes", title="Causes", sentence=_CAUSES if of_run else "", table=causes(content)),
        Section(name="next", title="Next", sentence=f"{note[:1].upper()}{note[1:]}", code=content["next"]),
        Section(name="seen", title="What was seen", table=_seen(content)),
        Section(name="profile", title="Over depth", sentence=profile_text(content), table=profile(content)),
        *_figures(content),
        Section(name="warnings", title="Warnings during the run", table=warnings_table(content["warnings"])),
        *_proofs(content),
        Section(name="findings", title="Findings of isograd check", table=_findings(content), folded=True),
    ]
    page = Page(
        title=f"Why: {Path(content['of']).name or content['of']}",
        headline=content["verdict"],
        sections=sections,
        made="Made by `isograd explain`. All of it is in `explain.json`."
        + (" Every quantity of every sublayer, with figures: `profile.html`." if "profile_page" in content else ""),
    )
    written = write_page(page, out / "explain.html")
    write_json(out / "explain.json", content)
    return written


_CAUSES = (
    "The first has the most evidence: changes that a replay has tried, then what was measured in the run, then what was"
    " known before its first step."
)


def causes(content: Row) -> Table:
    """A line per cause, the likeliest first."""
    columns: dict[str, Any] = {
        "cause": lambda one: f"{one[0]}. {one[1]['cause']}",
        "evidence": lambda one: one[1]["evidence"],
        "what to change": lambda one: ("tested: " if one[1]["tested"] else "") + one[1]["remedy"],
    }
    return Table.of(enumerate(content["causes"], 1), columns, left=3)


def _seen(content: Row) -> Table | None:
    """Of preflight: a line for each part of the step."""
    rows = [one for one in content.get("groups", {}).items() if one[1]]
    return Table.of(rows, {"part": lambda one: one[0], "seen": lambda one: one[1]}, left=2) if rows else None


def _findings(content: Row) -> Table:
    keys = ("severity", "code", "address", "message", "remedy")
    return Table.of(content["findings"], {key: key for key in keys}, left=5)


def _proofs(content: Row) -> Iterator[Section]:
    """What trying a change has shown: the losses of both, the median of the seeds."""
    for finding in content["findings"]:
        proof = finding.get("proof") or {}
        if proof.get("as_is"):
            verdicts = {"confirmed": "Confirmed", "overturned": "Overturned", "untried": "Open"}
            yield Section(
                name=f"proof-{finding['code']}",
                title=f"{verdicts[proof['verdict']]}: {finding['code']} at {finding['address'] or 'the model'}",
                sentence=f"{finding['message']}. Tried: {proof['says']}. Learning rates {proof['rates'][0]:g} and"
                f" {proof['rates'][1]:g}, each the best of three; moving all parameters by a thousandth makes a"
                f" difference of {proof['control']:.2g}.",
                figure=partial(_tried, proof),
            )


def _tried(proof: Row) -> Drawing:
    drawn = drawing(1, height=3.2)
    (axes,) = drawn.panels
    axes.plot(proof["as_is"], label="as it is", color=shade(1.0))
    axes.plot(proof["changed"], label=f"with the change: {plain(proof['change'])}", color=shade(0.2))
    label(axes, "step", f"loss ({proof['task']})")
    return drawn


def profile(content: Row, most: int | None = None) -> Table | None:
    """Layers, each quantity beside its reference; at most so many lines, first and last among them."""
    rows = content["profile"]
    if not rows:
        return None
    if "first" not in rows[0]:
        return _of_model(rows, most)
    first, last = rows[0]["steps"]
    several = len({row["stack"] for row in rows}) > 1
    columns: dict[str, Any] = {
        "layer": lambda row: f"{row['stack']} {row['layer']}" if several else f"{row['layer']}",
        f"gradient / last layer's, step {first:,}": lambda row: number(row["first"]),
        f"at step {last:,}": lambda row: number(row["last"]),
        "reference": lambda row: "1",
        f"stream RMS, step {first:,}": lambda row: number(row["stream_first"]),
        f"stream RMS, step {last:,}": lambda row: number(row["stream_last"]),
    }
    return Table.of(_thinned(rows, most), columns)


_MEANINGS = {  # the head of a column -> what it is, in a line above the table
    "|grad|": "|grad|: norm of the gradient of all parameters",
    "mean|g| W₂,W_O": "mean|g|: mean |gradient| of the last projection",
    "stream RMS": "stream RMS: root mean square of the residual stream after the sublayer",
    "Var b/s": "Var b/s: variance of the branch over that of the skip",
    "β²": "β²: the branch's share of the sum's variance",
    "Σβ²": "Σβ²: these shares added up",
    "amplif.": "amplif.: mean square change under weights moved by ±1e-5, over 1e-10",
    "entropy": "entropy: of the attention, 100% with equal weights",
    "max logit": "max logit: the largest attention logit",
    "max/median": "max/median: largest over median activation",
}


def caption(header: Sequence[str]) -> str:
    """What the columns of a profile are; of one over the steps of a run its heads say it."""
    known = [_MEANINGS[name] for name in header if name in _MEANINGS]
    return f"A row per sublayer. {'; '.join(known)}; ref.: what is expected there." if "ref." in header else ""


def _of_model(rows: Sequence[Row], most: int | None) -> Table:
    """Each column of the depth profile, and beside it what is expected."""
    names = {column.key: column for column in COLUMNS}
    known = [key for key in names if any(row["values"].get(key) is not None for row in rows)]
    header = [text for key in known for text in (names[key].name, "ref.")]
    lines = [
        (
            f"{row['layer']}",
            row["kind"],
            *(
                number(row[where].get(key), names[key].form) if row[where].get(key) is not None else "–"
                for key in known
                for where in ("values", "references")
            ),
        )
        for row in _thinned(rows, most)
    ]
    return Table(header=("layer", "kind", *header), lines=lines, left=2)


def _thinned(rows: Sequence[Row], most: int | None) -> Iterator[Row]:
    if most is None or len(rows) <= most:
        yield from rows
        return
    places = {round(i * (len(rows) - 1) / (most - 1)) for i in range(most)}
    yield from (row for i, row in enumerate(rows) if i in places)


def profile_text(content: Row) -> str:
    return content.get("reference") or (
        "Mean |gradient| of W_2 over that in the last layer: 1 where all layers learn alike. In a stack that collapses"
        " it falls by orders of magnitude towards the input."
    )


def _figures(content: Row) -> Iterator[Section]:
    folder = Path(content["of"])
    if not (folder / "run.json").exists():
        return
    arms = arms_of([folder])
    facts = arms[0].first.resolved.get("data") or {} if arms else {}
    about = Subject(arms=arms, entropy=facts.get("unigram_entropy"))
    if arms and arms[0].first.metrics:
        yield figures.loss(about)
        yield from filter(None, [DEPTH_CHARTS["histories"](about)])
