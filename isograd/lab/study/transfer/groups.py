"""Parameter groups of any model's optimizer, by rules over depth and width; roles are found by tracing the model.

    groups = isograd.transfer.parameter_groups(model, lr=1e-3, depth=(12, 96), weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))

A group has `params`, `lr`, `eps`, `weight_decay`, and for people `roles` and `names`. Two forms of the branch factor:

| | branch factor c in forward | none: W_O and W_2 say it, c in their init |
| --- | --- | --- |
| W_O, W_2 and their biases | rate c', eps c | rate c' c, eps 1, decay over c |
| all else in layers | rate c', eps c | the same |

with c = (B/L)^a and c' = (B/L)^(1 - a). Which of the two a model has is measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import nn

from isograd.errors import ModelError, RecipeError, hint
from isograd.lab.train.optim import Factors
from isograd.lint.checked_model import CheckedModel
from isograd.models import IsogradPreTrainedModel
from isograd.placement.formula import Role
from isograd.placement.transfer import DEPTH_RULES, OUTS, over_width
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import as_inputs, guess_inputs
from isograd.trace.record import unwrapped
from isograd.transformer.parameters import decayed

NEAR = 0.02  # of a measured branch factor


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What each parameter of a model does, and how deep its stack is.

    Attributes:
        of: name -> role; of a fused matrix that of its parts that is first; "" of what lies outside layers and is no
            table and no head (a final norm, positions).
        bias_of: name of a bias in layers -> role of its matrix.
        layers: of the deepest stack.
        branch: the factor on branches, as measured; None where sublayers differ or it is trained.
        pre: whether every sublayer is x + c f(norm(x)).
        tied: whether the head is the token table.
    """

    of: dict[str, Role | str]
    bias_of: dict[str, Role | str]
    layers: int
    branch: float | None
    pre: bool
    tied: bool


def roles_of(model: nn.Module, batch: Any = None) -> Roles:
    """The role of every parameter, by tracing one forward pass.

    Raises:
        ModelError: no sublayers were found.
        InputsError: no inputs given, and none that can be guessed.
    """
    model = unwrapped(model)
    inputs = guess_inputs(model) if batch is None else as_inputs(batch)
    anatomy = find_anatomy(model, inputs)
    if not anatomy.stacks:
        raise ModelError("no residual stack was found in this model; 'isograd check' says what was looked at")
    checked = CheckedModel(model, inputs, anatomy)
    found: dict[str, Role | str] = dict.fromkeys(checked.parameters, "")
    biases: dict[str, Role | str] = {}
    for sublayer in anatomy.sublayers:
        own = set(sublayer.parameters) | {n.weight for norms in sublayer.norms.values() for n in norms if n.weight}
        for name in own & found.keys():
            found[name] = _inside(name, checked)
        found |= {name: role.partition("+")[0] for name, role in sublayer.roles.items()}
        biases |= _biases(sublayer.roles, found)
    found |= {name: "embed" for name, by_ids in checked.tables.items() if by_ids}
    tied = checked.head is not None and found.get(checked.head) == "embed"
    if checked.head is not None and not tied:
        found[checked.head] = "head"
    factors = [s.scale.value / (s.skip.value or 1.0) for s in anatomy.sublayers]
    middle = median(factors)
    even = all(abs(f / middle - 1) < NEAR for f in factors) and not any(s.scale.learned for s in anatomy.sublayers)
    return Roles(
        of=found,
        bias_of=biases,
        layers=max(stack.layers for stack in anatomy.stacks),
        branch=middle if even else None,
        pre=all("pre" in s.norms and "post" not in s.norms for s in anatomy.sublayers),
        tied=tied,
    )


def _inside(name: str, checked: CheckedModel) -> Role:
    if name in checked.coefficients:
        return "coefficient"
    return "dense" if checked.parameters[name].ndim >= 2 else "norm"


