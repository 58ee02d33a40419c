"""Recipes: a run from YAML and `key=value` overrides, unknown keys refused with a suggestion."""

import json
from argparse import ArgumentError
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser

from isograd.errors import RecipeError, nearest
from isograd.lab.recipes import path_of
from isograd.lab.train.run import GONE, Run, written
from isograd.lab.train.tasks import DEFAULT, TASKS
from isograd.lab.train.tasks.own import task_for

COMPARED = ("arms", "seeds", "axes", "also", "budget", "keep_models")  # top-level keys of comparisons and studies
ARGUMENTS = "model.arguments."  # of a model of the user's own, by their names


def load_run(recipe: Path | None = None, overrides: Sequence[str] = ()) -> Run:
    """A run from a YAML recipe, by path or name (None: defaults), and `key=value` overrides such as `model.layers=36`.

    Raises:
        RecipeError: no such file, not YAML, an unknown key (with the nearest known one), a value of the wrong type.
    """
    content = read_recipe(recipe) if recipe else {}
    return run_from_dict(overridden({k: v for k, v in content.items() if k not in COMPARED}, overrides))


def load_arms(recipe: Path) -> tuple[list[list[str]], list[int]]:
    """What a recipe says of a comparison: `arms`, each a placement and overrides, and `seeds`; empty where it has none.

    Raises:
        RecipeError: as `load_run`.
    """
    return arms_in(read_recipe(recipe), recipe)


def arms_in(content: Mapping[str, Any], recipe: Path) -> tuple[list[list[str]], list[int]]:
    """`load_arms` of what `read_recipe` has read of `recipe`."""
    arms, seeds = (content.get(key) or [] for key in ("arms", "seeds"))
    arms = [[arm] if isinstance(arm, str) else arm for arm in arms] if isinstance(arms, list) else [arms]
    if not all(isinstance(arm, list) and arm and all(isinstance(word, str) for word in arm) for arm in arms):
        raise RecipeError(
            f"{recipe}: arms is a list of lists of text, such as [[post-ln], [post-ln, training.warmup=400]]"
        )
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise RecipeError(f"{recipe}: seeds is a list of whole numbers, such as [1, 2, 3]")
    return arms, seeds


def with_overrides(run: Run, overrides: Sequence[str]) -> Run:
    """The run with `key=value` overrides.

    Raises:
        RecipeError: as `load_run`.
    """
    return run_from_dict(overridden(run.as_dict(), overrides))


def run_from_dict(content: Mapping[str, Any]) -> Run:
    """The run that a nested mapping describes, such as `Run.as_dict()` gives.

    Raises:
        RecipeError: as `load_run`.
    """
    content = _without_settled(content)
    task = content.get("task") or (task_for(content) if _builds(content) else DEFAULT)
    if not isinstance(task, str) or task not in TASKS:
        raise RecipeError(f"task is {json.dumps(task, default=str)}; expected {' or '.join(TASKS)}")
    content = _with_one_name(content, TASKS[task].recipe.from_key)
    content = {**content, "task": task}
    training = content.get("training")
    if isinstance(training, Mapping):
        kept = {key: value for key, value in training.items() if GONE.get(key, ...) != value}
        content = {**content, "training": kept}
    _check_keys(content, task)
    content = _listed(content)
    if name := content.get("model", {}).get("from"):
        return _from_model(str(name), content, task)
    run: Run = _built(TASKS[task].recipe, content)
    return run


def _builds(content: Mapping[str, Any]) -> bool:
    """Whether the model is the user's own."""
    return isinstance(content.get("model"), Mapping) and bool(content["model"].get("build"))


