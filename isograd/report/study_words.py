"""How a study's axes and values are said: "no warm-up, LR 0.001", "At 12 layers without warm-up"."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isograd.study.labels import shown

_PLAIN = {  # dotted key -> beside others in a label; under a heading, in a sentence
    "model.layers": ("{} layers", "at {} layers"),
    "model.encoder_layers": ("{} encoder layers", "at {} encoder layers"),
    "training.warmup": ("warm-up {}", "with warm-up {}"),
    "training.lr": ("LR {}", "at LR {}"),
    "training.steps": ("{} steps", "at {} steps"),
    "training.epochs": ("{} epochs", "at {} epochs"),
    "training.batch": ("batch {}", "with batches of {}"),
}
_NAMES = {
    "model.layers": "layers",
    "model.placement": "placement",
    "training.warmup": "warm-up (steps)",
    "training.lr": "learning rate",
}
_OUTCOMES = ("collapsed", "diverged", "undecided", "failed")


class Named(str):
    """A text of an axis, shown by a name that is shorter: of a file's path the last parts."""

    name: str


def named_apart(values: Iterable[str], whole: bool = False) -> dict[str, Named]:
    """The texts of an axis, each by a name that no other one has.

    Args:
        whole: they are no paths.

    >>> [text.name for text in named_apart(["runs/a/model", "runs/b/model", "c.txt"]).values()]
    ['a', 'b', 'c.txt']
    >>> [text.name for text in named_apart(["en/train.txt", "de/train.txt", ""]).values()]
    ['en/train.txt', 'de/train.txt', '“”']
    """
    texts = list(dict.fromkeys(values))
    parts = [text.rstrip("/").removesuffix("/model").split("/") if not whole else [text] for text in texts]
    tails = (["/".join(of[-n:]) for of in parts] for n in range(1, 1 + max(map(len, parts), default=0)))
    names = next((tail for tail in tails if len(set(map(_printable, tail))) == len(texts)), texts)
    found = {text: Named(text) for text in texts}
    for text, name in zip(texts, names, strict=True):
        found[text].name = _printable(name) or "“”"
    return found


def _printable(text: str) -> str:
    """In one line, without what no font has."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def shown_value(value: Any) -> str:
    """A value for people."""
    return value.name if isinstance(value, Named) else shown(value)


def who_names(key: str, values: Sequence[Any]) -> list[str]:
    """The values of the axis that is compared: texts by their names, others behind the name of the axis.

    >>> who_names("model.ffn", [None, 128]), who_names("model.norm", ["layernorm", "rmsnorm"])
    (['ffn none', 'ffn 128'], ['layernorm', 'rmsnorm'])
    """
    texts = all(isinstance(value, str) for value in values)
    names = [shown_value(value) if texts else f"{axis_name(key)} {shown_value(value)}" for value in values]
    return names if len(set(names)) == len(names) else [f"{axis_name(key)} {json.dumps(value)}" for value in values]


def axis_name(key: str) -> str:
    """What stands at an axis or above a column.

    >>> axis_name("training.lr"), axis_name("training.weight_decay")
    ('learning rate', 'weight decay')
    """
    return _NAMES.get(key, key.rpartition(".")[2].replace("_", " "))


def condition_said(condition: Mapping[str, Any]) -> str:
    """For labels and headings.

    >>> condition_said({"model.layers": 12, "training.warmup": 0, "training.clip": 1.0})
    '12 layers, no warm-up, clip 1'
    >>> condition_said({"model.layers": 1})
    '1 layer'
    """
    return ", ".join(_said(key, value, 0) for key, value in condition.items())


def under(condition: Mapping[str, Any]) -> str:
    """The same, to begin a sentence with; "" where there is no condition.

    >>> under({"model.layers": 12, "training.warmup": 0}), under({})
    ('At 12 layers without warm-up', '')
    """
    said = " ".join(_said(key, value, 1) for key, value in condition.items())
    return said[:1].upper() + said[1:]


def _said(key: str, value: Any, form: int) -> str:
    if key == "training.warmup" and not value:
        return ("no warm-up", "without warm-up")[form]
    name = axis_name(key)
    words = _PLAIN.get(key, (f"{name} {{}}", f"with {name} {{}}"))[form]
    return (words.removesuffix("s") if value == 1 else words).format(shown_value(value))


def named(who: str) -> str:
    """In quotation marks where a name has a comma in it.

    >>> named("pre-ln"), named("pre-ln, no warm-up")
    ('pre-ln', '“pre-ln, no warm-up”')
    """
    return f"“{who}”" if "," in who else who


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(ends: Iterable[str]) -> str:
    """What did not finish, in words: "6 collapsed, 1 diverged".

    >>> counted(["finished", "collapsed", "diverged", "collapsed"])
    '2 collapsed, 1 diverged'
    """
    found = list(ends)
    return ", ".join(f"{found.count(how)} {how}" for how in _OUTCOMES if how in found)


def loss_said(value: float | None) -> str:
    """A loss with three decimals; a dash where there is none, a word where it is infinite."""
    if value is None:
        return "–"
    return "diverged" if value == float("inf") else f"{value:.3f}"
