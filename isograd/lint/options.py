"""Rules about what a model is given beside its layers: its configuration, and the optimizer's weight decay."""

import copy
import logging
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule
from isograd.models import IsogradPreTrainedModel
from isograd.trace.record import answer, arguments, is_large

SWITCHES = re.compile(r"norm|prenorm|rezero|layer_?scale|head_?scale|residual_scal|resid_scal|scale_")


@rule(Phase.OPTIMIZER, "gains-decayed")
def decay(checked: CheckedModel) -> Iterator[Finding]:
    """Norm weights and coefficients that the weight decay of transformers' Trainer would pull to zero."""
    model = checked.model
    decayed = set(Trainer.get_decay_parameter_names(None, model))  # reads nothing of the Trainer
    wrong = [name for name in (*checked.norm_weights, *checked.coefficients) if name in decayed]
    wrong.sort(key=list(checked.parameters).index)
    if wrong and not isinstance(model, IsogradPreTrainedModel):  # isograd train decides by role
        many = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield Finding(
            code="gains-decayed",
            severity="info",
            address=wrong[0],
            measured=float(len(wrong)),
            message=f"transformers' Trainer would apply weight decay to this norm weight or coefficient{many}: it"
            " decides by name",
            remedy="pass the optimizer two parameter groups: matrices with weight decay, the rest without",
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
        if tried and not _matters(checked, model, name, not value):
            yield Finding(
                code="option-unused",
                severity="warning" if value or getattr(type(model.config)(), name, value) != value else "info",
                address=f"config.{name}",
                measured=float(value),
                message=f"{name}={value} and {name}={not value} make the same model: nothing reads this option",
                remedy="do not rely on it: implement it, or remove it from the configuration",
            )


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
