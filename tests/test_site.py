"""Sources of the site: each page in a menu, each link leads somewhere, each verb has a guide. `make docs` builds it."""

import ast
import doctest
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from benchmarks.accept import blocks
from isograd.cli import verbs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_BUILT = ("_build", "generated")
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in _BUILT)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    return import_module("site_pages")


def name(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


def listed(page: Path, extension: ModuleType) -> list[str]:
    """The pages that a page's menus list."""
    return [one for pages in extension.menus(name(page)).values() for one in pages]


def test_every_page_is_in_one_menu(extension: ModuleType) -> None:
    found = [one for page in PAGES for one in listed(page, extension) if not one.startswith("generated/")]
    assert {name(page) for page in PAGES} - set(found) == {"index"}
    assert len(found) == len(PAGES) - 1, "a page is in two menus"


def test_a_page_that_no_menu_lists_is_found(extension: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    assert "compare" in listed(DOCS / "index.md", extension)
    assert "check/lr-high" not in listed(DOCS / "index.md", extension)
    assert "check/lr-high" in listed(DOCS / "check.md", extension)
    monkeypatch.delitem(extension.UNDER, "check")
    assert not listed(DOCS / "check.md", extension)


def test_sources_have_no_marks_that_github_shows() -> None:
    """But for the pages of the API, which are made of docstrings, and the tutorials' cells."""
    mark = re.compile(r"^(```|:::+)\{(?!code-cell)", re.MULTILINE)
    marked = {page for page in PAGES if mark.search(page.read_text(encoding="utf-8"))}
    assert {page.parent.name for page in marked} == {"api"}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if path and "://" not in path and not path.startswith("mailto:"):
            assert (page.parent / path).exists(), target


def test_the_korean_page_has_the_scripts_and_commands_of_the_english_one() -> None:
    english, korean = ((DOCS / name).read_text(encoding="utf-8") for name in ("start.md", "ko.md"))
    assert _FENCE.findall(english) == _FENCE.findall(korean)
    commands = [
        [re.split(r" {3,}", line.strip())[0] for line in re.findall(r"^ {4}(\S.*)$", _FENCE.sub("", text), re.M)]
        for text in (english, korean)
    ]
    assert commands[0] == commands[1] and len(commands[0]) >= 9


def test_programs_find_every_page_and_every_schema(extension: ModuleType) -> None:
    llms = import_module("llms")
    text = llms.index()
    title, _, summary = text.splitlines()[:3]
    assert title == "# isograd" and summary.startswith("> ")  # llmstxt.org
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    pages = {name(page) for page in PAGES} - {"index"}
    assert {one.removesuffix(".html") for one in linked if one.endswith(".html")} >= pages
    assert {f"schemas/{verb}.json" for verb in set(verbs()) - {"watch", "translate"}} < set(linked)
    assert llms.text_of("check").count("(check/") > 50, "the table of codes, which the source does not have"
    assert "toctree" not in llms.text_of("check")


def test_every_verb_has_a_guide(extension: ModuleType) -> None:
    how_to = (DOCS / "how-to.md").read_text(encoding="utf-8")
    assert set(extension.GUIDES) == set(verbs())
    for verb, guides in extension.GUIDES.items():
        assert all((DOCS / f"{guide}.md").exists() for guide in guides.split())
        assert f"`isograd {verb}" in how_to, verb


@pytest.mark.parametrize("module", ["site_pages", "docstrings", "tables"])
def test_examples_of_the_extensions(module: str, extension: ModuleType) -> None:
    result = doctest.testmod(import_module(module))
    assert result.attempted and not result.failed


def test_documented_commands_are_ones_that_their_verbs_take() -> None:
    commands = [*blocks.commands()]
    refused = [(one.page, one.line, said) for one in commands if (said := blocks.read_command(one.code))]
    assert not refused and len(commands) > 100
    assert {one.page for one in commands} >= {"docs/start.md", "docs/ko.md", "docs/how-to.md"}


def test_documented_python_compiles() -> None:
    """`make accept-full` runs what stands by itself."""
    for one in blocks.python_blocks():
        compile(one.code, f"{one.page}:{one.line}", "exec")
    alone = {one.page for one in blocks.python_blocks() if not blocks.missing(one.code)}
    assert alone >= {"docs/start.md", "docs/placements.md"} and "docs/integrations.md" not in alone


def test_examples_of_the_blocks() -> None:
    result = doctest.testmod(blocks)
    assert result.attempted and not result.failed


HABITS = ("W&B", "TensorBoard", "Lightning", "Trainer", "nanoGPT", "torchtitan", "x-transformers", "`mup`")


def habits() -> list[tuple[str, str, str]]:
    """Rows of "From what you use now": the habit, its line of Python, its command."""
    table = (DOCS / "how-to.md").read_text(encoding="utf-8").partition("## From what you use now")[2]
    return re.findall(r"^\| (.+?) \| `(.+)` \| `(.+)` \|$", table, re.MULTILINE)


def test_every_habit_has_a_row() -> None:
    rows = habits()
    assert len(rows) == len(HABITS)
    assert all(name in row[0] for name, row in zip(HABITS, rows, strict=True))


@pytest.mark.parametrize(("habit", "line", "command"), habits(), ids=[row[0] for row in habits()])
def test_what_to_type_works(
    habit: str, line: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is one that its verb takes; the line runs on a model, an optimizer and a Trainer."""
    import isograd.lab.transfer
    from isograd.diagnose.watch import Watch
    from isograd.lint import Findings

    assert not blocks.read_command(command)
    known: dict[str, Any] = {"isograd": isograd}
    if "lightning" in line:
        known["lightning"] = pytest.importorskip("lightning")
    if "TransformerWrapper" in line:
        known |= vars(pytest.importorskip("x_transformers"))
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0)
    known["model"] = GPT2LMHeadModel(sizes)
    known["optimizer"] = torch.optim.AdamW(known["model"].parameters())
    known["run"] = SimpleNamespace(log=lambda numbers, step=None: None)
    arguments = TrainingArguments(str(tmp_path / "out"), report_to=[], use_cpu=True)
    known["trainer"] = Trainer(known["model"], arguments)
    exec(line, known)
    made = {"watch": Watch, "findings": Findings, "groups": list}
    for name, kind in made.items():
        assert name not in known or isinstance(known[name], kind)
    if "watch" in known:
        known["watch"].close()


TUTORIALS = sorted(page for page in (DOCS / "tutorials").glob("*.md") if page.stem != "README")


def notebook(page: Path) -> Any:
    """A tutorial as its .ipynb, made as the site makes it."""
    reader = pytest.importorskip("myst_nb.core.read")
    config = import_module("myst_parser.config.main").MdParserConfig()
    text = page.read_text(encoding="utf-8")
    return reader.read_myst_markdown_notebook(text, config, path=page, add_source_map=False)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_is_a_notebook(page: Path, extension: ModuleType) -> None:
    made = notebook(page)
    import_module("nbformat").validate(made)
    cells = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == page.read_text(encoding="utf-8").count("```{code-cell}") > 1
    shown = extension.with_download(page.read_text(encoding="utf-8"), page.stem)
    assert f"<{page.stem}.ipynb>`" in shown and shown.index("# ") < shown.index("{nb-download}")


def test_the_first_tutorial_needs_the_wheel_alone() -> None:
    """No extra: what it imports comes with torch, isograd or Python."""
    code = "\n".join(
        c["source"] for c in notebook(DOCS / "tutorials/five-minutes.md")["cells"] if c["cell_type"] == "code"
    )
    trees = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = {one.name for node in trees if isinstance(node, ast.Import) for one in node.names}
    named |= {str(node.module) for node in trees if isinstance(node, ast.ImportFrom)}
    assert named and {name.partition(".")[0] for name in named} <= {"isograd", "torch", *sys.stdlib_module_names}
    assert not any("lab" in name.split(".") for name in named) and "isograd.lab" not in code


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_runs(page: Path, tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    client.execute(notebook(page), cwd=tmp_path, timeout=600, kernel_name="python3")


def test_formulas_can_be_typeset(extension: ModuleType) -> None:
    """What the page's TeX is made of is known to the converter, which knows a part of LaTeX."""
    tex2mathml = import_module("docutils.utils.math.latex2mathml").tex2mathml
    found = 0
    for page in [*PAGES, *(DOCS / "generated").rglob("*.md")]:
        for formula in re.findall(r"^\$\$\n(.*?)\n\$\$$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            assert "<math" in tex2mathml(formula, as_block=True), (page, formula)
            found += 1
    assert found > 8


def test_a_card_has_its_formula(extension: ModuleType) -> None:
    cards = {path: text for path, text in extension.pages() if path.startswith("placements/")}
    assert r"x \leftarrow \mathrm{LN}(\mathrm{skip}\cdot x + \mathrm{Attn}(x))" in cards["placements/admin.md"]
    assert all("$$" in text and "isograd compare" in text for text in cards.values())
