"""What an item is: its claim, the paper's numbers, what is run, the rule of its verdict. Data; no torch."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from isograd.lab.recipes import path_of, read_table

if TYPE_CHECKING:
    from isograd.papers.reproduce.context import Context

Row = dict[str, Any]
Rows = Sequence[Row]
Direction = Literal["same direction", "not seen", "opposite", "not run"]
DECIDED = (  # of a verdict that is not the paper's
    "the setup is wrong",  # to be changed, by a dated line, and run again
    "begins later",
    "does not hold here",
    "cannot be tested at this size",
)

PAPERS = {
    "xiong2020": "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture",
    "normformer2021": "Shleifer, Weston, Ott 2021, NormFormer",
    "admin2020": "Liu et al. 2020, Understanding the Difficulty of Training Transformers",
    "verydeep2020": "Liu, Duh, Liu, Gao 2020, Very Deep Transformers for Neural Machine Translation",
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number or a finding of the paper.

    Args:
        value: a number, or words where the paper has only a curve.
        tag: where it is known from: "paper", "code", "quoted: WHO", "memory".
        at: where it stands on the axis of the item's figure of lines, which then shows it.
    """

    label: str
    value: float | str
    unit: str = ""
    tag: str
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ours:
    """A number of ours: a median over n seeds and its interval, or a count of n."""

    label: str
    value: float | None
    unit: str = ""
    n: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the rule says of the rows.

    Args:
        reason: one sentence with the numbers that it rests on.
    """

    verdict: Direction
    reason: str
    ours: tuple[Ours, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ItemText:
    """Text that an item wants.

    Args:
        folder: below `--data`.
        files: that must be there, below `folder`.
        settings: key -> value of a recipe, "{folder}" in it the folder's path.
        embedded: the same in its place where there is no `--data`; None: the item cannot do without.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    settings: Mapping[str, Any]
    embedded: Mapping[str, Any] | None = None
    embedded_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Training runs: each arm with each seed.

    Args:
        recipe: a name of `isograd show recipes`.
        arms: name -> placement and overrides; none: the recipe's own arms or axes, under their own labels.
        overrides: for all arms.
        corpus: None: the item's.
        group: tells these runs from others of the item.
        upon: a group of runs whose models these fine-tune, each with its own seed and placement. `arms` then have no
            placement, only overrides; none: one arm.
    """

    recipe: str
    arms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    corpus: ItemText | None = None
    group: str = ""
    upon: str | None = None


@dataclass(frozen=True, kw_only=True)
class ItemChart:
    """A figure of the rows.

    Args:
        x, y: columns. Of a "map" x and y are its places, `value` what is shown there, `value_label` its name and unit.
        line: column whose values have a line each, panel: a panel each.
        where: column -> value of the rows that are drawn.
        zero: draws a line at y = 0.
        low, high: columns of a band; else it is the lowest and highest over rows that differ in their seed.
    """

    name: str
    title: str
    sentence: str = ""
    kind: Literal["lines", "bars", "map"] = "lines"
    x: str
    y: str
    value: str = ""
    line: str = "arm"
    panel: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    low: str = ""
    high: str = ""
    x_label: str = ""
    y_label: str = ""
    value_label: str = ""
    log_x: bool = False
    log_y: bool = False
    zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Full:
    """The paper's size: a recipe, its arms and seeds, on so many devices."""

    recipe: str
    overrides: tuple[str, ...] = ()
    devices: int = 1
    corpus: ItemText | None = None


@dataclass(frozen=True, kw_only=True)
class Item:
    """One table, figure or claim of a paper.

    Args:
        id: paper/slug.
        title: what it shows.
        minutes: of one core here, measured; shared runs counted with each item.
        differs: from the paper: size, data, steps.
        rule: of the verdict, in words, written before the runs.
        missing: why it is not run; "" where it is.
        details: the page's closing remarks: what else the runs show, findings against the paper.
        decided: of a verdict that is not the paper's direction: what it comes from, a phrase of `DECIDED` and why.
        revised: changes of the setup or the rule, each a line that begins with its date and says why; written before
            the runs that it is for.
    """

    id: str
    title: str
    claim: str
    published: tuple[Published, ...] = ()
    size_paper: str
    size_here: str
    minutes: float = 0.0
    differs: str = ""
    rule: str = ""
    judge: Callable[[Rows], Judgement] | None = None
    corpus: ItemText | None = None
    runs: tuple[Runs, ...] = ()
    measure: "Callable[[Context], Rows] | None" = None
    charts: tuple[ItemChart, ...] = ()
    run_charts: tuple[str, ...] = ()
    full: Full | None = None
    missing: str = ""
    details: str = ""
    decided: str = ""
    revised: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        return PAPERS[self.id.partition("/")[0]]

    @property
    def data(self) -> str:
        """What is read, in words."""
        if self.missing:
            return "none"
        if not self.corpora:
            return "embedded"
        said = (f"{one.folder} ({one.embedded_name or 'needed'})" for one in self.corpora.values())
        return ", ".join(dict.fromkeys(said))

    @property
    def corpora(self) -> dict[str, ItemText]:
        """By name, the item's own and those of its runs."""
        named = [self.corpus, *(runs.corpus for runs in self.runs)]
        return {corpus.name: corpus for corpus in named if corpus}

    def setup(self) -> str:
        """A hash of what a verdict rests on: runs, recipes' settings, the rule in words and by name, the measure."""
        rule: Any = self.judge
        judge = _source(rule) if rule is None or inspect.isfunction(rule) else asdict(rule)
        recipes = [read_table(path_of(runs.recipe)) for runs in self.runs]
        what = [asdict(runs) for runs in self.runs], self.corpora, self.rule, judge, _source(self.measure), recipes
        said = json.dumps(what, sort_keys=True, default=lambda corpus: asdict(corpus))
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    def about(self) -> dict[str, Any]:
        """As `--list --json` says it."""
        return {
            "paper": self.paper,
            "item": self.id,
            "shows": self.title,
            "claim": self.claim,
            "size here": self.size_here,
            "size in the paper": self.size_paper,
            "minutes": self.minutes,
            "data": self.data,
            "command": f"isograd reproduce {self.id}",
            "missing": self.missing or None,
            "published": [asdict(one) for one in self.published],
            "details": self.details,
            "decided": self.decided,
            "revised": [*self.revised],
            "setup": self.setup(),
        }


def _source(function: Callable[..., Any] | None) -> str:
    return inspect.getsource(function) if function is not None else ""
