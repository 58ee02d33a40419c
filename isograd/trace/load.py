"""What a user types as MODEL -> an `nn.Module`: a folder, a name on the hub, `package.module:callable`, or a file's."""

import difflib
import importlib
import importlib.util
import inspect
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, PretrainedConfig

import isograd.models
from isograd.errors import IsogradError, ModelError, first_line, one_line
from isograd.hub import from_config, from_pretrained, model_place, takes_arguments
from isograd.trace.record import INSTALLED
from isograd.trace.reduced import few_of_each, must_be_held, size_of

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.index.json")  # an index alone promises some
_AUTO = (  # in the order in which they are tried
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
    "AutoModelForImageClassification",
    "AutoModel",
)


def load_model(text: str) -> nn.Module:
    """The model that `text` names.

    Args:
        text: the folder of a Hugging Face checkpoint or of an isograd run (a configuration without weights, or a
            config.json itself, gives the model at initialization); a name on the hub; or `package.module:name` or
            `folder/file.py:name`, a model or a callable without arguments that returns one, found from the working
            directory too.

    Raises:
        ModelError: there is no such model, or it cannot be built.
    """
    return load_part(text, math.inf)[0]


def load_part(text: str, most: float) -> tuple[nn.Module, str]:
    """The model that `text` names, and what was left out: of a configuration alone that has more than `most` parameters
    one layer of each kind is built, for a part of the vocabulary (`isograd.trace.reduced.few_of_each`).

    Raises:
        ModelError: as `load_model`, and of a model that the memory here does not hold while it is looked at.
    """
    if not Path(text).exists() and ":" in text:
        return _of_callable(text), ""
    folder = model_place(text, ModelError)
    if folder is None:
        return _built(text, True, f"{text}: no such folder here, and on the hub it cannot be loaded", most)
    has_weights = Path(text).name != "config.json" and any(any(folder.glob(pattern)) for pattern in _WEIGHTS)
    return _built(str(folder), has_weights, f"{text}: the model cannot be loaded", most)


def load_callable(text: str) -> Callable[[], Any]:
    """What `package.module:name` names, as a function without arguments; one that is no callable returns itself.

    Both the import and the call see the working directory, as `python -m` does.

    Raises:
        ModelError: no such module or name, or it needs arguments; from the call, if it raises.
    """
    with _working_directory():
        thing = _named(text)
    if isinstance(thing, nn.Module) or not callable(thing):
        return lambda: thing
    _check_arguments(text, thing)

    def call() -> Any:
        with _working_directory():
            try:
                return thing()
            except Exception as error:  # a user's code raises what it likes
                raise ModelError(f"{text} raised {_described(error)}") from error

    return call


def load_function(text: str) -> Callable[..., Any]:
    """What `package.module:name` names, a function that takes arguments.

    Raises:
        ModelError: no such module or name, or it is no function.
    """
    with _working_directory():
        thing = _named(text)
    if not callable(thing):
        raise ModelError(f"{text} is of type {type(thing).__name__}; expected a function")
    return thing


def maker_of(text: str) -> Any:
    """The function or class that `package.module:name` names; None for a folder or a name on the hub."""
    return None if Path(text).exists() or ":" not in text else _named(text)


def _of_callable(text: str) -> nn.Module:
    made = load_callable(text)()
    if not isinstance(made, nn.Module):
        kind = type(made).__name__
        raise ModelError(f"{text} gives {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}; expected an nn.Module")
    return made


def _built(name: str, has_weights: bool, refusal: str, most: float) -> tuple[nn.Module, str]:
    """With its weights, or at initialization. Any error is one line: the hub, JSON and models raise what they like."""
    try:
        config = from_pretrained(AutoConfig, name)
        kind = _class(config)
        build, left_out = partial(from_config, kind), ""
        quantized = getattr(config, "quantization_config", None) is not None
        count = 0 if most == math.inf or quantized else size_of(build, config)
        if count > most and not has_weights:
            config, left_out = few_of_each(build, config)
            count = size_of(build, config)
        must_be_held(count, f"{name}/config.json" if has_weights else "")
        if not has_weights:
            made: nn.Module = build(config)
            return made.eval(), left_out
        model, info = from_pretrained(kind, name, output_loading_info=True, ignore_mismatched_sizes=True)
        if shapes := other_shapes(info):
            raise ValueError(shapes)
        if info["missing_keys"]:
            raise ValueError(f"weights are missing, such as {min(info['missing_keys'])}")
        if surplus := _beyond_the_depth(info["unexpected_keys"], model):
            raise ValueError(f"the weights have more layers than config.json says, such as {min(surplus)}")
        if integers := _stored_as_integers(Path(name), model):
            raise ValueError(f"weights are stored as integers without a quantization_config, such as {min(integers)}")
        return model, ""
    except IsogradError:  # of the door, which names what it refuses
        raise
    except json.JSONDecodeError as error:
        raise ModelError(f"{refusal}: its config.json is not JSON ({first_line(error)})") from error
    except Exception as error:
        raise ModelError(f"{refusal}: {_said(error)}") from error


