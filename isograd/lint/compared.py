"""Two models compared: with another one of the same parts; with the same one, an option of its configuration turned."""

import copy
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule
from isograd.models import IsogradPreTrainedModel
from isograd.trace.record import answer, arguments, is_large

APART = 1.25  # times the other's size
SWITCHES = re.compile(r"norm|prenorm|rezero|layer_?scale|head_?scale|residual_scal|resid_scal|scale_")


@rule(Phase.INIT, "init-differs", "model-differs")
def differs(checked: CheckedModel) -> Iterator[Finding]:
    """Parameters that begin with another size than those of the same name in the other model; other placements."""
    other = checked.against
    if other is None:
        return
    mine, theirs = checked.parameters, other.parameters
    groups: dict[str, list[tuple[str, float]]] = {}
    for name in (n for n in mine if n in theirs):
        own, its = (p[name].float().square().mean().sqrt().item() for p in (mine, theirs))
        if max(own, its) > APART * min(own, its) + 1e-12:
            groups.setdefault(re.sub(r"\d+", "*", name), []).append((name, own / its if its else float("inf")))
    for pattern, found in groups.items():
        name, ratio = found[0]
        yield Finding(
            code="init-differs",
            severity="warning",
            address=name,
            measured=ratio,
            message=f"{pattern} is initialized {ratio:.3g} times as large as in the other model"
            f" ({many(len(found), 'parameter')})",
            remedy="initialize it as the other model does, or leave it out with --ignore init-differs",
        )
    unlike = [n for n in mine if n not in theirs] + [n for n in theirs if n not in mine]
    unlike += [n for n in mine if n in theirs and mine[n].shape != theirs[n].shape]
    if unlike:
        yield _structure(unlike[0], len(unlike), f"{many(len(unlike), 'parameter')} differ in name or shape")
    places, others = checked.anatomy.placements, other.anatomy.placements
    moved = [a for a in places if a in others and places[a] != others[a]]
    if moved:
        what = f"{places[moved[0]]} here, {others[moved[0]]} in the other model ({many(len(moved), 'sublayer')})"
        yield _structure(moved[0], len(moved), what)


def _structure(address: str, count: int, message: str) -> Finding:
    return Finding(
        code="model-differs",
        severity="warning",
        address=address,
        measured=float(count),
        message=message,
        remedy="compare the two classes at this address",
    )


@rule(Phase.DATA, "option-unused")
def inert(checked: CheckedModel) -> Iterator[Finding]:
    """Switches of the configuration that change nothing: the model is built again with each of them turned."""
    model = checked.model
    if not isinstance(model, PreTrainedModel) or is_large(model):
        return
    for name, value in sorted(vars(model.config).items()):
        biased = any("layer_norm" in o.name for o in checked.trace.operations)
        applies = name != "norm_bias" or biased or not isinstance(model, IsogradPreTrainedModel)  # of LayerNorms alone
        tried = applies and isinstance(value, bool) and SWITCHES.search(name) and name[0] != "_" and "fp32" not in name
        if not tried:
            continue
        with _reads(model.config, name) as reads:
            same = not _matters(checked, model, name, not value)
        if same:
            yield Finding(
                code="option-unused",
                severity="warning" if value or getattr(type(model.config)(), name, value) != value else "info",
                address=f"config.{name}",
                measured=float(value),
                message=f"{name}={value} and {name}={not value} make the same model: "
                + ("it is read, and no parameter or output changes" if reads else "nothing reads this option"),
                remedy="do not rely on it: implement it, or remove it from the configuration"
                + (", unless it acts on other inputs, or in training" if reads else ""),
            )


@contextmanager
def _reads(config: PretrainedConfig, name: str) -> Iterator[list[str]]:
    """What reads of an option are added to, of configurations of one class."""
    kind, found = type(config), list[str]()
    read = kind.__getattribute__

    def noted(self: Any, wanted: str) -> Any:
        if wanted == name:
            found.append(wanted)
        return read(self, wanted)

    with patch.object(kind, "__getattribute__", noted):
        yield found


def _matters(checked: CheckedModel, model: PreTrainedModel, name: str, value: bool) -> bool:
    """Whether the model of the other configuration has other parameters, or with the same ones gives other outputs."""
    config = copy.deepcopy(model.config)
    level = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    try:
        setattr(config, name, value)
        with torch.random.fork_rng():
            other: Any = type(model)(config)
        if _shapes(other) != _shapes(model):
            return True
        other.load_state_dict(checked.twin.state_dict())
        return not _same(checked.twin, other.float().eval(), checked.inputs)
    except Exception:  # a switch that cannot be turned is one that something reads
        return True
    finally:
        logging.getLogger("transformers").setLevel(level)


@torch.no_grad()
def _same(model: nn.Module, other: nn.Module, inputs: Any) -> bool:
    args, kwargs = arguments(inputs)
    a, b = (answer(m(*args, **kwargs)) for m in (model, other))
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and torch.equal(a, b)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in model.named_parameters()}
