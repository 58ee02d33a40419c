"""Norms put in, taken out and replaced: what is new is fitted by least squares on what the old model computes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from isograd.convert.graft.found import GraftSubject
from isograd.convert.graft.moves import How, Moved, one_of
from isograd.convert.graft.ours import ours, placed, residuals_of, state_of
from isograd.convert.graft.text import Text
from isograd.errors import GraftError
from isograd.models import IsogradPreTrainedModel
from isograd.placement import Norm, Residual, Site
from isograd.transformer.attention import Attention
from isograd.transformer.sublayer import Sublayer

_MOST = 2048  # tokens that are fitted on
_SLOPES = torch.logspace(-2, 1, 61, dtype=torch.float64)  # of tanh, times the input's root mean square


def placement(subject: GraftSubject, value: str, how: How) -> Moved:
    """norms on what branches write; pre-ln: from Post-LN (measured, ours)

    A new norm's weight and bias are the least squares of u against n(u), channel by channel. From Post-LN to Pre-LN
    each norm moves to the branches that read it, and a branch, which is added to a normalized sum, is multiplied by the
    size that the plain sum has there.
    """
    one_of(value, "placement", "sandwich", "peri-ln", "pre-ln")
    model = ours(subject.model)
    text = how.needed(f"placement={value}")
    return _to_pre(model, text) if value == "pre-ln" else _with_out_norms(model, text, value)


def qk_norm(subject: GraftSubject, value: str, how: How) -> Moved:
    """norms on queries and keys become constants in W_Q, W_K (measured, ours)"""
    one_of(value, "qk-norm", "removed")
    model = ours(subject.model)
    text = how.needed("qk-norm=removed")
    state = state_of(model)
    found = {name: m for name, m in model.named_modules() if isinstance(m, Attention)}
    sides = [(n, m, role) for n, m in found.items() for role in ("query", "key") if _is(getattr(m, f"{role}_norm"))]
    if not sides:
        raise GraftError("there are no norms on queries and keys")
    written = captured(model, {f"{n}.{role}": getattr(m, role) for n, m, role in sides}, text, "output")
    for name, module, role in sides:
        q, norm = written[f"{name}.{role}"], getattr(module, f"{role}_norm")
        heads = q.unflatten(-1, (-1, module.head_size)) if module.norm_per_head else q
        with torch.no_grad():
            normed = norm.double()(heads).reshape(q.shape)
        weight, bias = _line(q, normed, offset=f"{name}.{role}.bias" in state)
        at = f"{name}.{role}"
        state[f"{at}.weight"] = (state[f"{at}.weight"].double() * weight[:, None]).to(model.dtype)
        if f"{at}.bias" in state:
            state[f"{at}.bias"] = (state[f"{at}.bias"].double() * weight + bias).to(model.dtype)
        for leaf in ("weight", "bias"):
            state.pop(f"{at}_norm.{leaf}", None)
        norm.to(model.dtype)

    def rule(site: Site, before: Residual) -> Residual:
        inside = before.projections
        left = tuple(role for role in inside.of if role not in ("query", "key")) if inside else ()
        return replace(before, projections=replace(inside, of=left) if inside and left else None)

    made = placed(model, f"{model.config.placement}-no-qk-norm", rule, state)
    return Moved(model=made, said=f"{len(sides)} norms on queries and keys folded as constants", exact=False)


def to_dyt(subject: GraftSubject, how: How) -> Moved:
    """Every norm of the stream to weight * tanh(slope x) + bias, fitted to what the norm gave."""
    model = ours(subject.model)
    text = how.needed("norm=dyt")
    state = state_of(model)
    norms = {n: m for n, m in model.named_modules() if n.endswith((".pre", ".post", ".out")) and _is(m)}
    norms = {n: m for n, m in norms.items() if ".branch" not in n} | {"model.norm": model.get_submodule("model.norm")}
    norms = {n: m for n, m in norms.items() if _is(m) and not hasattr(m, "slope")}
    if not norms:
        raise GraftError("there is no norm to replace")
    read, gave = (captured(model, norms, text, side) for side in ("input", "output"))
    for name in norms:
        slope, weight, bias = _curve(read[name], gave[name])
        state |= {f"{name}.slope": slope.view(1), f"{name}.weight": weight, f"{name}.bias": bias}

    def curve(norm: Norm | None) -> Norm | None:
        return None if norm is None else Norm(kind="dyt")

    def rule(site: Site, before: Residual) -> Residual:
        return replace(before, pre=curve(before.pre), out=curve(before.out), post=curve(before.post))

    state = {n: v.to(model.dtype) for n, v in state.items()}
    final = curve(model.config.entry().final)
    made = placed(model, f"{model.config.placement}-dyt", rule, state, final=final)
    return Moved(model=made, said=f"{len(norms)} norms to tanh curves, fitted", exact=False)


@torch.no_grad()
def captured(model: nn.Module, modules: Mapping[str, nn.Module], text: Text, side: str) -> dict[str, Tensor]:
    """What modules read or write on the batches that are fitted on, in float64: (tokens, features)."""
    found: dict[str, list[Tensor]] = {name: [] for name in modules}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            value = args[0] if side == "input" else out[0] if isinstance(out, tuple) else out
            found[name].append(value.flatten(0, -2).double())

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        for batch in text.fit[: max(1, _MOST // text.fit[0]["input_ids"].numel())]:
            model.eval()(**batch)
    finally:
        for one in hooks:
            one.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def _with_out_norms(model: IsogradPreTrainedModel, text: Text, name: str) -> Moved:
    if not model.config.entry().stream.plain or any(r.out or r.post for r in residuals_of(model.config).values()):
        raise GraftError(f"placement={name}: a branch writes through a norm already, or the stream is not plain")
    branches = {n: m.branch for n, m in model.named_modules() if isinstance(m, Sublayer)}
    if name == "peri-ln":
        branches["model.first"] = model.get_submodule("model.embedding")
    wrote, state = captured(model, branches, text, "output"), state_of(model)
    with_bias = model.config.norm == "layernorm"
    for at, u in wrote.items():
        weight, bias = _line(_normed(u, model, with_bias), u, offset=with_bias)
        slot = at if at == "model.first" else f"{at}.out"
        state[f"{slot}.weight"] = weight.to(model.dtype)
        if with_bias:
            state[f"{slot}.bias"] = bias.to(model.dtype)
    more: dict[str, Any] = {"first": Norm()} if name == "peri-ln" else {}
    made = placed(model, name, lambda site, before: replace(before, out=Norm()), state, **more)
    return Moved(model=made, said=f"{len(wrote)} norms put in, fitted to what was written", exact=False)


def _to_pre(model: IsogradPreTrainedModel, text: Text) -> Moved:
    """y <- y + k f(norm(y)) for x <- norm(x + f(x)): the sum s is (y + k (u + b)) / k with k = std(y) / g, where g is
    the mean weight and b the bias of the norm before.
    """
    residuals = residuals_of(model.config)
    if not all(r.post and not r.pre and (r.skip, r.scale) == (1.0, 1.0) for r in residuals.values()):
        raise GraftError("placement=pre-ln: the model is not plain Post-LN")
    sublayers = {n: m for n, m in model.named_modules() if isinstance(m, Sublayer)}
    names, state = list(sublayers), state_of(model)
    sums = captured(model, {n: m.post for n, m in sublayers.items()}, text, "input")
    first = captured(model, {"": model.get_submodule("model.embedding")}, text, "output")[""]
    with_bias = model.config.norm == "layernorm"
    weight, bias = _line(_normed(first, model, with_bias), first, offset=with_bias)
    size = float(first.std(-1).mean())
    for name in names:
        post = {
            leaf: state.pop(f"{name}.post.{leaf}").double()
            for leaf in ("weight", "bias")
            if f"{name}.post.{leaf}" in state
        }
        state |= {f"{name}.pre.weight": weight} | ({f"{name}.pre.bias": bias} if with_bias else {})
        factor = size / float(weight.mean())
        out = f"{name}.branch.out"
        state[f"{out}.weight"] = state[f"{out}.weight"].double() * factor
        if f"{out}.bias" in state:
            state[f"{out}.bias"] = (state[f"{out}.bias"].double() + bias) * factor
        size = factor * float(sums[name].std(-1).mean())
        weight, bias = post["weight"], post.get("bias", torch.zeros_like(post["weight"]))
    state |= {"model.norm.weight": weight} | ({"model.norm.bias": bias} if with_bias else {})
    narrow = {n: v.to(model.dtype) for n, v in state.items()}

    def rule(site: Site, before: Residual) -> Residual:
        return replace(before, pre=before.post, post=None)

    made = placed(model, "pre-ln", rule, narrow, final=Norm())
    return Moved(model=made, said=f"{len(names)} norms to where branches read, sizes fitted", exact=False)


def _normed(u: Tensor, model: IsogradPreTrainedModel, centre: bool) -> Tensor:
    u = u - u.mean(-1, keepdim=True) if centre else u
    return u / (u.square().mean(-1, keepdim=True) + model.config.norm_eps).sqrt()


def _line(x: Tensor, y: Tensor, *, offset: bool) -> tuple[Tensor, Tensor]:
    """The least squares of y against weight x + bias, for each channel."""
    mean_x, mean_y = (t.mean(0) if offset else torch.zeros_like(t[0]) for t in (x, y))
    dx = x - mean_x
    weight = (dx * (y - mean_y)).sum(0) / dx.square().sum(0).clamp_min(1e-30)
    return weight, mean_y - weight * mean_x


def _curve(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slope, weight and bias of weight tanh(slope x) + bias for y: the best of many slopes, least squares for each."""

    def fit(slope: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
        z = torch.tanh(slope * x)
        weight, bias = _line(z, y, offset=True)
        return float((y - weight * z - bias).square().sum()), slope, weight, bias

    _, slope, weight, bias = min((fit(s / x.square().mean().sqrt()) for s in _SLOPES), key=lambda found: found[0])
    return slope, weight, bias


def _is(module: nn.Module) -> bool:
    return not isinstance(module, nn.Identity)
