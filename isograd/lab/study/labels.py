"""What people call the arms of a comparison: placement, warm-up, and whatever else tells them apart."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isograd.lab.train.tasks import DEFAULT, TASKS

ALWAYS = ("model.placement", "training.warmup")
# at 0, or none, nothing is to be said of them
UNREAD = ("training.decay_at", "training.decay_to", "training.warmup_from", "model.encoder_placement")
ARGUMENTS = "model.arguments."  # of a model of the user's own
UNSAID = ("model.build", "model.sha256")  # its name says it
NEVER = ("name", "seed")  # runs that differ in these alone are one arm
WORDS = {  # dotted key -> how a label says its value; of others the key's last part stands before it
    "arm": "{}",
    "change": "{}",
    "model.placement": "{}",
    "model.encoder_placement": "{} encoder",
    "model.layers": "{} layers",
    "model.encoder_layers": "{} encoder layers",
    "training.warmup": "warm-up {}",
    "training.steps": "{} steps",
    "training.epochs": "{} epochs",
}


def labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each run (as `Run.as_dict` gives it), in terms of the keys in which these runs differ.

    >>> one = {"model": {"placement": "pre-ln"}, "training": {"warmup": 0, "lr": 1e-3, "batch": 8}}
    >>> two = {"model": {"placement": "pre-ln"}, "training": {"warmup": 9, "lr": 2e-3, "batch": 8}}
    >>> labels([one, two])
    ['pre-ln, no warm-up, lr 0.001', 'pre-ln, warm-up 9, lr 0.002']
    """
    found = [dict(flat(run)) for run in runs]
    always = _always(found[0]) if found else ALWAYS
    differing = [key for key in differences(runs) if key not in always]
    return [", ".join(_label(one, differing)) for one in found]


def _label(one: Mapping[str, Any], differing: Sequence[str]) -> Iterator[str]:
    own = [key for key in differing if key.startswith(ARGUMENTS) and key in one]
    if own:  # of a model of the user's own what he has named
        yield from _others(one, own)
        yield _first(one)[1]
    else:
        yield from _first(one)
    yield from _others(one, [key for key in differing if key not in own])


NAMES = {  # placement -> what a page calls it; the others go by the name that they have everywhere
    "post-ln": "Post-LN",
    "pre-ln": "Pre-LN",
    "normformer": "NormFormer",
    "normformer-resscale": "NormFormer with ResScale",
    "admin": "ADMIN",
    "deepnorm": "DeepNorm",
    "mix-ln": "Mix-LN",
    "peri-ln": "Peri-LN",
    "sub-ln": "Sub-LN",
    "rezero": "ReZero",
    "layerscale": "LayerScale",
    "skipinit": "SkipInit",
    "t-fixup": "T-Fixup",
    "hybridnorm": "HybridNorm",
    "gpt2": "GPT-2",
    "olmo2": "OLMo 2",
    "qk-norm": "QK-Norm",
    "ngpt": "nGPT",
}


def names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a page and its figures call these runs: without what all of them share, placements as papers write them.

    >>> one = {"model": {"placement": "pre-ln"}, "training": {"warmup": 0, "lr": 5e-3, "batch": 8}}
    >>> two = {"model": {"placement": "post-ln"}, "training": {"warmup": 0, "lr": 1e-3, "batch": 8}}
    >>> names([one, two]), names([one])
    (['Pre-LN, lr 5e-3', 'Post-LN, lr 1e-3'], ['Pre-LN'])
    """
    if any("glue.scratch" in _always(dict(flat(run))) for run in runs):
        return labels(runs)
    differing = differences(runs)
    return [", ".join(_name(dict(flat(run)), differing)) for run in runs]


def _name(one: Mapping[str, Any], differing: Sequence[str]) -> Iterator[str]:
    placement, own = one["model.placement"], [key for key in differing if key.startswith(ARGUMENTS) and key in one]
    yield from [] if own else [NAMES.get(placement, placement)]
    if "training.warmup" in differing:
        yield _first(one)[1]
    for key in (key for key in differing if key not in ALWAYS):
        if key == "training.lr":
            yield f"lr {rate(one[key])}"
        else:
            yield from _others(one, [key])


def rate(value: float) -> str:
    """A learning rate, as papers write it.

    >>> rate(5e-3), rate(0.0017), rate(0.1)
    ('5e-3', '1.7e-3', '0.1')
    """
    if not 0 < value < 0.1:
        return f"{value:g}"
    digits, _, power = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def differences(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted keys in which runs differ, but for name and seed, in the order of the recipe."""
    found = [dict(flat(run)) for run in runs]
    keys = dict.fromkeys(key for one in found for key in one if key not in NEVER)
    return [key for key in keys if any(one.get(key) != found[0].get(key) for one in found)]


def flat(run: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values."""
    for name, value in run.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def shown(value: Any) -> str:
    """A value of a recipe for people: (0.9, 0.98), 0.001, none."""
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(shown, value)) + ")"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _always(one: Mapping[str, Any]) -> tuple[str, ...]:
    return TASKS[one.get("task") or DEFAULT].always_said


def _first(one: Mapping[str, Any]) -> tuple[str, ...]:
    if "glue.scratch" in _always(one):
        return ("from scratch" if one["glue.scratch"] else "pre-trained",)
    warmup = one["training.warmup"]
    return one["model.placement"], f"warm-up {warmup}" if warmup else "no warm-up"


def _others(one: Mapping[str, Any], differing: Sequence[str]) -> Iterator[str]:
    for key in (key for key in differing if key not in UNSAID and (key in one or not key.startswith(ARGUMENTS))):
        value = one.get("model.layers") if key == "model.encoder_layers" and one.get(key) is None else one.get(key)
        if key not in UNREAD or value:
            yield said(key, value)


def said(key: str, value: Any) -> str:
    """A setting for people.

    >>> said("model.placement", "post-ln"), said("training.lr", 1e-3), said("model.layers", 12)
    ('post-ln', 'lr 0.001', '12 layers')
    """
    if key in WORDS and value is not None:
        return WORDS[key].format(value)
    if key.startswith(ARGUMENTS):
        return f"{key.removeprefix(ARGUMENTS)}={shown(value)}"
    return f"{key.rpartition('.')[2].replace('_', ' ')} {shown(_short(value))}"


def _short(value: Any) -> Any:
    """Of files their names."""
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return value.removesuffix("/model").rpartition("/")[2] if isinstance(value, str) else value