def _without_settled(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what follows from the file of `model.build`, which an override may have changed."""
    if not _builds(content):
        return content
    model = content["model"]
    if ":" not in str(model.get("placement") or ":"):
        raise RecipeError(f"model.placement={model['placement']} is of isograd's own models, and model.build names one")
    return {**content, "model": {key: value for key, value in model.items() if key not in ("placement", "sha256")}}


def is_known(key: str, known: Collection[str]) -> bool:
    """Whether a dotted key is one of a recipe, or an argument of `model.build`."""
    return key in known or key.startswith(ARGUMENTS)


def _from_model(name: str, content: dict[str, Any], task: str) -> Run:
    """A run that trains a model further: what is left out is the model's.

    Raises:
        RecipeError: what is given contradicts it, each such key with the model's value.
    """
    from isograd.lab.train.pretrained import FREE, find_pretrained, keys_of

    theirs = keys_of(find_pretrained(name), task, [key for key in _defaults(task) if key != "model.from"])
    for key, value in theirs.items():
        section, _, inner = key.partition(".")
        own = content.get(section) or {}
        if own.get(inner) is None:
            content[section] = {**own, inner: value}
    run: Run = _built(TASKS[task].recipe, content)
    given = {key: getattr(getattr(run, key.split(".")[0]), key.split(".")[1]) for key in theirs}
    wrong = {key: value for key, value in theirs.items() if _plainly(given[key]) != value and key not in FREE}
    if wrong:
        said = ", ".join(f"{key}={json.dumps(_plainly(given[key]))}" for key in wrong)
        right = " ".join(f"{key}={json.dumps(value)}" for key, value in wrong.items())
        raise RecipeError(f"model.from={name} contradicts {said}; leave them out, or set {right}")
    return run


def _with_one_name(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """`model.from` under the task's own name for it, as its placement where none is given."""
    model, (section, _, inner) = content.get("model"), key.partition(".")
    own = content.get(section, {})
    if key == "model.from" or not isinstance(model, Mapping) or not isinstance(own, Mapping) or "from" not in model:
        return content
    from isograd.lab.train.pretrained import find_pretrained

    name = str(model["from"])
    if own.get(inner) not in (None, name):
        raise RecipeError(f"model.from={name} and {key}={own[inner]} name two models; leave one of them out")
    rest = {"placement": find_pretrained(name).config.placement} | {k: v for k, v in model.items() if k != "from"}
    return {**content, "model": rest, section: {**own, inner: name}}


def _plainly(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _built(kind: type, content: Mapping[str, Any], section: str = "") -> Any:
    """A dataclass of these values, each turned into the type of its key; sections within it alike."""
    types = _types(kind)
    return kind(
        **{
            _field(name): _built(types[name], value, f"{section}{name}.")
            if is_dataclass(types[_field(name)])
            else _typed(kind, section + name, value)
            for name, value in content.items()
        }
    )


def _field(key: str) -> str:
    return f"{key}_" if iskeyword(key) else key


def _type_of(kind: type, key: str) -> Any:
    return _types(kind)[_field(key.rpartition(".")[2])]


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(kind: type, key: str, value: Any) -> Any:
    """A value as its key has it: 1e-3, which is text in YAML, as a number. The cells of a study differ in a few."""
    known = (kind, key, repr(value))
    if known not in _TYPED:
        try:
            section, _, name = key.rpartition(".")
            nested = {section: {name: value}} if section else {name: value}
            parsed = _parser(kind, key).parse_object({"run": nested})
        except (ArgumentError, TypeError, ValueError) as error:
            shown = " ".join(str(value).split())
            raise RecipeError(f"{key}={shown}: expected {_expected(_type_of(kind, key))}") from error
        if isinstance(value, Mapping):  # whose owner may change it
            return parsed[f"run.{key}"]
        _TYPED[known] = parsed[f"run.{key}"]
    return _TYPED[known]


_TYPED: dict[tuple[type, str, str], Any] = {}


@cache
def _parser(kind: type, key: str) -> ArgumentParser:
    """Of one key: one of a whole recipe takes 20 ms for each cell of a study."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument(f"--run.{key}", type=_type_of(kind, key))
    return parser


def _listed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same, one source of pairs as a list of one: `pairs.train=data/train` is what one types."""
    pairs = content.get("pairs")
    if not isinstance(pairs, Mapping):
        return dict(content)
    lists = ("train", "valid", "dictionaries")
    one = {key: [pairs[key]] for key in lists if isinstance(pairs.get(key), str)}
    return {**content, "pairs": {**pairs, **one}}


def known_keys(task: str | None = None) -> list[str]:
    """Every key of a recipe, dotted; of one task, or of all.

    >>> "pairs.train" in known_keys(), "pairs.train" in known_keys("language")
    (True, False)
    """
    return list(dict.fromkeys(key for name in ([task] if task else TASKS) for key in _defaults(name)))


@cache
def _defaults(task: str) -> dict[str, Any]:
    """The keys of a task's recipe, dotted, and their defaults."""
    found: dict[str, Any] = {}
    for key in fields(TASKS[task].recipe):
        section: Any = key.default_factory
        if is_dataclass(section):
            found |= {f"{key.name}.{written(inner.name)}": inner.default for inner in fields(section)}
        else:
            found[key.name] = key.default
    return found


def read_recipe(recipe: Path) -> dict[str, Any]:
    """What stands in a recipe, a file or a name of the package's, unchecked.

    Raises:
        RecipeError: no such file nor name, or not YAML.
    """
    path = path_of(recipe)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        json.dumps(content, default=str, skipkeys=True)  # what stands within itself has no end
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also what is not UTF-8
        raise RecipeError(f"{recipe}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{recipe}: expected keys and values, found {type(content).__name__}")
    return content


def overridden(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`content` itself, each `key=value` set in it."""
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign:
            raise RecipeError(f"{override!r} is an invalid override; expected key=value, such as model.layers=36")
        try:
            key = key.strip()  # a name such as 2024-01-01 is text, not a date
            set_key(content, key.split("."), value if key == "name" else yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise RecipeError(f"{override!r}: the value is not YAML ({' '.join(str(error).split())})") from error
    return content


def set_key(content: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Raises RecipeError: a part of the path is a value."""
    for part in path[:-1]:
        if content.get(part) is None:
            content[part] = {}
        content = content[part]
        if not isinstance(content, dict):
            raise RecipeError(f"{'.'.join(path)}: {part} is a value, not a section")
    content[path[-1]] = value


def _check_keys(content: Mapping[str, Any], task: str) -> None:
    defaults = _defaults(task)
    own, known = list(defaults), known_keys()
    sections = {key.split(".")[0] for key in known if "." in key}
    for name, section in content.items():
        if name in sections and not isinstance(section, Mapping):
            first = next((key for key in own if key.startswith(f"{name}.")), f"{name}.KEY")
            raise RecipeError(f"{name} is a section; set one of its keys, such as {first}")
        keys = {f"{name}.{key}": value for key, value in section.items()} if name in sections else {str(name): section}
        for key, value in keys.items():
            if key not in known:
                near = nearest(key, sections if isinstance(value, Mapping) else own)
                meant = f"did you mean {near!r}?" if near else "'isograd train --keys' prints all"
                raise RecipeError(f"unknown key {key!r}; {meant}")
            if key not in defaults:
                readers = " or ".join(other for other in TASKS if key in _defaults(other))
                raise RecipeError(f"{key} is read by task={readers} only, and this is task={task}")
            if value is None and defaults[key] is not None:
                raise RecipeError(f"{key} is empty; give it a value, or leave it out for {defaults[key]!r}")


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "keys and values"}


def _expected(kind: Any) -> str:
    """
    >>> _expected(int | None), _expected(Literal["linear", "cosine"]), _expected(tuple[float, float])
    ('a whole number', 'linear, cosine', 'a list with 2 elements (a number)')
    """
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not type(None)]
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin is tuple:
        many = "a list of any length" if parts[-1] is Ellipsis else f"a list with {len(parts)} elements"
        return f"{many} ({_expected(parts[0])})"
    return _KINDS[origin or kind] if (origin or kind) in _KINDS else " or ".join(map(_expected, parts))
