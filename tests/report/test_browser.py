"""The page in a real browser: values under the pointer, arms switched off, a phone's width, the dark, and print."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from isograd.lab.report.page import Page, Section, Table, write_page
from isograd.lab.report.pages.reproduce import map_section
from isograd.lab.report.style import Drawing, drawing, label, log, look

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]
CURVES = {"pre-ln": [4.0, 3.0, 2.0, 1.0, 0.5], "post-ln, $x$ <b>": [4.0, 3.9, 3.8, 3.7, 3.6]}
ASK = """
<script>
addEventListener("load", () => {
  const said = {};
  try { said.found = (() => { %s })(); } catch (error) { said.error = String(error); }
  said.width = document.documentElement.scrollWidth;
  said.inner = document.documentElement.clientWidth;
  said.ground = getComputedStyle(document.body).backgroundColor;
  document.body.setAttribute("data-said", JSON.stringify(said));
});
</script></body>"""
HOVER = """
  const svg = document.querySelectorAll("figure svg")[%d];
  const chart = JSON.parse(document.querySelectorAll("script.chart")[%d].textContent).panels[0];
  const [left, top, right, bottom] = chart.box, [low, high] = chart.x;
  const to = new DOMPoint(left + (%g - low) / (high - low) * (right - left), (top + bottom) / 2);
  const at = to.matrixTransform(svg.getScreenCTM());
  svg.dispatchEvent(new PointerEvent("pointermove", { clientX: at.x, clientY: at.y, bubbles: true }));
  return document.querySelector(".tip").innerText;
"""


def figure(logarithmic: bool = False) -> Drawing:
    drawn = drawing(1, height=3)
    (axes,) = drawn.panels
    for i, (name, values) in enumerate(CURVES.items()):
        axes.plot(range(0, 100, 20), values, label=name, **look(i))
        axes.fill_between(range(0, 100, 20), values, [2 * y for y in values], color=look(i)["color"], alpha=0.1)
    axes.axhline(1.5)
    label(axes, "step", "loss")
    if logarithmic:
        log(axes)
    return drawn


MAP = {"kind": "map", "name": "map", "title": "beta_ij^2", "sentence": "", "panel": "", "where": {}}
MAP |= {"x": "part", "y": "after", "value": "share", "x_label": "branch", "y_label": "sublayer", "value_label": "share"}
SHARES = [{"part": part, "after": after, "share": 0.1 * after + 0.01 * part} for after in (1, 2, 3) for part in (0, 1)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = Table(header=[f"a long name of a column {i}" for i in range(9)], lines=[["1.234 (1.2 to 1.3)"] * 9] * 20)
    sections = [
        Section(name="linear", title="Linear", figure=figure),
        Section(name="log", title="Logarithmic", figure=lambda: figure(True), table=table),
        map_section(MAP, SHARES),
    ]
    content = Page(
        title="A page with a long-long-long-long-long-long-long-long-long-title",
        headline="It is so.",
        sections=sections,
    )
    return write_page(content, tmp_path_factory.mktemp("page") / "report.html")


def chromium(*words: str) -> str:
    assert CHROMIUM is not None
    fixed = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=4000"]
    done = subprocess.run([CHROMIUM, *fixed, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def asked(page: Path, script: str, *words: str) -> Any:
    """What a script finds in a copy of the page."""
    copy = page.with_name("asked.html")
    copy.write_text(page.read_text().replace("</body>", ASK % script))
    found = re.search(r'data-said="([^"]*)"', chromium(*words, "--dump-dom", copy.as_uri()))
    assert found, "the script did not run"
    said = json.loads(unescape(found[1]))
    assert "error" not in said, said
    return said


@pytest.mark.parametrize("place", [0, 1])
def test_values_under_the_pointer(page: Path, place: int) -> None:
    said = asked(page, HOVER % (place, place, 60))["found"].splitlines()
    assert said[0] == "step 60"
    values = {name: float(number) for name, _, number in (row.strip().rpartition(": ") for row in said[1:])}
    assert values == {
        "pre-ln": pytest.approx(1.0, abs=0.01),
        "post-ln, $x$ <b>": pytest.approx(3.7, abs=0.01),
    }


def test_the_values_of_a_map_stand_in_the_table_below(page: Path) -> None:
    script = 'return [...document.querySelectorAll("#part-map details td")].map((cell) => cell.textContent);'
    assert asked(page, script)["found"] == ["1", "0.1", "0.11", "2", "0.2", "0.21", "3", "0.3", "0.31"]


def test_an_arm_is_switched_off_and_on_in_every_figure(page: Path) -> None:
    script = """
      const entry = document.querySelector("[role=button]"), gone = () =>
        [...document.querySelectorAll("[id*=chart-0-]")].filter((x) => x.style.display === "none").map((x) => x.id);
      const press = (key) => entry.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      entry.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      const off = gone(), pressed = entry.getAttribute("aria-pressed");
      press("Enter");
      return { label: entry.textContent.trim(), off, pressed, on: gone() };
    """
    found = asked(page, script)["found"]
    assert found["label"] == "pre-ln" and found["pressed"] == "false" and found["on"] == []
    assert sorted(found["off"]) == ["linear-chart-0-0", "linear-chart-0-2", "log-chart-0-0", "log-chart-0-2"]


def test_a_phone_the_dark_and_print(page: Path) -> None:
    nothing = "return 0;"
    wide, phone = asked(page, nothing, "--window-size=1200,900"), asked(page, nothing, "--window-size=500,900")
    for said in (wide, phone):
        assert said["width"] <= said["inner"], "the page is wider than its window"
    frame = page.with_name("frame.html")  # a window of chromium is at least 500 wide
    frame.write_text(f'<body><iframe src="{page.name}" width="400" height="800" style="border:0"></iframe></body>')
    inside = 'const d = document.querySelector("iframe").contentDocument.documentElement;'
    inside += "return [d.scrollWidth, d.clientWidth];"
    width, inner = asked(frame, inside, "--allow-file-access-from-files")["found"]
    assert width <= inner == 400
    dark = asked(page, nothing, "--blink-settings=preferredColorScheme=0")
    assert wide["ground"] == "rgb(251, 251, 249)" and dark["ground"] == "rgb(20, 23, 26)"
    paper = page.with_name("page.pdf")
    chromium(f"--print-to-pdf={paper}", page.as_uri())
    assert paper.read_bytes().startswith(b"%PDF")
