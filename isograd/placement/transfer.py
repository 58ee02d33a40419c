"""Rules that carry settings from one size of a model to another, and placements that have them in their names.

    pre-ln@completep-12          pre-ln tuned at 12 layers: its branch times 12/L, and what else CompleteP asks for
    pre-ln@depth-mup-12          the same with sqrt(12/L)
    pre-ln@completep-12@mup-4    and four times as wide as where it was tuned
    deepnorm@fixed-12            its constants as they are at 12 layers, whatever the depth: the negative control

At the size where it was tuned each is the placement itself. Over depth, c = (B/L)^a with B the layers there:

| setting | factor | |
| --- | --- | --- |
| branch | c | a = 1 CompleteP (Dey et al. 2025), a = 1/2 depth-muP (Yang et al. 2023) |
| init | that of B layers | where it falls with depth, the branch factor takes its place |
| learning rate in layers | (B/L)^(1 - a) | of matrices, biases and norms |
| eps in layers | c | the gradients there are multiplied by c |

Where a stream writes by its own maps, the factor c on a branch f is said by W_O and W_2: init and learning rate times
c, weight decay over c, eps as it was, which is the same to Adam.

Over width, m times as wide (muP, Yang et al. 2022; with eps and decay as in CompleteP's code), heads of one size:

| setting | factor | letters after m |
| --- | --- | --- |
| std of matrices in layers | m^(-1/2) | X: the init scheme has it already |
| learning rate of these | 1/m | not of biases and norms |
| weight decay of these | m | |
| eps of these, and of tables and head | 1/m | |
| logits | 1/m, on the final norm's output | U: the head is not tied: on its init and learning rate |
| token table | | E: it is scaled by sqrt(d): std (without X) and learning rate m^(-1/2), logits only m^(-1/2) |

No registration is needed: a name says all, so a saved model loads anywhere.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from isograd.errors import UnknownPlacement
from isograd.placement.formula import Init, Learned, Norm, Placement, Rates, Residual, Role
from isograd.placement.laws import Law, Site

MATRICES: tuple[Role, ...] = ("query", "key", "value", "attn_out", "ffn_in", "ffn_out", "dense")
IN_LAYERS: tuple[Role, ...] = (*MATRICES, "norm", "coefficient", "bias")
OUTS: tuple[Role, ...] = ("attn_out", "ffn_out")
_NAME = re.compile(r"(?P<base>[^@]+)(?P<rules>(?:@[^@]+)+)")
_DEPTH = re.compile(r"(?P<rule>completep|depth-mup|fixed)-(?P<layers>[1-9]\d*)")
_WIDTH = re.compile(r"mup-(?P<times>\d+(?:\.\d+)?)(?P<letters>X?E?U?)")


@dataclass(frozen=True, kw_only=True)
class DepthRule:
    """A power law over depth: branch (B/L)^a, learning rate in layers (B/L)^(1 - a), eps in layers (B/L)^a."""

    power: float
    about: str
    paper: str


DEPTH_RULES: dict[str, DepthRule] = {
    "completep": DepthRule(
        power=1.0,
        about="all branches together move the stream as far at any depth, and each learns non-linear features",
        paper="Dey et al. 2025, arXiv 2505.01618, a = 1",
    ),
    "depth-mup": DepthRule(
        power=0.5,
        about="branches add up like independent ones, their updates like one another",
        paper="Yang et al. 2023, arXiv 2310.02244",
    ),
}


@dataclass(frozen=True)
class Ratio:
    """(base / L)^power, L the layers of the stack: a law. As all below a class, since a worker is sent placements."""

    base: int
    power: float

    def __post_init__(self) -> None:
        power = "" if self.power == 1 else "^(1/2)" if self.power == 0.5 else f"^{self.power:g}"
        object.__setattr__(self, "__doc__", f"({self.base}/L){power}")

    def __call__(self, site: Site) -> float:
        return (self.base / site.layers) ** self.power


@dataclass(frozen=True)
class Product:
    """The product of two factors."""

    one: float | Law
    other: float | Law

    def __post_init__(self) -> None:
        said = (_said(one) for one in (self.one, self.other))
        object.__setattr__(self, "__doc__", " times ".join(said))

    def __call__(self, site: Site) -> float:
        return math.prod(float(one(site)) if callable(one) else float(one) for one in (self.one, self.other))


@dataclass(frozen=True)
class AtDepth:
    """A law as it is at `base` layers, whatever the depth."""

    law: Law
    base: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", f"{_said(self.law)} at L = {self.base}")

    def __call__(self, site: Site) -> float:
        return self.law(there(site, self.base))


@dataclass(frozen=True)
class Scaled:
    """The residuals of a placement, their branches times a factor."""

    placement: Placement
    factor: Law

    def __call__(self, site: Site) -> Residual:
        residual = self.placement.of(site)
        assert not isinstance(residual.scale, Learned)
        return replace(residual, scale=_product(residual.scale, self.factor))


@dataclass(frozen=True)
class Fixed:
    """The residuals of a placement as they are at `base` layers."""

    placement: Placement
    base: int

    def __call__(self, site: Site) -> Residual:
        return self.placement.at(there(site, self.base))


def there(site: Site, base: int) -> Site:
    """The site of a stack of `base` layers that stands where this one does, as far as it reaches."""
    each = site.slots // site.layers
    slots = each * base
    return replace(site, layers=base, slots=slots, layer=min(site.layer, base), slot=min(site.slot, slots))


def _said(value: float | Law) -> str:
    doc = (value.__doc__ or "a number per site").splitlines()[0].rstrip(".") if callable(value) else ""
    return doc or f"{value:g}"


def transferred(name: str, get: Callable[[str], Placement]) -> Placement | None:
    """The placement that a name with rules says, None for a name without.

    Args:
        get: the placement of a name without rules.

    Raises:
        UnknownPlacement: no such rule, or one that this placement does not take.
    """
    said = _NAME.fullmatch(name)
    if said is None:
        return None
    placement, seen = get(said["base"]), set()
    for rule in said["rules"][1:].split("@"):
        depth, width = _DEPTH.fullmatch(rule), _WIDTH.fullmatch(rule)
        if depth is None and (width is None or float(width["times"]) == 0):
            raise UnknownPlacement(
                f"{name!r}: no rule {rule!r}; expected {', '.join(DEPTH_RULES)} or fixed with the layers where it was"
                " tuned (@completep-12), or mup with the factor on the width (@mup-4)"
            )
        kind = "width" if depth is None else "depth"
        if depth and "width" in seen:
            raise UnknownPlacement(f"{name!r}: write the rule over depth first")
        if kind in seen:
            raise UnknownPlacement(f"{name!r} has two rules over {kind}; leave one of them out")
        seen.add(kind)
        try:
            if width:
                placement = over_width(placement, float(width["times"]), width["letters"])
            elif depth:
                base = int(depth["layers"])
                own = depth["rule"] == "fixed"
                placement = fixed(placement, base) if own else over_depth(placement, depth["rule"], base)
        except ValueError as error:
            raise UnknownPlacement(f"{name!r}: {error}") from error
    return replace(placement, group="", about=f"{said['base']} with settings carried over: {said['rules'][1:]}")


def over_depth(placement: Placement, rule: str, base: int) -> Placement:
    """The placement with a rule of `DEPTH_RULES`, as it is at `base` layers.

    Raises:
        ValueError: the rule does not speak of this placement; the message says why.
    """
    if (why := refused_over_depth(placement)) is not None:
        raise ValueError(f"{rule} {why}")
    power, init = DEPTH_RULES[rule].power, _gains_at(placement.init, base)
    branch, rate = Ratio(base, power), Ratio(base, 1 - power)
    if placement.stream.adds:
        rates = Rates(lr=dict.fromkeys(IN_LAYERS, rate) if power != 1 else {}, eps=dict.fromkeys(IN_LAYERS, branch))
        return replace(placement, each=Scaled(placement, branch), init=init, rates=_times(placement.rates, rates))
    others = tuple(role for role in IN_LAYERS if role not in OUTS and role != "bias")  # a bias goes with its matrix
    lr: dict[Role, Law] = dict.fromkeys(OUTS, Ratio(base, 1.0))  # (B/L)^a (B/L)^(1 - a)
    if power != 1:
        lr |= dict.fromkeys(others, rate)
    rates = Rates(lr=lr, eps=dict.fromkeys(others, branch), decay=dict.fromkeys(OUTS, Ratio(base, -power)))
    gains: dict[Role, float | Law] = dict.fromkeys(OUTS, branch)
    return replace(placement, init=_gained(init, gains), rates=_times(placement.rates, rates))


def refused_over_depth(placement: Placement) -> str | None:
    """Why a power law over depth does not speak of a placement; None where it does."""
    for site in _EXAMPLES:
        residual = placement.of(site)
        if residual.post is not None or residual.pre is None or residual.skip != 1.0:
            return "is for x + f(norm(x)): here the sublayer is another one, whose depth its own constants answer for"
        if isinstance(residual.scale, Learned):
            return "sets the factor on the branch, which is trained here"
        if residual.out is not None and not placement.stream.adds:
            return "has no place to stand: a norm takes back what W_O and W_2 are multiplied by"
    if any(placement.at(site) != placement.at(replace(site, layers=8, slots=16)) for site in _EXAMPLES):
        return "is for branches without a law of depth, and this one has its own"
    if placement.rates.lr or placement.rates.eps:
        return "would come on top of the placement's own rule over depth"
    return None


_EXAMPLES = [Site(kind=k, layer=n, layers=4, slot=2 * n, slots=8) for n in (1, 4) for k in ("attn", "ffn")]


def over_width(placement: Placement, times: float, letters: str = "") -> Placement:
    """The placement `times` as wide as where it was tuned, under muP; the letters say what of the model it depends on.

    Raises:
        ValueError: the placement has nothing that could carry the factor on the logits.
    """
    fan_in, scaled, untied = (letter in letters for letter in "XEU")
    if not untied and (placement.final is None or placement.final.kind == "none" or placement.final.scale == "root"):
        raise ValueError("muP divides the logits, and without a final norm a tied head cannot: untie it, letter U")
    if not placement.stream.adds and any(placement.rates.lr.get(role) for role in OUTS):
        raise ValueError(
            "over depth and width at once, W_O's biases would need a rate of their own here: one at a time"
        )
    root = times**-0.5
    gains: dict[Role, float | Law] = {} if fan_in else dict.fromkeys(MATRICES, root)
    lr: dict[Role, float | Law] = {**dict.fromkeys(MATRICES, 1 / times), "bias": 1.0}
    eps: dict[Role, float | Law] = dict.fromkeys((*MATRICES, "embed", "head", "bias"), 1 / times)
    if scaled:
        gains |= {} if fan_in else {"embed": root}
        lr["embed"] = root
        eps["embed"] = times**-0.5
    logits = root if scaled and not untied else 1 / times
    final = placement.final
    if untied:
        gains["head"] = root if fan_in else 1 / times
        lr["head"], eps["head"] = 1 / times, 1.0
    elif final is not None:
        final = replace(final, scale=_product(_number(final), logits))
    rates = Rates(lr=lr, eps=eps, decay=dict.fromkeys(MATRICES, times))
    return replace(placement, final=final, init=_gained(placement.init, gains), rates=_times(placement.rates, rates))


def fixed(placement: Placement, base: int) -> Placement:
    """The placement with every constant that reads the depth read at `base` layers: the constants of another model."""
    return replace(placement, each=Fixed(placement, base), init=_gains_at(placement.init, base))


def _gains_at(init: Init, base: int) -> Init:
    """The init with its laws read at `base` layers: a rule over depth has said what becomes of the branch."""
    return Init(base=init.base, gain={r: AtDepth(g, base) if callable(g) else g for r, g in init.gain.items()})


def _gained(init: Init, gains: Mapping[Role, float | Law]) -> Init:
    return Init(base=init.base, gain=_both(init.gain, gains))


def _times(own: Rates, rates: Rates) -> Rates:
    return Rates(lr=_both(own.lr, rates.lr), eps=_both(own.eps, rates.eps), decay=_both(own.decay, rates.decay))


def _both(own: Mapping[Role, float | Law], more: Mapping[Role, float | Law]) -> dict[Role, float | Law]:
    return {
        role: _product(own.get(role, 1.0), more.get(role, 1.0)) for role in (*own, *(r for r in more if r not in own))
    }


def _product(a: float | Law, b: float | Law) -> float | Law:
    if not callable(a) and not callable(b):
        return a * b
    if a == 1.0:
        return b
    if b == 1.0:
        return a
    return Product(a, b)


def _number(norm: Norm) -> float | Law:
    assert not isinstance(norm.scale, str)
    return norm.scale
