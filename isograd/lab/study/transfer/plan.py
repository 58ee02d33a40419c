"""The settings of a deeper or wider model from those of a smaller one, by a rule: each with its reason.

Nothing is trained and no torch is loaded: rules are data of `isograd.placement.transfer`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isograd.errors import RecipeError, hint
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import Model, Run
from isograd.placement import Placement, Role, get, sites
from isograd.placement.formula import Learned, Residual
from isograd.placement.transfer import DEPTH_RULES, refused_over_depth

ADAM = ("adam", "adamw", "radam")
OWN, KEPT, CHANGE = "own", "kept", "output-change"
RULES = {  # of --rule, over depth
    **{name: rule.about for name, rule in DEPTH_RULES.items()},
    CHANGE: "the rate times sqrt(S(B)/S(L)), S the sum of the branches' shares: theory, for plain Pre- and Post-LN",
    KEPT: "all as it is: the negative control",
}
MEASURED = {  # arm and axis -> drift of the best rate, as docs/results/transfer.md has it
    ("pre-ln@completep", "depth"): ("1.5", "transfers"),
    ("pre-ln", "depth"): ("2.1", "does not transfer here"),
    ("deepnorm", "depth"): ("at least 1.5", "does not transfer here"),
    ("pre-ln", "width"): ("1.5", "does not transfer here"),
    ("pre-ln@mup", "width"): ("1.3", "transfers"),
}
_MUP = "Yang et al. 2022 (muP), arXiv 2203.03466"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting in the source and in the target, and why; `factor` None of what is no number."""

    name: str
    source: str
    target: str
    reason: str
    factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What becomes of a run in another size.

    Attributes:
        rule: over depth, a name of `RULES` or "own", the placement's own constants; None without a change of depth.
        sources: papers of the rules.
        cautions: what a user should know, a sentence each.
    """

    rule: str | None
    source: Run
    target: Run
    settings: tuple[Setting, ...]
    sources: tuple[str, ...]
    cautions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the target as a recipe has it."""
        rows = [vars(setting) for setting in self.settings]
        said = {"sources": list(self.sources), "cautions": list(self.cautions)}
        return {"rule": self.rule, "settings": rows, **said, "recipe": self.target.as_dict()}


def plan(run: Run, *, depth: int | None = None, width: int | None = None, rule: str | None = None) -> Plan:
    """The run at another depth, another width, or both, with what the rules change.

    Args:
        run: the source, tuned at its own size.
        depth: layers of the target; of an encoder-decoder of both stacks.
        width: of the target; heads keep their size.
        rule: over depth, a name of `RULES`; None takes the placement's own law, else CompleteP where it applies.

    Raises:
        RecipeError: no such rule, or none for this placement or optimizer; a size that the model cannot have.
    """
    model = _checked(run, depth, width, rule)
    name, chosen = model.placement, None
    base = model.layers
    if depth is not None:
        chosen, name = _over_depth(name, base, depth, rule)
    if width is not None:
        name = f"{name}@mup-{width / model.width:g}{_letters(model, get(name))}"
    change: dict[str, Any] = {"placement": name}
    if depth is not None:
        change |= {"layers": depth} | ({"encoder_layers": depth} if run.encoder_layers is not None else {})
    if width is not None:
        change |= _shape(model, width)
    content = run.as_dict() | {"name": None}
    content["model"] |= change
    if chosen == CHANGE:
        content["training"] |= {"lr": run.training.lr * _slower(get(name), base, depth or base, run)}
    target = run_from_dict(content)
    target.config()  # refuses what no model has, a rule that its placement does not take among it
    return Plan(
        rule=chosen,
        source=run,
        target=target,
        settings=tuple(_settings(run, target, chosen)),
        sources=tuple(_sources(get(model.placement), chosen, width)),
        cautions=(*_cautions(run, target, chosen), *_measured(model.placement, chosen, depth, width)),
    )


def _checked(run: Run, depth: int | None, width: int | None, rule: str | None) -> Model:
    model = run.model
    if not isinstance(model, Model):
        raise RecipeError(f"task={run.task} begins with a pre-trained model, whose size cannot be chosen")
    if depth is None and width is None:
        raise RecipeError("nothing to transfer to: give another depth or another width")
    if rule is not None and rule not in RULES:
        raise RecipeError(f"no rule {rule!r}; {hint(rule, RULES)}")
    if rule is not None and depth is None:
        raise RecipeError(f"rule {rule} is over depth, and the depth stays; over width there is one rule, muP")
    for name, new, old in (("depth", depth, model.layers), ("width", width, model.width)):
        if new is not None and new < 1:
            raise RecipeError(f"{name} {new}: at least 1")
        if new == old:
            raise RecipeError(f"{name} {new} is the recipe's own: nothing to transfer")
    if run.encoder_layers not in (None, model.layers) and depth is not None:
        raise RecipeError(
            f"encoder of {run.encoder_layers} and decoder of {model.layers} layers: a rule counts from one depth, so"
            " both need the same"
        )
    if run.training.optimizer not in ADAM and rule != KEPT:
        raise RecipeError(
            f"training.optimizer={run.training.optimizer}: the rules are for Adam ({', '.join(ADAM)}), whose step does"
            " not grow with the gradient"
        )
    return model


