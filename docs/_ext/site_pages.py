"""Pages that are written when the site is built: a card per placement and the options of each verb, in docs/generated.

Also menus that pages do not show themselves: pages of findings and results hang under the page that lists them.
"""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

from isograd import cli
from isograd.placement import CATALOGUE, Placement
from isograd.placement.text import final_formula, first_formula, formulas, legend

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "generated"
UNDER = {  # page -> the pages under it
    "check": "check/*",
    "catalogue": "generated/placements/*",
    "results/README": "results/*",
    "results/reproduce/README": "results/reproduce/*",
    "how-to": "generated/verbs/*",
}
GUIDES = {  # verb -> the page that explains it
    "compare": "compare",
    "study": "study",
    "headroom": "headroom",
    "transfer": "transfer",
    "reproduce": "reproduce",
    "train": "training",
    "init-recipe": "training",
    "translate": "translation",
    "evaluate translation": "translation",
    "evaluate classification": "finetuning",
    "evaluate zero-shot": "zero-shot",
    "fold": "export",
    "graft": "graft",
    "import fairseq": "import",
    "import hf": "import",
    "import torch": "import",
    "export": "export",
    "init": "transfer",
    "check": "check",
    "conform": "conform",
    "diagnose": "diagnose",
    "explain": "diagnose",
    "replay": "replay",
    "report": "report",
    "open": "report",
    "theory": "theory",
    "list": "catalogue",
    "show": "placements",
    "recipes": "training",
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
    guide = f"../../{GUIDES[name]}.md"
    help_text = _output(*name.split(), "--help")
    return f"# isograd {name}\n\nExplained, with examples: [{GUIDES[name]}]({guide}).\n\n```text\n{help_text}\n```\n"


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
    for name in cli.VERBS:
        yield f"verbs/{name.replace(' ', '-')}.md", verb(name)
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


def contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Hang the pages of `UNDER` below theirs, without a mark in the source, which GitHub shows too."""
    if docname in UNDER:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n/{UNDER[docname]}\n```\n"


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