def other_shapes(info: Mapping[str, Any]) -> str | None:
    """The first weight whose shape is not what config.json says, of the loading info; None where all fit.

    transformers' own error refers to a report that it logs, which is not shown here.
    """
    for name, stored, wanted in sorted(info["mismatched_keys"], key=lambda one: str(one[0])):
        return f"{name} is {tuple(stored)} in the weights, and {tuple(wanted)} by config.json"
    return None


def _said(error: Exception) -> str:
    """What came, and where, of an error that was not meant for people ("integer modulo by zero")."""
    if not isinstance(error, ArithmeticError | AttributeError | LookupError | TypeError):
        return one_line(error) if first_line(error).endswith(":") else first_line(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {first_line(error)}, in `{frame.line}`"
    return f"{said} of {Path(frame.filename).name}; is a size in config.json 0, or of another type?"


def _beyond_the_depth(unexpected: Iterable[str], model: nn.Module) -> set[str]:
    """Names of weights that the model has too, but of another layer: `layers.7.norm.weight` where layers end with 5."""
    known = {_NUMBER.sub("N", name) for name in model.state_dict()}
    return {name for name in unexpected if _NUMBER.search(name) and _NUMBER.sub("N", name) in known}


def _stored_as_integers(folder: Path, model: nn.Module) -> set[str]:
    """Parameters that safetensors in a folder hold as whole numbers, which loading would take as they are."""
    if hasattr(model.config, "quantization_config"):
        return set()
    own = {name for name, value in model.named_parameters() if value.is_floating_point()}
    found = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_slice(name).get_dtype() for name in file.keys() if name in own}  # noqa: SIM118
        found |= {name for name, dtype in stored.items() if dtype.startswith(("I", "U"))}
    return found


def _class(config: PretrainedConfig) -> Any:
    """The class that the configuration names, else the first Auto class that knows its kind."""
    for name in config.architectures or ():
        named = getattr(isograd.models, name, None) or getattr(transformers, name, None)
        if named is not None:
            return named
    for name in _AUTO:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping or name in (getattr(config, "auto_map", None) or ()):
            return auto
    raise ValueError(f"transformers has no model for model_type {config.model_type!r}")


@contextmanager
def _working_directory() -> Iterator[None]:
    """The working directory as the first place to import from, and not beyond."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()  # a file that was written a moment ago is found too
    try:
        with _own_names(Path.cwd()):
            yield
    finally:
        sys.path[:] = before


_OURS = ("torch", "transformers", "numpy", "isograd")
_theirs: dict[str, ModuleType] = {}  # modules of users whose names packages have that were imported before


@contextmanager
def _own_names(folder: Path) -> Iterator[None]:
    """What lies in a folder goes before packages of the same name that are loaded already, as `datasets`."""
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/*.py")}
    names -= set(_OURS)

    def known() -> dict[str, ModuleType]:
        return {n: m for n, m in sys.modules.items() if n.partition(".")[0] in names}

    away = {n: m for n, m in known().items() if str(getattr(m, "__file__", "") or "").startswith(INSTALLED)}
    for name in away:
        del sys.modules[name]
    sys.modules.update({n: m for n, m in _theirs.items() if n in away or n.partition(".")[0] in away})
    try:
        yield
    finally:
        if away:
            tops = {name.partition(".")[0] for name in away}
            _theirs.update({n: m for n, m in known().items() if n.partition(".")[0] in tops})
            for name in [n for n in known() if n.partition(".")[0] in tops]:
                del sys.modules[name]
            sys.modules.update(away)


def _named(text: str) -> Any:
    """What `package.module:name` names, where name may have dots."""
    module_name, colon, name = text.rpartition(":")
    in_file = module_name.endswith(".py")
    if not (colon and module_name and name) or ("/" in module_name and not in_file):
        raise ModelError(f"{text}: expected package.module:callable or file.py:callable, such as my_models.deep:build")
    if in_file and not Path(module_name).is_file():
        raise ModelError(f"{module_name}: no such file")
    given, sys.argv = sys.argv, [module_name]  # what a script reads of its command line is not isograd's
    try:
        thing: Any = _of_file(Path(module_name)) if in_file else importlib.import_module(module_name)
    except Exception as error:  # the module's own code runs
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module_name}.".startswith(f"{absent}."):
            raise ModelError(f"{module_name}: no such module, in {Path.cwd()} or installed") from error
        raise ModelError(f"{module_name} cannot be imported: {_described(error)}") from error
    finally:
        sys.argv = given
    for part in name.split("."):
        if not hasattr(thing, part):
            near = difflib.get_close_matches(part, [n for n in vars(thing) if not n.startswith("_")], n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ModelError(f"{text}: {module_name} has no {name!r}{hint}")
        thing = getattr(thing, part)
    return thing


def _of_file(path: Path) -> ModuleType:
    """The module in a file, which sees what lies beside it; the same one when it is asked for again."""
    known = sys.modules.get(path.stem)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() == path.resolve():
        return known
    name = path.stem if known is None else f"{path.stem} of {path.parent.resolve()}"  # a module of this name is there
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[name] = module
    try:
        with _own_names(path.parent.resolve()):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path[:] = before
    return module


def _check_arguments(text: str, thing: Callable[..., Any]) -> None:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if needed:
        raise ModelError(takes_arguments(text, needed))


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}" if str(error).strip() else type(error).__name__