def _over_depth(name: str, base: int, depth: int, rule: str | None) -> tuple[str, str]:
    """The rule and the placement's new name."""
    placement = get(name)
    why = refused_over_depth(placement)
    if rule in DEPTH_RULES or (rule is None and why is None):
        chosen = rule or "completep"
        if why is not None:
            raise RecipeError(f"{name}: {chosen} {why}")
        plain, *rules = name.split("@")  # the rule over depth stands first
        return chosen, "@".join([plain, f"{chosen}-{base}", *rules])
    if rule == CHANGE and why is not None and not _post_only(placement):
        raise RecipeError(f"{name}: theory gives shares for plain Pre- and Post-LN; this one has constants of its own")
    if rule is None:
        return (OWN if reads_depth(placement, base, depth) else KEPT), name
    if rule == KEPT and reads_depth(placement, base, depth) and "@" not in name:
        return KEPT, f"{name}@fixed-{base}"
    return rule, name


def reads_depth(placement: Placement, base: int, depth: int) -> bool:
    """Whether any constant of the placement differs between two depths, or a profile sets it."""
    return bool(placement.calibrate) or _constants(placement, base) != _constants(placement, depth)


def _constants(placement: Placement, layers: int) -> list[Any]:
    site = sites(layers)[0]
    rates = [placement.rates.at(role, site) for role in _ROLES]
    return [placement.of(site).at(site), placement.init.at(site), rates]


_ROLES: tuple[Role, ...] = ("query", "attn_out", "ffn_out", "norm", "bias", "embed", "head")


def _post_only(placement: Placement) -> bool:
    residuals = [placement.of(site) for site in sites(2)]
    return all(r == Residual(post=r.post) for r in residuals) and placement.stream.adds and not placement.calibrate


def _slower(placement: Placement, base: int, depth: int, run: Run) -> float:
    return math.sqrt(_shares(placement, base, run) / _shares(placement, depth, run))


def _shares(placement: Placement, layers: int, run: Run) -> float:
    """S = sum of beta^2, a branch's share of its sum's variance, branches of variance 1 on a stream that begins at 1.

    Liu et al. 2020, theorem 2: the output's change has a variance of C times S. N/2 in Post-LN, about ln N in Pre-LN.
    """
    other = layers if run.encoder_layers is not None else 0
    variance, shares = 1.0, 0.0
    for site in sites(layers, "decoder", other):
        shares += 1 / (variance + 1)
        variance = 1.0 if placement.of(site).post is not None else variance + 1
    return shares


def _shape(model: Model, width: int) -> dict[str, Any]:
    heads, left = divmod(width * model.heads, model.width)
    if left or not heads:
        raise RecipeError(
            f"width {width}: muP keeps the size of a head, {model.width // model.heads} here, and {width} is no"
            " multiple of it"
        )
    shape: dict[str, Any] = {"width": width, "heads": heads}
    if model.ffn is not None:
        inner, left = divmod(width * model.ffn, model.width)
        if left or not inner:
            raise RecipeError(f"width {width}: model.ffn={model.ffn} grows with it, and would not be a whole number")
        shape["ffn"] = inner
    return shape


def _letters(model: Model, placement: Placement) -> str:
    """What muP's factors depend on: see `isograd.placement.transfer`."""
    scheme = model.init or placement.init.base or "xavier-uniform"
    if scheme == "unit":
        raise RecipeError(
            f"{model.placement}: its matrices are scaled back after each step; muP's rates are not for it"
        )
    fan_in = scheme != "normal"
    if fan_in and not model.scale_embedding:
        raise RecipeError(
            f"init {scheme} draws tables from N(0, 1/d), and model.scale_embedding=false leaves token vectors that"
            " shrink with the width: set it, or model.init=normal"
        )
    return "X" * fan_in + "E" * model.scale_embedding + "U" * (not model.tie_embeddings)


