"""A placement as config.json has it: the residual and the init gains of every site, laws resolved to numbers.

    {"name": "mine", "final": {"kind": "model"}, "init": null, "calibrate": null, "sublayers": [
        {"kind": "attn", "layers": [1, 3], "pre": {"kind": "model"}, "scale": 0.5, "init": {"attn_out": 0.25}}, ...]}

Layers in a row that agree are one entry; what has its default value is left out. So are `first` and `stream`, whose
laws are lists with a number per layer.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import groupby
from typing import Any

from isograd.placement.formula import (
    AS_GIVEN,
    PLAIN,
    SLOTS,
    ByKind,
    ClipLogits,
    Constraint,
    Coupled,
    Gate,
    HeadScale,
    Init,
    Learned,
    Norm,
    Placement,
    ProjectionNorm,
    Rates,
    Residual,
    Role,
    UnitNorm,
)
from isograd.placement.laws import Kind, Law, Site, Stack, sites
from isograd.placement.streams import Stream

_Entry = tuple[Residual, Mapping[Role, float], Mapping[str, Mapping[Role, float]]]  # of a site: with gains and rates


def stored(name: str, placement: Placement, layers: int, stack: Stack, other: int) -> dict[str, Any]:
    """One stack of a placement as plain data for JSON."""
    every = sites(layers, stack, other)
    kinds = dict.fromkeys(site.kind for site in every)
    stream = {} if placement.stream == PLAIN else {"stream": _stream(placement.stream, every)}
    return {
        "name": name,
        **({"first": _plain(placement.first.at(every[0]))} if placement.first else {}),
        "final": _plain(placement.final and placement.final.at(every[-1])),
        **stream,
        "init": placement.init.base,
        "calibrate": placement.calibrate,
        **(
            {"constrain": [{"is": type(one).__name__, **_plain(one)} for one in placement.constrain]}
            if placement.constrain
            else {}
        ),
        "sublayers": [entry for kind in kinds for entry in _grouped(placement, [s for s in every if s.kind == kind])],
    }


def restored(parts: Mapping[Stack, Mapping[str, Any]]) -> Placement:
    """The placement whose stacks were `stored`.

    Raises:
        ValueError: a field that a residual does not have, or a value that it does not take.
    """
    try:
        first = next(iter(parts.values()))
        table = {
            (stack, entry["kind"], layer): (_residual(entry), dict(entry.get("init", {})), entry.get("rates", {}))
            for stack, part in parts.items()
            for entry in part["sublayers"]
            for layer in range(entry["layers"][0], entry["layers"][1] + 1)
        }
        final = Norm(**first["final"]) if first["final"] else None
        opening = Norm(**first["first"]) if "first" in first else None
        stream = _restored_stream(first["stream"]) if "stream" in first else PLAIN
        base, calibrate, name = first["init"], first["calibrate"], first["name"]
        constrain = tuple(_restored_constraint(one) for one in first.get("constrain", ()))
        same = _by_kind(table)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the formula in this configuration cannot be read ({error!r})") from error

    def found(site: Site) -> _Entry:
        stack = site.stack if site.stack in parts else next(iter(parts))
        kind = "attn" if site.kind == "cross" and (stack, "cross", 1) not in table else site.kind
        if (stack, kind, site.layer) not in table:
            raise ValueError(
                f"the formula in this configuration has no {kind} in layer {site.layer} of the {stack}: it is"
                f" {name!r} at another depth; formula=None takes {name!r} from the catalogue"
            )
        return table[stack, kind, site.layer]

    roles: dict[Role, None] = {role: None for _, gains, _ in table.values() for role in gains}
    gain = {role: lambda site, role=role: found(site)[1].get(role, 1.0) for role in roles}

    def factor(site: Site, of: str, role: Role) -> float:
        return float(found(site)[2].get(of, {}).get(role, 1.0))

    rated: dict[str, dict[Role, Law]] = {}
    for _, _, rates in table.values():
        for of, factors in rates.items():
            rated.setdefault(of, {}).update({role: partial(factor, of=of, role=role) for role in factors})
    return Placement(
        constrain=constrain,
        rates=Rates(**rated) if rated else AS_GIVEN,
        each=same or (lambda site: found(site)[0]),
        first=opening,
        final=final,
        stream=stream,
        init=Init(base=base, gain=gain),
        calibrate=calibrate,
    )


def parts_of(formula: Any, name: str) -> dict[Stack, Mapping[str, Any]]:
    """The parts of a configuration's formula that are of the placement `name`.

    Raises:
        ValueError: it is no formula.
    """
    parts: Mapping[Any, Any] = formula if isinstance(formula, Mapping) else {"formula": formula}
    for stack, part in parts.items():
        if not isinstance(part, Mapping) or "name" not in part:
            raise ValueError(f"the formula in this configuration cannot be read ({stack}: {part!r:.80})")
    return {stack: part for stack, part in parts.items() if part["name"] == name}


def _grouped(placement: Placement, every: list[Site]) -> list[dict[str, Any]]:
    """Sites of one kind."""

    def content(site: Site) -> dict[str, Any]:
        residual, gains = placement.at(site), placement.init.at(site)
        gains = {role: gain for role, gain in gains.items() if (site.kind == "ffn") == (role in ("ffn_in", "ffn_out"))}
        changed = {f.name: getattr(residual, f.name) for f in fields(Residual)}
        plain = {name: _plain(value) for name, value in changed.items() if value != getattr(Residual, name)}
        rates = _rates(placement, site)
        return plain | ({"init": gains} if gains else {}) | ({"rates": rates} if rates else {})

    found = []
    for same, group in groupby(every, key=content):
        layers = [site.layer for site in group]
        found.append({"kind": every[0].kind, "layers": [layers[0], layers[-1]], **same})
    return found


def _rates(placement: Placement, site: Site) -> dict[str, dict[str, float]]:
    """What is not 1 of the factors on learning rate, eps and decay at a site, by role."""
    found: dict[str, dict[str, float]] = {}
    for of in fields(Rates):
        for role in getattr(placement.rates, of.name):
            factor = dict(zip([f.name for f in fields(Rates)], placement.rates.at(role, site), strict=True))[of.name]
            if factor != 1.0:
                found.setdefault(of.name, {})[role] = factor
    return found


def _restored_constraint(entry: Mapping[str, Any]) -> Constraint:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items() if name != "is"}
    return {"UnitNorm": UnitNorm, "ClipLogits": ClipLogits}[entry["is"]](**values)


_ALWAYS: dict[type, tuple[str, ...]] = {  # fields that are written even where they have their default
    Norm: ("kind",),
    Learned: ("init", "shape"),
    HeadScale: ("reads",),
    ProjectionNorm: ("of", "over", "norm"),
    Coupled: ("by",),
    Gate: ("per",),
    ClipLogits: ("threshold",),
}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    written = _ALWAYS.get(type(value), ())
    of = {f.name: (getattr(value, f.name), f.default) for f in fields(value)}
    return {name: _plain(one) for name, (one, default) in of.items() if name in written or one != default}


def _residual(entry: Mapping[str, Any]) -> Residual:
    values = {name: value for name, value in entry.items() if name not in ("kind", "layers", "init", "rates")}
    for name, value in values.items():
        if name in SLOTS:
            values[name] = Norm(**value)
        elif name == "projections":
            values[name] = ProjectionNorm(**{**value, "of": tuple(value["of"]), "norm": Norm(**value["norm"])})
        elif isinstance(value, Mapping):
            made: dict[str, type] = {"head_scale": HeadScale, "gate": Gate}
            values[name] = made.get(name, Coupled if "by" in value and "init" not in value else Learned)(**value)
    return Residual(**values)


def _stream(stream: Stream, every: list[Site]) -> dict[str, Any]:
    values = {f.name: getattr(stream, f.name) for f in fields(stream)}
    of_layers = [site for site in every if site.kind == "attn"]
    numbers = {name: [float(law(s)) for s in of_layers] if callable(law) else law for name, law in values.items()}
    return {"is": type(stream).__name__, **numbers}


def _restored_stream(entry: Mapping[str, Any]) -> Stream:
    values = {name: _by_layer(value) if isinstance(value, list) else value for name, value in entry.items()}
    known = {made.__name__: made for made in reversed(Stream.__subclasses__())}  # ours were there first
    if (made := known.get(values.pop("is"))) is None:
        raise ValueError(f"there is no stream {entry['is']!r}; import the module that has it")
    return made(**values)


def _by_layer(values: list[float]) -> Any:
    return lambda site: values[site.layer - 1]


def _by_kind(table: Mapping[tuple[Stack, Kind, int], _Entry]) -> ByKind | None:
    """The residuals by kind, where all sites of a kind agree."""
    kinds: dict[Kind, list[Residual]] = {}
    for (_, kind, _), (residual, _, _) in table.items():
        kinds.setdefault(kind, []).append(residual)
    if any(one != of[0] for of in kinds.values() for one in of):
        return None
    return ByKind(**{kind: of[0] for kind, of in kinds.items()})
