"""Pages that are written when the site is built: a card per placement and the options of each verb, in docs/generated.

Also the menus, which no page shows itself: those of the first page; pages of findings and results, under the page that
lists them.
"""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from sphinx.application import Sphinx

from isograd import cli
from isograd.lint.check import CODES
from isograd.lint.findings import SEVERITIES, Kind
from isograd.placement import CATALOGUE, Placement
from isograd.placement.text import final_formula, first_formula, formulas, legend

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "generated"
MENUS = {  # caption -> pages, with a shorter name than their title where that would take two lines
    "Start": {"start": "", "tutorials/README": "", "how-to": "How-to: every verb", "ko": "", "glossary": ""},
    "Find what is wrong": {
        "check": "Check: a linter",
        "preflight": "Preflight: the training step",
        "diagnose": "Explain: verdict and depth profile",
        "watch": "Watch a run",
        "replay": "Replay a failed run",
        "integrations": "",
        "agents": "For coding agents",
    },
    "Train and compare": {
        "compare": "Compare",
        "training": "",
        "study": "Study: a fair comparison",
        "headroom": "Maximum stable rate",
        "transfer": "Transfer over depth, width",
        "reproduce": "Reproduce the papers",
        "report": "",
        "statistics": "Statistics of a study",
    },
    "Build and ship": {
        "residual": "Residuals for your model",
        "conform": "Conform: test your port",
        "graft": "Graft: more layers",
        "export": "Export",
        "import": "Import",
    },
    "Tasks": {
        "data": "",
        "pretraining": "",
        "translation": "",
        "finetuning": "",
        "zero-shot": "",
        "large": "Large models, sharded",
        "cluster": "Several machines",
        "performance": "Performance",
    },
    "Reference": {
        "placements": "",
        "catalogue": "",
        "gallery": "Gallery of model types",
        "theory": "",
        "measured": "",
        "results/README": "",
        "results/reproduce/README": "",
        "results/designs/README": "Six designs, checked",
        "silent": "Silent faults: a benchmark",
        "accept": "Acceptance",
        "api/README": "",
    },
    "The project": {"house": "", "generated/contributing": "", "generated/changelog": ""},
}
UNDER = {  # page -> the pages under it
    "check": "check/*",
    "preflight": "check/*",
    "catalogue": "generated/placements/*",
    "results/README": "results/*",
    "results/reproduce/README": "results/reproduce/*",
    "how-to": "generated/verbs/*",
}
ORDERED = {  # the same, in an order of its own
    "tutorials/README": (
        "five-minutes",
        "before_you_spend_the_gpu_hours",
        "fix-post-ln",
        "compare",
        "ctranslate2",
        "own-placement",
        "graft",
    ),
    "api/README": ("library", "placement", "residual", "transfer", "diagnose", "data", "interop", "study", "errors"),
}
GUIDES = {  # verb -> the page that explains it
    "compare": "compare",
    "study": "study headroom",
    "transfer": "transfer",
    "reproduce": "reproduce theory",
    "train": "training",
    "translate": "translation",
    "evaluate": "translation finetuning zero-shot",
    "graft": "graft",
    "import": "import",
    "export": "export",
    "init": "transfer",
    "check": "check",
    "preflight": "preflight",
    "watch": "watch",
    "conform": "conform",
    "explain": "diagnose check",
    "replay": "replay",
    "report": "report",
    "doctor": "performance",
    "skill": "agents",
    "show": "placements training agents",
}
_SYMBOLS = {
    r"\^\(([^()]*)\)|\^(\w+)": r"<sup>\1\2</sup>",
    r"\b([A-Za-z])_(\w+|\([^()]*\))": r"\1<sub>\2</sub>",
    r" \* ": " × ",
    r"<-": "←",
    r"_": r"\\_",
}
_TEX = {
    r"<-": r"\\leftarrow",
    r"\bsqrt\(([^()]*)\)": r"\\sqrt{\1}",
    r"\bL2\(": r"\\ell_2(",
    r"\b(CrossHeads|Heads|LN|RMS|DyT|Derf|Attn|Cross|FFN|act|norm|skip|scale|heads|read|gated)\b": r"\\mathrm{\1}",
    r" of ": r"\\;\\text{of}\\;",
    r" \* ": r"\\cdot ",
    r"; ": r";\\,",
    r"(W_\w)\b ?": r"\1\\,",
}