def _settings(source: Run, target: Run, rule: str | None) -> list[Setting]:
    """Shape first, then what the rules change, then what stays."""
    shapes = [(name, _has(source, key), _has(target, key), why) for name, key, why in _SHAPE]
    placements = (source.model.placement, target.model.placement)
    found = [
        Setting(
            name=name,
            source=str(old),
            target=str(new),
            reason=why,
            factor=new / old if isinstance(old, int) and isinstance(new, int) else None,
        )
        for name, old, new, why in [*shapes, ("placement", *placements, _CARRIES)]
        if old != new
    ]
    theirs, ours = _values(source), _values(target)
    always = {"learning rate, matrices in layers", "weight decay, matrices in layers", "warm-up"}
    always |= {"branch factor", "eps, matrices in layers"} if rule in DEPTH_RULES else set()
    always |= {"eps, matrices in layers"} if _wide(target) else set()
    for name, reason in _reasons(rule, _wide(target)).items():
        old, new = theirs.get(name, math.nan), ours.get(name, math.nan)
        if math.isnan(new) or (old == new and name not in always):
            continue
        why = reason if old != new else _STAYS.get(name, reason)
        factor = new / old if old else None
        found.append(Setting(name=name, source=f"{old:.4g}", target=f"{new:.4g}", reason=why, factor=factor))
    return found


_SHAPE = (
    ("layers", "layers", "as asked"),
    ("encoder layers", "encoder_layers", "as asked"),
    ("width", "width", "as asked"),
    ("heads", "heads", "heads keep their size, so 1/sqrt(d_head) needs no change"),
    ("feed-forward width", "ffn", "grows with the width"),
)
_CARRIES = "carries the factors below, so that a saved model has them too"
_STAYS = {
    "learning rate, matrices in layers": "the rule is made so that it stays",
    "weight decay, matrices in layers": "decay times rate is what acts, and the rate stays",
    "warm-up": "counts updates, and no rule changes how many there are",
}


def _has(run: Run, key: str) -> Any:
    return run.encoder_layers if key == "encoder_layers" else getattr(run.model, key, None)


def _wide(run: Run) -> bool:
    return "@mup-" in run.model.placement


def _values(run: Run) -> dict[str, float]:
    """What a run has of each setting that a rule speaks of; NaN of what is no number."""
    placement, t = get(run.model.placement), run.training
    site = sites(run.layers or 1, "decoder", run.encoder_layers or 0)[0]
    one, gains, final = placement.at(site), placement.init.at(site), placement.final
    found = {
        "branch factor": _number(one.scale),
        "skip factor": _number(one.skip),
        "init of W_V, W_1, factor": gains.get("value", 1.0),
        "init of W_O, W_2, factor": gains.get("attn_out", 1.0),
        "init of W_Q, W_K, factor": gains.get("query", 1.0),
        "init of the token table, factor": gains.get("embed", 1.0),
        "init of the head, factor": gains.get("head", 1.0),
        "factor on the logits": 1.0 if final is None else _number(final.at(site).scale),
        "warm-up": t.warmup,
    }
    for role, name in _OF_ROLE.items():
        lr, eps, decay = placement.rates.at(role, site)
        found |= {f"learning rate, {name}": t.lr * lr, f"eps, {name}": t.eps * eps}
        found |= {f"weight decay, {name}": t.weight_decay * decay}
    found["eps, tables and head"] = found["eps, token table"]
    matrices, out = (_OF_ROLE[role] for role in ("query", "attn_out"))
    for kind in ("learning rate", "weight decay"):
        if found[f"{kind}, {out}"] == found[f"{kind}, {matrices}"]:
            del found[f"{kind}, {out}"]
    return found


_OF_ROLE: dict[Role, str] = {
    "query": "matrices in layers",
    "attn_out": "W_O and W_2",
    "norm": "biases and norms",
    "embed": "token table",
    "head": "head",
}


def _number(value: Any) -> float:
    value = value.init if isinstance(value, Learned) else value
    return float(value) if isinstance(value, int | float) else math.nan


