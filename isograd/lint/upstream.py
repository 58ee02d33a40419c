"""Errors of an unchanged class of transformers that a new model of it has too: not the user's to mend."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from isograd.lint.findings import Finding
from isograd.trace.record import is_large


def with_upstream(
    model: nn.Module, found: Sequence[Finding], check: Callable[[nn.Module], Sequence[Finding]]
) -> list[Finding]:
    """The findings; errors that a new model of the same class and sizes, with all other settings at their defaults,
    has at the same places are warnings that say so.

    Args:
        check: finds what is wrong with such a model.
    """
    if not any(finding.severity == "error" for finding in found) or not _is_stock(model) or is_large(model):
        return list(found)
    assert isinstance(model, PreTrainedModel)
    try:
        with torch.random.fork_rng(devices=[]):
            theirs = {(one.code, one.address) for one in check(type(model)(_usual(model.config)).eval())}
    except Exception:  # a class that cannot be built so says nothing
        return list(found)
    name = f"{type(model).__name__} of transformers {version('transformers')}"
    return [
        replace(
            one,
            severity="warning",
            message=f"{one.message}; every new {name} has this: the cause is upstream, not in your code",
        )
        if one.severity == "error" and (one.code, one.address) in theirs
        else one
        for one in found
    ]


def _is_stock(model: nn.Module) -> bool:
    """Whether a model is of transformers' and torch's classes alone, none with a forward pass of its own."""
    return isinstance(model, PreTrainedModel) and all(
        type(module).__module__.startswith(("transformers.", "torch.nn."))
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
        for module in model.modules()
    )


def _usual(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration with its sizes, and with the defaults of its class for switches, factors and names."""
    made, usual = copy.deepcopy(config), type(config)()
    for name, default in vars(usual).items():
        own: Any = getattr(made, name, None)
        if isinstance(own, PretrainedConfig):
            setattr(made, name, _usual(own))
        elif isinstance(default, bool | float | str) and name[0] != "_" and own != default:
            setattr(made, name, default)
    return made
