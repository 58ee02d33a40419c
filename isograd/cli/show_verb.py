"""`isograd show deepnorm layers=48`: formulas with their numbers."""

import argparse
import json
from typing import Any

from isograd.errors import UnknownPlacement, UserError
from isograd.placement import get
from isograd.placement.text import final_formula, formulas, legend, numbers

_KEYS = ("layers", "encoder", "decoder")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("placement", help="a name of 'isograd list'")
    parser.add_argument(
        "shape",
        nargs="*",
        metavar="key=value",
        help="layers=48 for one tower (default 12), or encoder=100 decoder=100 for two",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run, words="shape")


def run(options: argparse.Namespace) -> int:
    try:
        placement = get(options.placement)
    except UnknownPlacement as error:
        raise UserError(str(error)) from error
    shape = _shape(options.shape)
    two = "encoder" in shape
    if two:
        n, m = shape["encoder"], shape["decoder"]
        towers = {"encoder": numbers(placement, n, "encoder", m), "decoder": numbers(placement, m, "decoder", n)}
    else:
        towers = {"layers": numbers(placement, shape["layers"])}
    if options.json:
        content = {
            "placement": options.placement,
            "formulas": formulas(placement, cross=two),
            "final": final_formula(placement),
            "legend": legend(placement),
            "paper": placement.paper,
            "sites": towers,
        }
        print(json.dumps(content, indent=2))
        return 0
    print(f"{options.placement}: {placement.about}\n{placement.paper}\n")
    for kind, line in formulas(placement, cross=two).items():
        print(f"  {kind:<6} {line}")
    if final := final_formula(placement):
        print(f"  final  {final} after the last layer")
    print()
    for line in legend(placement):
        print(f"  {line}")
    print(end="\n" if legend(placement) else "")
    for tower, rows in towers.items():
        _print_numbers(tower, rows)
    if placement.note:
        print(f"\n{placement.note}")
    return 0


def _shape(words: list[str]) -> dict[str, int]:
    shape: dict[str, int] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or key not in _KEYS:
            raise UserError(f"{word!r}: expected layers=48, or encoder=100 decoder=100")
        if not value.isdecimal() or int(value) < 1:
            raise UserError(f"{word!r}: expected a whole number of layers, at least 1")
        shape[key] = int(value)
    if ("encoder" in shape) != ("decoder" in shape):
        raise UserError("an encoder-decoder needs both, such as encoder=100 decoder=100")
    if "encoder" in shape and "layers" in shape:
        raise UserError("give layers=48 for one tower, or encoder=100 decoder=100 for two, not both")
    return shape or {"layers": 12}


def _print_numbers(tower: str, rows: list[dict[str, Any]]) -> None:
    """Once when all sites agree, else a line per site."""
    names = [n for n in rows[0] if n not in ("layer", "kind") and any(r[n] != 1.0 for r in rows)]
    depth = rows[-1]["layer"]
    title = f"{tower}, {depth} layers" if tower != "layers" else f"{depth} layers"
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
