"""The depth profile of any Transformer: what each sublayer adds, hands on and learns from, at one batch.

    report = profile(model)                       # inputs are guessed, or given: profile(model, {"input_ids": ids})
    report.rows[0].gradient_norm, report.loss, report.as_dict()

Forward quantities are read from one recorded pass in float32, gradients from one backward pass, amplification from
two passes in float64; the model itself stays as it is.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.depth_profile.expected import expected
from isograd.diagnose.depth_profile.loss import GradientSizes, Objective, gradients, objective
from isograd.diagnose.depth_profile.results import Profile, ratios
from isograd.diagnose.depth_profile.rows import amplification, rows, stack_facts
from isograd.errors import ProfileError, first_line
from isograd.trace.anatomy import Anatomy, find_anatomy
from isograd.trace.dataflow import bare
from isograd.trace.inputs import Inputs, as_inputs, guess_inputs, run
from isograd.trace.record import answer, arguments

Progress = Callable[[str], None]


def profile(
    model: nn.Module,
    inputs: Any = None,
    labels: Tensor | None = None,
    seed: int = 0,
    *,
    device: str = "cpu",
    progress: Progress = lambda _: None,
) -> Profile:
    """Profile `model` at its weights as they are.

    Args:
        inputs: what forward takes: a mapping of names, a tuple or a tensor; None: guessed. With `labels` among them the
            model's own loss is taken, where it gives one.
        labels: ids or classes that the logits are to give; None: the next ids of what a decoder reads, else random.
        seed: of random labels and of the perturbation.
        device: of the backward pass; all else is computed on the CPU.
        progress: called with what is done next.

    Raises:
        ProfileError: no sublayers were found.
        InputsError: no inputs were given, and none can be guessed.
    """
    inputs = guess_inputs(model) if inputs is None else as_inputs(inputs)
    progress("looking for sublayers")
    with torch.random.fork_rng(devices=[]):
        anatomy = find_anatomy(model, _unlabelled(model, inputs))
    if not anatomy.sublayers:
        raise ProfileError(
            f"no sublayers found in {type(model).__name__}: no sum of an activation with what matrices made of it;"
            " give inputs with which it runs as it does in training"
        )
    missing: dict[str, str] = {}
    progress("one backward pass")
    asked, graded = _graded(model, inputs, labels, anatomy, seed, device, missing)
    progress("two passes in float64, weights moved by 1e-5")
    try:
        amplified = amplification(anatomy, seed)
    except Exception as error:  # operations that take no float64, or shapes that hang on values
        amplified = None
        missing["amplification"] = f"{type(error).__name__}: {first_line(error)}"
    progress("reading activations")
    made = rows(anatomy, graded, amplified)
    without = [row.address for row in made if row.dependency is None]
    if without:
        missing["branch and skip"] = f"the sum does not show its terms in {', '.join(without)}"
    stacks = tuple(stack_facts(anatomy, stack) for stack in anatomy.stacks)
    return Profile(
        model=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        stacks=stacks,
        inputs={at: tuple(anatomy.trace[v].shape) for at, v in anatomy.trace.inputs.items()},
        trained=_trained(model),
        loss=graded.loss if graded else None,
        objective=asked.kind if asked else None,
        ln_classes=asked.ln_classes if asked else None,
        ratios=ratios(made),
        missing=missing,
        seed=seed,
        rows=made,
        expected=expected(stacks, made),
    )


def _trained(model: nn.Module) -> bool:
    """Whether most vectors called weight, those of norms, are uneven."""
    named = [(name, p.detach().float()) for name, p in model.named_parameters() if p.ndim == 1 and not p.is_meta]
    weights = [p for name, p in named if name.rpartition(".")[2] in ("weight", "scale", "gamma", "g") and p.numel() > 1]
    uneven = sum(bool((w - w[0]).abs().max() > 1e-6) for w in weights)
    return 2 * uneven > len(weights) > 0


def _unlabelled(model: nn.Module, inputs: Inputs) -> Inputs:
    """Without `labels`, with which a model may form no logits, where it runs so."""
    if not isinstance(inputs, dict) or "labels" not in inputs:
        return inputs
    without = {name: part for name, part in inputs.items() if name != "labels"}
    try:
        run(model, without)
    except Exception:  # a decoder that reads its labels' past
        return inputs
    return without


def _graded(
    model: nn.Module,
    inputs: Any,
    labels: Tensor | None,
    anatomy: Anatomy,
    seed: int,
    device: str,
    missing: dict[str, str],
) -> tuple[Objective | None, GradientSizes | None]:
    """The loss and its gradients; where they cannot be measured, the reason goes to `missing`."""
    asked = None
    try:
        asked = _asked(model, inputs, labels, anatomy, seed)
        return asked, gradients(model, inputs, asked.loss, device)
    except Exception as error:  # a model's own backward pass raises what it likes
        if isinstance(error, ValueError) and labels is not None:
            raise
        missing["gradients"] = f"{type(error).__name__}: {first_line(error)}"
        return asked, None


def _asked(model: nn.Module, inputs: Any, labels: Tensor | None, anatomy: Anatomy, seed: int) -> Objective:
    args, kwargs = arguments(inputs)
    named = {**dict(zip(inspect.signature(model.forward).parameters, args, strict=False)), **kwargs}
    outputs = {at: anatomy.trace[v] for at, v in anatomy.trace.outputs.items()}
    decodes = any(stack.name.startswith("decoder") for stack in anatomy.stacks)
    return objective(outputs, named, labels, classes=_classes(anatomy, outputs), decodes=decodes, seed=seed)


def _classes(anatomy: Anatomy, outputs: Mapping[str, Tensor]) -> int | None:
    """Rows of the logits: of what is called so; of a bare tensor if it is as wide as a table of tokens that was read,
    or holds one row per sequence, made by a last projection to another width than the stream's.
    """
    made, trace = answer(outputs), anatomy.trace
    if made is None:
        return None
    width = made.shape[-1]
    if made.ndim not in (2, 3) or width < 2:
        return None
    if "logits" in outputs:
        return width
    tables = {trace[o.reads[0]].shape[0] for o in trace.operations if bare(o) == "embedding"}
    streams = {trace[stack.first].shape[-1] for stack in anatomy.stacks}
    value = next(v for at, v in trace.outputs.items() if outputs[at] is made)
    scores = made.ndim == 2 and width not in streams and anatomy.dataflow.product(value) is not None
    return width if scores or (made.ndim == 3 and width in tables and width not in streams) else None
