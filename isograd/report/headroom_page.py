"""The headroom map as files: a self-contained page, the figure, a row per training; all from headroom.json."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.files import finite, write_text
from isograd.report import headroom_words as words
from isograd.report.headroom_figures import headroom_map
from isograd.report.headroom_findings import findings, lead
from isograd.report.style import save, svg
from isograd.report.style import settings as look
from isograd.study.boundary import Search
from isograd.study.labels import flat, shown

Row = Mapping[str, Any]
HEADROOM = "headroom.json"
FIGURE = "headroom"


def read_headroom(folder: Path) -> dict[str, Any]:
    """What a search has found so far.

    Raises:
        ValueError: there is no headroom.json, or it is not what `isograd headroom` writes.
    """
    path = folder / HEADROOM
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _try(content)
    except FileNotFoundError as error:
        raise ValueError(f"{folder}: no {HEADROOM} in it") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise ValueError(f"{path}: not what isograd headroom writes ({type(error).__name__}: {error})") from error
    return content


def _try(content: Row) -> None:
    """Fails on content that the page could not be made of."""
    Search(**content["search"])
    for part in (findings, words.rows, words.subtitle, _results, _settings, _chains):
        list(part(content))


@look()
def write_headroom(folder: Path, out: Path | None = None, title: str | None = None) -> Path:
    """Write report.html, headroom.png, headroom.svg, results.csv and results.json, from headroom.json in `folder`.

    Args:
        out: where to; None: `report/` in the folder.
        title: of the page.

    Returns:
        the path of the page.

    Raises:
        ValueError: as `read_headroom`.
    """
    content = read_headroom(folder)
    out = out or folder / "report"
    out.mkdir(parents=True, exist_ok=True)
    drawn = headroom_map(content)
    page = Environment(
        loader=PackageLoader("isograd.report", "."), autoescape=True, undefined=StrictUndefined
    ).get_template("headroom.html.j2")
    text = page.render(
        title=title or "Up to which learning rate it trains",
        lead=lead(content),
        subtitle=words.subtitle(content),
        findings=findings(content),
        header=words.HEADER,
        table=words.rows(content),
        svg=svg(drawn, FIGURE),
        interval=words.about_interval(content),
        search=content["search"],
        chains=list(_chains(content)),
        settings=list(_settings(content)),
    )
    results = list(_results(content))
    write_text(out / "report.html", text.encode("utf-8", "replace").decode())
    write_text(out / "results.json", json.dumps(finite(results), indent=2) + "\n")
    write_text(out / "results.csv", _csv(results))
    save(drawn, out / FIGURE, ("svg", "png"))
    return out / "report.html"


def _chains(content: Row) -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Of each chain who it is, what it found, and each rate in order with its verdict and what is known of it."""
    for chain in content["chains"]:
        who = f"{chain['placement']}, warm-up {chain['warmup']}, seed {chain['seed']}"
        tried = [(f"{one['lr']:.3g}", one["verdict"], words.trial_said(one)) for one in chain["tried"]]
        yield who, words.boundary_said(chain["boundary"]), sorted(tried, key=lambda one: float(one[0]))


def _settings(content: Row) -> Iterator[tuple[str, str]]:
    yield "seeds", ", ".join(map(str, content["seeds"]))
    yield "cost", words.cost(content)
    facts = content["data"]
    yield "text", f"{facts.get('source', 'unknown')}: {facts.get('tokens', 0):,} training tokens"
    if facts.get("unigram_entropy") is not None:
        yield "unigram entropy", f"{facts['unigram_entropy']:.4f} nats"
    if "sha256" in facts:
        yield "sha256 of the data", facts["sha256"]
    hidden = {"model.placement", "training.lr", "training.warmup"}
    for section in ("model", "data", "training"):
        values = [(key, value) for key, value in flat({section: content["base"][section]}) if key not in hidden]
        yield section, ", ".join(f"{key.partition('.')[2]} {shown(value)}" for key, value in values)
    for name, value in content["provenance"].items():
        yield name, str(value)


def _results(content: Row) -> Iterator[dict[str, Any]]:
    """A row per training."""
    for chain in content["chains"]:
        who = {name: chain[name] for name in ("placement", "warmup", "seed")}
        found = chain["boundary"] or {}
        ends = {"boundary": found.get("kind"), "boundary_low": found.get("low"), "boundary_high": found.get("high")}
        for one in chain["tried"]:
            names = ("lr", "verdict", "outcome", "steps", "final_loss", "broke_at", "seconds", "cell", "error")
            yield who | {name: one.get(name) for name in names} | ends


def _csv(results: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(results[0]) if results else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return text.getvalue()
