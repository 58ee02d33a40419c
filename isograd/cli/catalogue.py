"""`isograd list`, `isograd show`, `isograd recipes`: the catalogue, one placement with its numbers, the recipes."""

from typing import Any

from rich.markup import escape

from isograd.cli.console import output, print_json, print_table
from isograd.cli.parser import Words
from isograd.errors import UserError, hint
from isograd.placement import CATALOGUE, get
from isograd.placement.text import final_formula, formulas, legend, numbers


def list_placements(*, json: bool = False) -> int:
    """Print the catalogue of placements.

    Args:
        json: one JSON object on stdout
    """
    if json:
        print_json(
            {
                name: {"formulas": formulas(p), "final": final_formula(p), "about": p.about, "paper": p.paper}
                for name, p in CATALOGUE.items()
            }
        )
        return 0
    console = output(soft_wrap=True)
    for name, placement in CATALOGUE.items():
        console.print(f"[bold]{escape(name)}[/bold]  {escape(placement.about)}  [dim]{escape(placement.paper)}[/dim]")
        for line in formulas(placement).values():
            console.print(f"    {escape(line)}")
        if final := final_formula(placement):
            console.print(f"    {escape(final)} after the last layer")
        for line in legend(placement):
            console.print(f"    [dim]{escape(line)}[/dim]")
    console.print("\n'isograd show NAME layers=48' prints the numbers of one of them.")
    return 0


def list_recipes(recipe: str | None = None, *, json: bool = False) -> int:
    """Print the recipes of the package, or one of them.

    examples:
      isograd recipes
      isograd recipes xiong2020/iwslt14-small

    Every verb that reads a recipe finds them by name, from any folder.

    Args:
        recipe: print this one: its comment says what it shows, which data it needs, and the commands
        json: name, sentence, command and file of each as one JSON object on stdout
    """
    from isograd.recipes import path_of, recipes

    wanted = path_of(recipe) if recipe else None
    found = [one for one in recipes() if wanted in (None, one.path)]
    if json:
        print_json({one.name: {"about": one.about, "command": one.command, "file": str(one.path)} for one in found})
    elif wanted:
        print(wanted.read_text(encoding="utf-8"), end="")
    else:
        print_table(["recipe", "what it shows"], [[escape(one.name), escape(one.about)] for one in found], left=2)
        print("\n'isograd recipes NAME' prints one; 'isograd train NAME key=value ...' runs it.")
    return 0


_KEYS = ("layers", "encoder", "decoder")


def show(placement: str, *shape: Words, json: bool = False) -> int:
    """Print one placement: its formulas with their numbers.

    examples:
      isograd show deepnorm layers=48
      isograd show admin encoder=100 decoder=100

    Args:
        placement: a name of 'isograd list'
        shape: layers=48 for one stack (default 12), or encoder=100 decoder=100 for two
        json: one JSON object on stdout
    """
    entry, counts = get(placement), _shape(shape)
    two = "encoder" in counts
    if two:
        n, m = counts["encoder"], counts["decoder"]
        stacks = {"encoder": numbers(entry, n, "encoder", m), "decoder": numbers(entry, m, "decoder", n)}
    else:
        stacks = {"layers": numbers(entry, counts["layers"])}
    lines = formulas(entry, cross=two, layers=counts["decoder" if two else "layers"])
    if json:
        print_json(
            {
                "placement": placement,
                "formulas": lines,
                "final": final_formula(entry),
                "legend": legend(entry),
                "paper": entry.paper,
                "sites": stacks,
            }
        )
        return 0
    print(f"{placement}: {entry.about}\n{entry.paper}\n")
    for kind, line in lines.items():
        print(f"  {kind:<6} {line}")
    if final := final_formula(entry):
        print(f"  final  {final} after the last layer")
    print()
    for line in legend(entry):
        print(f"  {line}")
    print(end="\n" if legend(entry) else "")
    for stack, rows in stacks.items():
        _print_numbers(stack, rows)
    if entry.note:
        print(f"\n{entry.note}")
    return 0


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
    lines = {", ".join(f"{n} = {r[n]:.6g}" for n in names): None for r in rows}
    if len(lines) == 1:
        print(f"{title}, every sublayer: {next(iter(lines))}")
        return
    print(title)
    for row in rows:
        print(f"  {row['layer']:>4} {row['kind']:<6}" + ", ".join(f"{n} = {row[n]:.6g}" for n in names))