def _reasons(rule: str | None, wide: bool) -> dict[str, str]:
    """Each setting that a rule speaks of, in the order in which they are shown."""
    branch = {
        "completep": "L branches of size 1/L: the stream moves as far at any depth (Dey et al. 2025, eq. 4, a = 1)",
        "depth-mup": "L independent branches of size 1/sqrt(L) (Yang et al. 2023)",
    }.get(rule or "", "the placement's own law")
    std = "sums over m times as many inputs: std times m^(-1/2)"
    gradient = "gradients there are times this factor, and eps stands beside their size"
    lr = {
        "depth-mup": "updates of all layers point the same way and add up: 1/sqrt(L) more",
        CHANGE: "keeps the output's change: variance C S lr^2, S the sum of branches' shares (Liu et al. 2020, thm 2)",
    }.get(rule or "", "a step moves each of m times as many inputs the same way (muP)" if wide else "the rule's")
    return {
        "branch factor": branch,
        "skip factor": branch,
        "init of W_V, W_1, factor": std if wide else branch,
        "init of W_O, W_2, factor": std if wide else branch,
        "init of W_Q, W_K, factor": std,
        "init of the token table, factor": "token vectors are scaled by sqrt(d): their size stays",
        "init of the head, factor": "logits over m: they begin small and grow by learning",
        "factor on the logits": "d products add up one way once they have learned: over m (muP)",
        "learning rate, matrices in layers": lr,
        "learning rate, W_O and W_2": "this stream has no branch factor, so W_O and W_2 say it: init and rate both",
        "learning rate, biases and norms": lr,
        "learning rate, token table": "as its init: what is scaled by sqrt(d) moves as much",
        "learning rate, head": "as its init",
        "eps, matrices in layers": gradient,
        "eps, tables and head": gradient,
        "weight decay, matrices in layers": "decay times rate is what acts, and the rate fell",
        "weight decay, W_O and W_2": "decay times rate stays",
        "warm-up": "",
    }


def _sources(placement: Placement, rule: str | None, width: int | None) -> list[str]:
    found = []
    if rule in DEPTH_RULES:
        found.append(f"over depth: {DEPTH_RULES[rule].paper}")
    elif rule == OWN:
        found.append(f"over depth: the placement's own constants, {placement.paper}")
    elif rule == CHANGE:
        found.append("over depth: Liu et al. 2020, arXiv 2004.08249, theorem 2")
    if width is not None:
        found.append(f"over width: {_MUP}; eps and decay: EleutherAI/nanoGPT-mup, branch completep")
    return found


def _cautions(source: Run, target: Run, rule: str | None) -> list[str]:
    found, placement = [], get(source.model.placement)
    if rule == KEPT:
        found.append(f"no rule over depth for {source.model.placement}: its settings are kept, its best rate may not")
        if _post_only(placement):
            found.append(
                "in Post-LN the output's change grows with sqrt(N) (--rule output-change): ADMIN, DeepNorm do not"
            )
    if rule == OWN and placement.calibrate:
        found.append("skips are set by a profile of the first batch, at the new depth anew: 'isograd train' makes it")
    if _wide(target) and source.training.weight_decay and source.training.optimizer == "adam":
        found.append("decay times m is for AdamW's decoupled decay; training.optimizer=adam adds it to the gradient")
    if target.training.steps == source.training.steps:
        found.append("batch and updates are the source's: no rule here carries a rate to longer training")
    return found


def _measured(placement: str, rule: str | None, depth: int | None, width: int | None) -> list[str]:
    """What our own small study found of the rule."""
    plain = placement.partition("@")[0]
    arms = [(f"{plain}@{rule}" if rule in DEPTH_RULES else plain, "depth")] if depth is not None else []
    arms += [(f"{plain}@mup", "width")] if width is not None else []
    return [
        f"measured on small models over {axis} (docs/results/transfer.md): {arm}: drift {drift}x, {verdict}"
        for arm, axis in arms
        if rule != CHANGE and (arm, axis) in MEASURED
        for drift, verdict in [MEASURED[arm, axis]]
    ]


def parse_size(text: str, own: int, name: str) -> int:
    """The target of "12:96" or of "96".

    Raises:
        RecipeError: no such numbers, or a source that is not the recipe's.

    >>> parse_size("12:96", 12, "depth"), parse_size("96", 12, "depth")
    (96, 96)
    """
    parts: Sequence[str] = text.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise RecipeError(f"--{name} {text}: expected FROM:TO, such as {own}:{2 * own}")
    if own and len(parts) == 2 and int(parts[0]) != own:
        raise RecipeError(f"--{name} {text}: the recipe has {name} {own}; write {own}:{parts[1]}")
    return int(parts[-1])


def with_target(content: dict[str, Any], made: Plan) -> dict[str, Any]:
    """A recipe's content with what the plan changes, all else as it was written."""
    old, new = made.source.as_dict(), made.target.as_dict()
    name = content.get("name") or "transfer"
    sections = {
        key: {**(content.get(key) or {}), **{k: v for k, v in new[key].items() if v != old[key].get(k)}}
        for key in ("model", "training")
    }
    size = f"{made.target.layers}l" + (f"-{_has(made.target, 'width')}w" if _wider(made) else "")
    return {**content, "name": f"{name}-{size}", **{key: section for key, section in sections.items() if section}}


def _wider(made: Plan) -> bool:
    return _has(made.source, "width") != _has(made.target, "width")
