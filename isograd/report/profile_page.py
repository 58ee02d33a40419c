"""A depth profile as files: a self-contained page, the numbers as JSON, every figure as .svg and .png."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.files import finite, write_text
from isograd.report import profile_figures, profile_tables
from isograd.report.canvas import Drawing, save, svg

Row = Mapping[str, Any]


def write_profile(out: Path, profile: Row, facts: Mapping[str, str]) -> Path:
    """Write diagnose.html, diagnose.json and the figures into `out`.

    Args:
        profile: as `Profile.as_dict` gives it; may have been read from JSON.
        facts: name -> value, of the command, the machine and the versions.

    Returns:
        the path of the page.
    """
    out.mkdir(parents=True, exist_ok=True)
    known = plain(profile)
    parts = []
    for name, title, text, drawn in _drawings(known):
        if drawn is not None:
            parts.append({"name": name, "title": title, "text": text, "svg": svg(drawn, name)})
            save(drawn, out / name)
    page = Environment(
        loader=PackageLoader("isograd.report", "."), autoescape=True, undefined=StrictUndefined
    ).get_template("profile.html.j2")
    text = page.render(
        title=facts.get("model", known["model"]),
        summary=profile_tables.summary(known),
        sentences=list(profile_tables.sentences(known)),
        figures=parts,
        header=[*profile_tables.header(), "largest entry"],
        table=list(profile_tables.whole(known)),
        lines=list(_sources(known)),
        inputs=", ".join(f"{name or 'input'} {tuple(shape)}" for name, shape in known["inputs"].items()),
        facts=facts,
    )
    write_text(
        out / "diagnose.json", json.dumps({**finite(known), "facts": facts}, indent=1, ensure_ascii=False) + "\n"
    )
    write_text(out / "diagnose.html", text)
    return out / "diagnose.html"


def plain(profile: Row) -> dict[str, Any]:
    """As JSON gives it back: lists, and nothing for what is no number."""
    found: dict[str, Any] = json.loads(json.dumps(finite(dict(profile))))
    return found


def _sources(profile: Row) -> Iterator[tuple[str, str, str]]:
    """Each dashed line of the page once: its name, of what, and where it comes from."""
    seen = {(line["label"], line["quantity"]): line["source"] for line in profile["expected"]}
    for (name, quantity), source in seen.items():
        yield name, quantity.replace("_", " "), source


def _drawings(profile: Row) -> Iterator[tuple[str, str, str, Drawing | None]]:
    yield "gradients", "Gradients over depth", _GRADIENTS, profile_figures.gradients(profile)
    yield "stream", "The residual stream", _STREAM, profile_figures.stream(profile)
    yield "dependency", "What each sublayer adds", _DEPENDENCY, profile_figures.dependency(profile)
    yield "amplification", "How far a small change of the weights carries", _CHANGE, profile_figures.amplified(profile)
    yield "attention", "Attention", _ATTENTION, profile_figures.attention(profile)
    yield "massive", "The largest activations", _MASSIVE, profile_figures.massive(profile)


_GRADIENTS = (
    "Left: mean |gradient| of each sublayer's last projection, one kind of tensor over depth. Right: the Frobenius norm"
    " over all parameters of the sublayer. A level line is the aim; a fall by orders of magnitude towards either end"
    " says that layers learn at different paces, which Adam evens out only in part."
)
_STREAM = (
    "Root mean square behind each sublayer. Without a norm on the sum the stream grows with depth and later branches"
    " count for less; where the start is small, the first branches already outweigh it."
)
_DEPENDENCY = (
    "The variance of what the branch adds against that of what is carried on. β² is the branch's part in the sum; its"
    " running sum is ADMIN's index: it grows like ln i where deep layers hardly count, like i where each"
    " layer rewrites the stream, and then small changes of the weights add up."
)
_CHANGE = (
    "All matrices of the sublayers are moved by ±1e-5 at once, in float64: the mean square change of the stream behind"
    " each sublayer, over 1e-10. The steeper it rises with depth, the more an update disturbs the output."
)
_ATTENTION = (
    "Mean entropy of the attention weights over heads and queries, and thin the head with the lowest; dashed the"
    " entropy of equal weights. A head at 0 looks at one key. Logits that grow without bound precede a"
    " collapse of the entropy."
)
_MASSIVE = (
    "The largest |x| in the stream, and how many times the median it is. Trained models often have a few channels that"
    " are hundreds of times larger at the first token: a risk for float16 and for quantisation."
)