def _biases(matrices: Mapping[str, str], found: Mapping[str, Any]) -> dict[str, Role | str]:
    """Biases stand beside their matrices: in one module, under the same name but for the word."""
    pairs = {name: name.replace("weight", "bias") for name in matrices}
    return {bias: matrices[name].partition("+")[0] for name, bias in pairs.items() if bias != name and bias in found}


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    depth: tuple[int, int] | None = None,
    width: tuple[int, int] | None = None,
    rule: str | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    batch: Any = None,
) -> list[dict[str, Any]]:
    """Groups for Adam or AdamW, with settings that were tuned on a smaller model.

    Matrices decay, nothing else does.

    Args:
        model: any `nn.Module` of the target's size; one of isograd's has its rules in its placement's name.
        lr, eps, weight_decay: the source's.
        depth, width: (source, target).
        rule: over depth, "completep" (the default) or "depth-mup".
        batch: what `forward` takes, where it cannot be guessed.

    Raises:
        RecipeError: options that contradict each other or the model.
        ModelError: no sublayers were found.
    """
    if isinstance(model, IsogradPreTrainedModel):
        if depth or width or rule:
            raise RecipeError(
                f"placement {model.config.placement!r} says its rules in its name, such as pre-ln@completep-12; leave"
                " depth, width and rule out"
            )
        rates = model.rates()
        return _grouped(model, lambda name: ("", rates.get(name, (1.0, 1.0, 1.0))), lr, eps, weight_decay)
    if depth is None and width is None:
        raise RecipeError("nothing to transfer: give depth=(source, target), width=(source, target), or both")
    if rule is not None and (depth is None or rule not in DEPTH_RULES):
        raise RecipeError(f"rule {rule!r}: {hint(rule, DEPTH_RULES)}, and depth=(source, target) with it")
    found = roles_of(model, batch)
    factors = dict.fromkeys(found.of, (1.0, 1.0, 1.0))
    if depth is not None:
        _over_depth(factors, found, depth, rule or "completep")
    if width is not None:
        _over_width(factors, found, width)

    def of(name: str) -> tuple[str, Factors]:
        return str((found.bias_of.get(name) and "bias") or found.of.get(name, "")), factors.get(name, (1.0, 1.0, 1.0))

    return _grouped(model, of, lr, eps, weight_decay)


def _over_depth(factors: dict[str, Factors], found: Roles, depth: tuple[int, int], rule: str) -> None:
    base, layers = depth
    if layers != found.layers:
        raise RecipeError(f"depth=({base}, {layers}): this model has {found.layers} layers")
    if not found.pre:
        raise RecipeError(
            f"{rule} is for x + f(norm(x)), and this model has other sublayers ('isograd check' lists them)"
        )
    power = DEPTH_RULES[rule].power
    branch, rate = (base / layers) ** power, (base / layers) ** (1 - power)
    in_forward = found.branch is not None and abs(found.branch / branch - 1) < NEAR
    if not in_forward and (found.branch is None or abs(found.branch - 1) > NEAR):
        raise RecipeError(
            f"the factor on branches is {'not one number' if found.branch is None else f'{found.branch:.3g}'} here:"
            f" {rule} expects {branch:.3g} in forward, or 1 with W_O and W_2 initialized {branch:.3g} times as large"
        )
    for name, role in found.of.items():
        if role in ("", "embed", "head"):
            continue
        says = found.bias_of.get(name, role) in OUTS and not in_forward
        one: Factors = (rate * branch, 1.0, 1 / branch) if says else (rate, branch, 1.0)
        factors[name] = _times(factors[name], one)


def _over_width(factors: dict[str, Factors], found: Roles, width: tuple[int, int]) -> None:
    from isograd.placement import get, sites

    times = width[1] / width[0]
    rates = over_width(get("pre-ln"), times, "" if found.tied else "U").rates
    site = sites(found.layers)[0]
    for name, role in found.of.items():
        if role:
            at: Any = "bias" if name in found.bias_of else role
            factors[name] = _times(factors[name], rates.at(at, site))


def _times(one: Factors, other: Factors) -> Factors:
    return one[0] * other[0], one[1] * other[1], one[2] * other[2]


def _grouped(model: nn.Module, of: Any, lr: float, eps: float, weight_decay: float) -> list[dict[str, Any]]:
    """One group for each set of factors and decay, those at the source's rate first."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decays = set(decayed(model)[0])
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in named.items():
        role, (on_lr, on_eps, on_decay) = of(name)
        decay = weight_decay * on_decay if name in decays else 0.0
        key = (on_lr != 1.0, on_lr, on_eps, decay)
        settings = {"lr": lr * on_lr, "eps": eps * on_eps, "weight_decay": decay}
        group = groups.setdefault(key, {"params": [], "names": [], "roles": set(), **settings})
        group["params"].append(parameter)
        group["names"].append(name)
        group["roles"] |= {role} - {""}
    return [{**groups[key], "roles": sorted(groups[key]["roles"])} for key in sorted(groups)]
