"""`isograd transfer`: the settings of a deeper or wider model, from those of a small one."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import yaml
from rich.markup import escape

from isograd.cli.console import Bar, Result, loading, output, print_path, print_table
from isograd.cli.parser import File, Words
from isograd.errors import UserError
from isograd.files import write_text

if TYPE_CHECKING:
    from isograd.lab.study.transfer.coordinates import Coordinate
    from isograd.lab.study.transfer.plan import Plan
    from isograd.lab.train.run import Run

Sizes = Annotated[str, "FROM:TO"]


class Transferred(TypedDict):
    """The target: settings with factor and reason, papers, cautions, the recipe, its file."""

    rule: str | None
    settings: list[Annotated[Any, "isograd.lab.study.transfer.plan:Setting"]]
    sources: list[str]
    cautions: list[str]
    recipe: dict[str, Any]
    out: str | None
    check: NotRequired[dict[str, list[Annotated[Any, "isograd.lab.study.transfer.coordinates:Coordinate"]]]]


class DriftFound(TypedDict):
    """How far the best rate of an arm moves over sizes: best is size -> seed -> rate; interval has its coverage."""

    arm: str
    axis: str
    best: dict[str, dict[str, Annotated[Any, "isograd.lab.study.transfer.drift:Best"]]]
    drift: float
    interval: tuple[float, float, float] | None
    seeds: int
    open: bool
    verdict: str


def transfer(
    recipe: str,
    *overrides: Words,
    depth: Sizes | None = None,
    width: Sizes | None = None,
    rule: Annotated[str, "RULE"] | None = None,
    check: bool = False,
    out: File | None = None,
) -> Annotated[Result, Transferred, list[DriftFound]]:
    """Carry the settings of a small model to a deeper or wider one.

    examples:
      isograd transfer gpt2-bpe-adamw --depth 12:96
      isograd transfer RECIPE.yaml model.layers=6 --depth 6:24 --width 128:512 --out large.yaml
      isograd transfer RECIPE.yaml --depth 12:24 --rule depth-mup
      isograd transfer RECIPE.yaml --depth 4:16 --check       is what moves in 4 updates flat over depth?
      isograd transfer runs/transfer                          how far the best rate of a finished study moves

    Over depth completep or depth-mup (x + f(norm(x)) alone), output-change (plain Pre- and Post-LN: theory's rate) or
    kept (nothing changes); without --rule a placement's own constants, else completep. Over width muP.

    Args:
        recipe: a YAML recipe, by path or name, tuned at its own size; or the folder of a study
        overrides: such as model.layers=6
        depth: layers, such as 12:96
        width: such as 256:1024
        rule: over depth: completep, depth-mup, output-change, kept
        check: also a coordinate check: small models at the source's size, doubled until the target's, with and without
        out: write the target as a recipe that 'isograd train' runs
    """
    from isograd.lab.study.transfer.plan import parse_size, plan
    from isograd.lab.train.recipe import COMPARED, load_run, read_recipe
    from isograd.lab.train.run import Model

    if Path(recipe).is_dir():
        if depth or width or rule or check or out or overrides:
            raise UserError(
                f"{recipe} is a study's folder, whose best rates are read; it takes no other option than --json"
            )
        return _drifts(Path(recipe))
    if depth is None and width is None:
        raise UserError("expected --depth FROM:TO, --width FROM:TO, or both")
    if out is not None and out.exists():
        raise UserError(f"--out {out} exists; name another file")
    content = read_recipe(Path(recipe))
    if content.get("axes") or content.get("arms"):
        raise UserError(f"{recipe} has several runs (arms or axes); name the recipe of one")
    run = load_run(Path(recipe), overrides)
    own = (run.model.layers, run.model.width) if isinstance(run.model, Model) else (0, 0)
    layers = None if depth is None else parse_size(depth, own[0], "depth")
    size = None if width is None else parse_size(width, own[1], "width")
    made = plan(run, depth=layers, width=size, rule=rule)
    if out is not None:
        from isograd.lab.train.recipe import overridden

        plain = {key: value for key, value in content.items() if key not in COMPARED}
        write_text(out, as_yaml(made, overridden(plain, overrides), recipe))
    measured = _checked(run, layers, size, rule) if check else {}
    found = {name: [vars(c) | {"verdict": c.verdict} for c in of] for name, of in measured.items()}
    content = made.as_dict() | {"out": None if out is None else str(out)} | ({"check": found} if check else {})
    return Result(content, partial(_print, made, out, measured))


def _drifts(folder: Path) -> Result:
    """The best rates of a study, a line per placement and axis."""
    from isograd.lab.study.transfer.drift import read_drifts

    found = read_drifts(folder)
    rows = [[escape(cell) for cell in one.cells()] for one in found]
    header = ["placement", "over", "best rate", "drift", "95 %", "seeds", "verdict"]
    return Result([one.as_dict() for one in found], partial(print_table, header, rows, left=7))


def _checked(run: "Run", layers: int | None, width: int | None, rule: str | None) -> "dict[str, list[Coordinate]]":
    """With the rules and without."""
    if layers is not None and width is not None:
        raise UserError("--check takes one of --depth and --width at a time")
    from isograd.lab.train.run import Model

    assert isinstance(run.model, Model)
    begin, end = (run.model.layers, layers) if layers is not None else (run.model.width, width)
    assert end is not None
    sizes = [begin]
    while sizes[-1] * 2 <= end:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] != end:
        raise UserError(f"--check doubles the size from {begin}: {end} is none of {', '.join(map(str, sizes[1:]))}, ..")
    with loading():
        from isograd.lab.study.transfer.coordinates import SEEDS, coordinate_check
    axis: Any = "depth" if layers is not None else "width"
    with Bar("models", 2 * len(sizes) * len(SEEDS), transient=True) as bar:

        def one() -> None:
            bar.update(advance=1)

        ruled = coordinate_check(run, sizes, axis=axis, rule=rule, on_model=one)
        kept = "kept" if axis == "depth" else None
        return {
            "with": ruled,
            "without": coordinate_check(run, sizes, axis=axis, rule=kept, without=True, on_model=one),
        }


def _print_check(measured: "dict[str, list[Coordinate]]") -> None:
    lines = [
        [escape(one.quantity), name, ", ".join(one.said()), f"{one.power:+.2f}", one.interval_said(), one.verdict]
        for name, of in measured.items()
        for one in of
    ]
    if lines:
        output().print()
        print_table(["moved in 4 updates", "rule", "size: mean", "power", "95 %", "verdict"], lines, left=6)


def _print(made: "Plan", out: Path | None, measured: "dict[str, list[Coordinate]]") -> None:
    console = output()
    lines = [
        [
            escape(one.name),
            escape(one.source),
            escape(one.target),
            "" if one.factor is None else f"x {one.factor:.4g}",
            escape(one.reason),
        ]
        for one in made.settings
    ]
    print_table(["setting", "source", "target", "factor", "why"], lines, left=5)
    for line in (*made.sources, *made.cautions):
        console.print(f"[dim]{escape(line)}[/dim]", soft_wrap=True)
    if out is not None:
        print_path(f"recipe: {out}")
    _print_check(measured)


def as_yaml(made: "Plan", content: dict[str, Any], source: str) -> str:
    """A recipe that `isograd train` runs, with what was changed and why as comments."""
    from isograd.lab.study.transfer.plan import with_target

    target = with_target(content, made)
    head = [f"# {source} carried over by 'isograd transfer'", *(f"# {line}" for line in made.sources)]
    for one in made.settings:
        factor = "" if one.factor is None else f" (x {one.factor:.4g})"
        head.append(f"#   {one.name}: {one.source} -> {one.target}{factor}, {one.reason}")
    return "\n".join([*head, yaml.safe_dump(target, sort_keys=False, allow_unicode=True)])
