"""`isograd show`: the catalogue, or one placement with its numbers."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Annotated, Any, TypedDict

from rich.markup import escape

from isograd.cli.console import Result, output
from isograd.cli.parser import Words
from isograd.errors import UserError, hint
from isograd.placement import CATALOGUE, get
from isograd.placement.text import final_formula, first_formula, formulas, legend, numbers


class Card(TypedDict):
    """A placement: its group, formulas of the kinds of sublayers, symbols, source, advice, families of models."""

    group: str
    about: str
    formulas: dict[str, str]
    first: str | None
    final: str | None
    legend: list[str]
    paper: str
    note: str
    families: list[str]
    unconfirmed: bool


class PlacementShown(Card):
    """A placement with its numbers: stack -> a row for each site (layer, kind, constants)."""

    placement: str
    sites: dict[str, list[dict[str, Any]]]


def _print_list() -> None:
    """The catalogue by group."""
    console, wide = output(soft_wrap=True), max(map(len, CATALOGUE))
    for group, names in groupby(CATALOGUE, key=lambda name: CATALOGUE[name].group):
        console.print(f"[bold]{escape(group or 'registered')}[/bold]")
        for name in names:
            mark = " [dim](equation unconfirmed)[/dim]" if CATALOGUE[name].unconfirmed else ""
            console.print(f"  {name:<{wide}}  {escape(CATALOGUE[name].about)}{mark}")
    print("\n'isograd show NAME layers=48' prints one of them: formula, numbers, source, advice.")
    print("'isograd show recipes' lists what 'isograd train' and 'isograd study' read by name.")


def _card(name: str, layers: int = 12, cross: bool = False) -> dict[str, Any]:
    """What the catalogue says of one placement."""
    p = get(name)
    return {
        "group": p.group,
        "about": p.about,
        "formulas": formulas(p, cross=cross, layers=layers),
        "first": first_formula(p),
        "final": final_formula(p),
        "legend": legend(p, layers),
        "paper": p.paper,
        "note": p.note,
        "families": list(p.families),
        "unconfirmed": p.unconfirmed,
    }


_KEYS = ("layers", "encoder", "decoder")


def show(placement: str | None = None, *shape: Words) -> Annotated[Result, dict[str, Card], PlacementShown]:
    """Print the catalogue of placements, or one of them: its formulas with their numbers.

    examples:
      isograd show
      isograd show deepnorm layers=48
      isograd show admin encoder=100 decoder=100

    Args:
        placement: its name (default: a line for each, by group)
        shape: layers=48 for one stack (default 12), or encoder=100 decoder=100 for two
    """
    if placement is None:
        return Result({name: _card(name) for name in CATALOGUE}, _print_list)
    entry, counts = get(placement), _shape(shape)
    two = "encoder" in counts
    if two:
        n, m = counts["encoder"], counts["decoder"]
        stacks = {"encoder": numbers(entry, n, "encoder", m), "decoder": numbers(entry, m, "decoder", n)}
    else:
        stacks = {"layers": numbers(entry, counts["layers"])}
    card = _card(placement, counts["decoder" if two else "layers"], two)
    return Result({"placement": placement, **card, "sites": stacks}, partial(_print_one, placement, card, stacks))


def _print_one(placement: str, card: dict[str, Any], stacks: dict[str, list[dict[str, Any]]]) -> None:
    print(f"{placement}: {card['about']}\n{card['paper']}\n")
    if card["unconfirmed"]:
        print("  The equation is unconfirmed: one source gives it, and no code by its authors.\n")
    if first := card["first"]:
        print(f"  first  {first} before the first layer")
    for kind, line in card["formulas"].items():
        print(f"  {kind:<6} {line}")
    if final := card["final"]:
        print(f"  final  {final} after the last layer")
    print()
    lines = legend(get(placement))
    for line in lines:
        print(f"  {line}")
    print(end="\n" if lines else "")
    for stack, rows in stacks.items():
        _print_numbers(stack, rows)
    if card["note"]:
        print(f"\n{card['note']}")
    if card["families"]:
        print(f"\nCarried by: {', '.join(card['families'])}")


def _shape(words: tuple[str, ...]) -> dict[str, int]:
    shape: dict[str, int] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or key not in _KEYS:
            said = f"; {hint(key, _KEYS)}" if sign else ""
            raise UserError(f"{word!r}: expected layers=48, or encoder=100 decoder=100{said}")
        if not value.isdecimal() or int(value) < 1:
            raise UserError(f"{word!r}: expected a whole number of layers, at least 1")
        shape[key] = int(value)
    if ("encoder" in shape) != ("decoder" in shape):
        raise UserError("an encoder-decoder needs both, such as encoder=100 decoder=100")
    if "encoder" in shape and "layers" in shape:
        raise UserError("give layers=48 for one stack, or encoder=100 decoder=100 for two, not both")
    return shape or {"layers": 12}


def _print_numbers(stack: str, rows: list[dict[str, Any]]) -> None:
    """Once when all sites agree, else a line per site."""
    names = [n for n in rows[0] if n not in ("layer", "kind") and any(r[n] != 1.0 for r in rows)]
    depth = rows[-1]["layer"]
    title = f"{stack}, {depth} layers" if stack != "layers" else f"{depth} layers"
    if not names:
        print(f"{title}: no constants, skip = scale = 1 at every site (initial values where learned)")
        return
    text = [", ".join(f"{n} = {r[n]:.6g}" for n in names) for r in rows]
    if len(set(text)) == 1:
        print(f"{title}, every sublayer: {text[0]}")
        return
    print(title)
    for where, line in _ranges(rows, text):
        print(f"  {where:<22} {line}")


def _ranges(rows: list[dict[str, Any]], text: list[str]) -> Iterator[tuple[str, str]]:
    """Layers in a row whose numbers agree, all kinds together where they agree too."""
    of_layer: dict[int, dict[str, str]] = {}
    for row, line in zip(rows, text, strict=True):
        of_layer.setdefault(row["layer"], {})[row["kind"]] = line
    for kinds, group in groupby(of_layer.items(), key=lambda one: one[1]):
        first, *_, last = [layer for layer, _ in group] * 2
        where = f"layer {first}" if first == last else f"layers {first} to {last}"
        if len(set(kinds.values())) == 1:
            yield f"{where}:", next(iter(kinds.values()))
        else:
            yield from ((f"{where}, {kind}:", line) for kind, line in kinds.items())