def tex(formula: str) -> str:
    r"""A formula of the catalogue as TeX.

    >>> tex("x <- LN(skip * x + Attn(x))")
    'x \\leftarrow \\mathrm{LN}(\\mathrm{skip}\\cdot x + \\mathrm{Attn}(x))'
    """
    for pattern, written in _TEX.items():
        formula = re.sub(pattern, written, formula)
    return formula


def card(name: str, placement: Placement) -> str:
    """A placement's page: formula, symbols, source, advice, how to use it."""
    steps = {"before the first layer": first_formula(placement), **formulas(placement, layers=12)}
    steps["after the last layer"] = final_formula(placement)
    names = {"attn": "attention", "ffn": "feed-forward"}
    lines = [f"# {name}", "", f"{placement.about[:1].upper()}{placement.about[1:]}. *{placement.paper}.*", ""]
    if placement.unconfirmed:
        lines += [_UNCONFIRMED, ""]
    for where, formula in steps.items():
        if formula:
            where = re.sub("attn|ffn", lambda found: names[found[0]], where)
            lines += [f"{where.capitalize()}:", "", f"$$\n{tex(formula)}\n$$", ""]
    if symbols := legend(placement, 12):
        lines += ["## Symbols", "", *(f"- {one}" for one in map(_plain, symbols)), ""]
    lines += ["## When to use it", "", placement.note, ""]
    if placement.families:
        lines += [f"Model families with it: {', '.join(placement.families)}.", ""]
    lines += ["## Use it", "", _USE.format(name=name, show=_output("show", name, "layers=48"))]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A line of the legend as Markdown: its symbol is set apart, and nothing in it is emphasis.

    >>> _plain("skip: (2L)^(1/4) * W_O")
    '**skip**: (2L)<sup>1/4</sup> × W<sub>O</sub>'
    """
    for pattern, written in _SYMBOLS.items():
        text = re.sub(pattern, written, text)
    symbol, colon, rest = text.partition(": ")
    return f"**{symbol}**{colon}{rest}"


def verb(name: str) -> str:
    """A verb's page: its help, as the command prints it."""
    guides = ", ".join(f"[{guide}](../../{guide}.md)" for guide in GUIDES[name].split())
    help_text = _output(name, "--help")
    return f"# isograd {name}\n\nExplained, with examples: {guides}.\n\n```text\n{help_text}\n```\n"


def _output(*words: str) -> str:
    """What the command prints."""
    printed = io.StringIO()
    os.environ["COLUMNS"] = "88"
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        cli.main(list(words))
    return printed.getvalue().rstrip()


def pages() -> Iterator[tuple[str, str]]:
    """File below docs/generated -> text."""
    for name, placement in CATALOGUE.items():
        yield f"placements/{name}.md", card(name, placement)
    for name in cli.verbs():
        yield f"verbs/{name}.md", verb(name)
    for page in ("CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
        yield f"{page.lower()}.md", text.replace("](docs/", "](../").replace("](README.md", "](../index.md")


def write(app: Sphinx) -> None:
    """What is unchanged is not touched, so that Sphinx does not read it again."""
    written = dict(pages())
    for path, text in written.items():
        file = GENERATED / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in GENERATED.rglob("*.md"):
        if str(file.relative_to(GENERATED)) not in written:
            file.unlink()


def menu(pages: dict[str, str], caption: str = "") -> str:
    """A toctree that the page does not show.

    >>> print(menu({"compare": "Compare", "data": ""}, "Tasks"))
    <BLANKLINE>
    ```{toctree}
    :hidden:
    :caption: Tasks
    <BLANKLINE>
    Compare </compare>
    /data
    ```
    <BLANKLINE>
    """
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    lines = [f"{name} </{page}>" if name else f"/{page}" for page, name in pages.items()]
    return "\n".join(["", "```{toctree}", *options, "", *lines, "```", ""])


def under(pattern: str) -> dict[str, str]:
    """The pages of a folder. A paper's page has its authors and year as its name in a menu."""
    files = sorted((ROOT / "docs").glob(f"{pattern}.md"))
    pages = {str(file.relative_to(ROOT / "docs").with_suffix("")): file for file in files if file.stem != "README"}
    return {page: _short(file.read_text(encoding="utf-8")) for page, file in pages.items()}


def _short(text: str) -> str:
    title = next(line[2:] for line in text.splitlines() if line.startswith("# "))
    cited = re.match(r"(.* \d{4}), ", title)
    return cited[1] if cited else ""


def codes(verb: str) -> str:
    """The table of the codes of `check`, or of those that only `preflight` has, from the first line of each page."""
    lines = ["| code | kind | severity | finding |", "|---|---|---|---|"]
    for file in sorted(ROOT / "docs" / f"{page}.md" for page in _codes_of(verb)):
        said = file.read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")
        kinds, severities = ([one for one in words if f"*{one}*" in said] for words in (get_args(Kind), SEVERITIES))
        cells = (f"[{file.stem}](check/{file.name})", ", ".join(kinds), ", ".join(severities), said.partition(". ")[0])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _codes_of(verb: str) -> dict[str, str]:
    return {page: name for page, name in under("check/*").items() if (Path(page).name in CODES) == (verb == "check")}


def menus(docname: str) -> dict[str, dict[str, str]]:
    """The menus of a page, by their captions: page -> its name there, "" for its title."""
    if docname == "index":
        return MENUS
    if docname in ORDERED:
        return {"": {f"{Path(docname).parent}/{name}": "" for name in ORDERED[docname]}}
    if docname in UNDER and UNDER[docname] == "check/*":
        return {"": _codes_of(docname)}
    return {"": under(UNDER[docname])} if docname in UNDER else {}


def with_download(text: str, name: str) -> str:
    """A tutorial with a link to its notebook, as it was executed, below its title.

    >>> with_download("# Graft\\n\\nText.", "graft")
    '# Graft\\n\\n{nb-download}`Download as a notebook (graft.ipynb) <graft.ipynb>`\\n\\nText.'
    """
    link = f"{{nb-download}}`Download as a notebook ({name}.ipynb) <{name}.ipynb>`"
    return re.sub(r"(?m)^(# .*)$", lambda title: f"{title[1]}\n\n{link}", text, count=1)


def shown(docname: str, text: str) -> str:
    """A page's source with links to cards and with the table of codes, which it does not have itself."""
    if docname == "catalogue":
        return re.sub(r"(?m)^### (\S+)$", r"### [\1](generated/placements/\1.md)", text)
    if docname in ("check", "preflight"):
        table = f"{codes(docname)}\n\nEach has a page"
        return text.replace("Each code has a page in [check/](check/)", table)
    return text


def contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Menus, that the sources, which GitHub shows too, do not have."""
    if docname in [f"tutorials/{name}" for name in ORDERED["tutorials/README"]]:
        source[0] = with_download(source[0], Path(docname).name)
    source[0] = shown(docname, source[0]) + "".join(menu(pages, caption) for caption, pages in menus(docname).items())


_UNCONFIRMED = ":::{warning}\nThe equation is unconfirmed: one source gives it, and no code by its authors.\n:::"
_USE = """\
```python
from isograd import IsogradConfig, IsogradForCausalLM

config = IsogradConfig(
    placement="{name}",
    vocab_size=101,
    hidden_size=64,
    num_hidden_layers=12,
    num_attention_heads=4,
)
model = IsogradForCausalLM(config)
```

Beside Pre-LN on your own text:

    isograd compare --placements pre-ln {name} --data my.txt

Its numbers at 48 layers, as `isograd show {name} layers=48` prints them:

```{{code-block}} text
:class: wrapped

{show}
```

All entries: [the catalogue](../../catalogue.md). In a model of your own: [residuals](../../residual.md).
"""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("source-read", contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
