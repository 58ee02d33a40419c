"""The door through which everything foreign is loaded, and what can be said of a name before anything is.

`from_pretrained`, `from_config`, `load_dataset` and `snapshot` alone call what they are named after. A checkpoint may
name code of its own in its configurations (`auto_map`); that runs only within `trusting()`, which is
`--trust-remote-code` on the command line. Nobody is asked.

huggingface_hub, asked for a name without a network, tries again for half a minute; here the network is asked once,
for a second or two, before anything is imported. What is in the cache still loads.
"""

import ast
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import constants

from isograd.errors import DataError, ForeignError, ModelError, RemoteCodeError, command, first_line

Kind = Literal["model", "dataset"]

TRUST = "--trust-remote-code"
_trusted = False
SECONDS = 2.0  # for an answer; a resolver without a network may take longer to give up
_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_CALLABLE = re.compile(r"[\w.]+:.+")


@contextmanager
def trusting() -> Iterator[None]:
    """In this block code that a checkpoint brings along runs when it is loaded."""
    global _trusted
    before, _trusted = _trusted, True
    try:
        yield
    finally:
        _trusted = before


def remote_code_is_trusted() -> bool:
    """What a run, a report and an import write down."""
    return _trusted


def from_pretrained(kind: Any, place: "str | Path | None", **options: Any) -> Any:
    """`kind.from_pretrained(place, **options)`, without code of the checkpoint's own.

    Args:
        kind: a class of transformers, of a model, a configuration, a tokenizer, a processor.
        place: a folder or a name on the hub; None: weights that are given.

    Raises:
        RemoteCodeError: it wants to run code, which nobody has trusted.
        ForeignError: a list of weights that leads outside the folder, or weights that are damaged.
    """
    if place is not None and Path(place).is_dir():
        _must_stay_inside(Path(place) / options.get("subfolder", ""))
    if isinstance(place, Path):
        place = str(place)
    with _without_its_code(place):
        try:
            return kind.from_pretrained(place, **options, trust_remote_code=_trusted)
        except Exception as error:
            if damaged := _damaged(place, error):
                raise ForeignError(damaged) from error
            raise


def from_config(kind: Any, config: Any) -> Any:
    """The model of a configuration, at initialization, without code of the checkpoint's own.

    Raises:
        RemoteCodeError: it wants to run code, which nobody has trusted.
    """
    with _without_its_code(getattr(config, "_name_or_path", "")):
        return kind.from_config(config, trust_remote_code=_trusted) if hasattr(kind, "from_config") else kind(config)


def load_dataset(name: str, configuration: str | None = None, **options: Any) -> Any:
    """`datasets.load_dataset`, which runs no code of a data set since version 4; OWNER/NAME/CONFIGURATION is both."""
    import datasets

    if configuration is None and name.count("/") == 2 and not Path(name).exists():
        name, _, configuration = name.rpartition("/")
    return datasets.load_dataset(name, configuration, **options)


def snapshot(name: str, patterns: Sequence[str]) -> Path:
    """The folder of a model on the hub, with the files of these patterns."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=list(patterns)))


@contextmanager
def _without_its_code(place: "str | Path | None") -> Iterator[None]:
    """transformers' long refusal as one line that names the files."""
    try:
        yield
    except (ValueError, OSError) as error:
        if _trusted or TRUST.strip("-").replace("-", "_") not in str(error):
            raise
        files = ", ".join(sorted(own_code(Path(place)))) if place and Path(place).is_dir() else ""
        code = f"code of its own ({files})" if files else "code of its own"
        raise RemoteCodeError(f"{place}: wants to run {code}; read it, then add {TRUST}") from error


def own_code(folder: Path) -> set[str]:
    """The files, or repository--files, that configurations in a folder name as code."""
    found: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            content = json.loads(path.read_text(encoding="utf-8"))
            named = content.get("auto_map") if isinstance(content, dict) else None
            found |= {f"{name.rpartition('.')[0]}.py" for name in _texts(named)}
    return found


def _texts(value: Any) -> Iterator[str]:
    """The texts in lists and objects of JSON."""
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(one)


def _must_stay_inside(folder: Path) -> None:
    """A list of shards names files in its own folder."""
    for path in (*sorted(folder.glob("*.index.json")), folder / "config.json"):
        key = "transformers_weights" if path.name == "config.json" else "weight_map"
        try:
            files = {*_texts(json.loads(path.read_text(encoding="utf-8")).get(key))}
        except (OSError, ValueError, AttributeError):
            continue  # whoever reads it will say so
        outside = sorted(name for name in files if Path(name).is_absolute() or ".." in Path(name).parts)
        if outside:
            raise ForeignError(f"{path}: names {outside[0]}, which lies outside the folder")


def _damaged(place: str | None, error: Exception) -> str:
    """Which file of weights in a folder cannot be read, and how; "" where all can."""
    if place is None or not Path(place).is_dir() or type(error).__name__ != "SafetensorError":
        return ""
    from safetensors import SafetensorError, safe_open

    for path in sorted(Path(place).rglob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as why:
            return f"{path}: is damaged or cut off ({why})"
    return ""


def must_be_a_model(text: str, *, callables: bool = False, owned: bool = False) -> None:
    """Refuse what can be no MODEL: neither a folder with a configuration nor a name on the hub.

    Args:
        callables: package.module:name is a model too.
        owned: as in `model_place`.

    Raises:
        ModelError: with what was expected.
    """
    module, colon, name = text.rpartition(":")
    if callables and module.endswith(".py") and not Path(text).exists():
        if not Path(module).is_file():
            raise ModelError(f"{module}: no such file")
        if not name:
            raise ModelError(f"{text}: expected file.py:callable, such as {module}:build")
        _must_take_nothing(text, Path(module), name)
        return
    if callables and not colon and text.endswith(".py") and Path(text).is_file():
        raise ModelError(f"{text}: expected file.py:callable, such as {text}:build")
    if callables and not Path(text).exists() and _CALLABLE.fullmatch(text):
        module, _, name = text.partition(":")
        first = module.partition(".")[0]
        here = any((Path.cwd() / f"{first}{end}").exists() for end in ("", ".py"))
        if not here and find_spec(first) is None:
            raise ModelError(f"{module}: no such module, in {Path.cwd()} or installed")
        _must_take_nothing(text, Path(module.replace(".", "/") + ".py"), name)
        return
    model_place(text, ModelError, owned=owned)


def takes_arguments(text: str, needed: Sequence[str]) -> str:
    """The refusal of a callable that cannot be called without arguments, with the lines to write in its place."""
    module, _, name = text.rpartition(":")
    call = f"def build(): return {name}({', '.join(f'{one}=...' for one in needed)})"
    file = Path(module).name if module.endswith(".py") else module
    return f"{text} needs arguments ({', '.join(needed)}): add `{call}` to {file}, then name {module}:build"


def _must_take_nothing(text: str, file: Path, name: str) -> None:
    """Refuse a function or class that needs arguments, as far as the text of its file says so.

    Nothing is imported: what is decorated, inherited, or bound more than once is left to the call.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    bound = [one for one in ast.walk(tree) if name in (getattr(one, "name", None), getattr(one, "asname", None))]
    bound += [
        one for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)
    ]
    if len(bound) != 1 or bound[0] not in tree.body:
        return
    made, own = bound[0], 0
    if isinstance(made, ast.ClassDef) and not made.decorator_list:
        made, own = next((one for one in made.body if getattr(one, "name", "") == "__init__"), made), 1
    if isinstance(made, ast.FunctionDef) and not made.decorator_list:
        plain = [*made.args.posonlyargs, *made.args.args]
        needed = [one.arg for one in plain[own : len(plain) - len(made.args.defaults)]]
        keywords = zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)
        needed += [one.arg for one, default in keywords if default is None]
        if needed:
            raise ModelError(takes_arguments(text, needed))


def model_place(
    text: str, refused: type[ModelError] | type[DataError] = DataError, *, owned: bool = False
) -> Path | None:
    """The folder of a model, of itself, in that of a run or around its config.json; None for a name on the hub.

    Args:
        owned: a name on the hub is OWNER/NAME, as all but the oldest are.

    Raises:
        refused: no folder, no config.json in it, or a name that neither the cache nor a hub within reach has.
    """
    path = Path(text)
    if path.exists():
        for folder in (path.parent,) if path.name == "config.json" else (path, path / "model"):
            if (folder / "config.json").is_file():
                return folder
        if is_watched(path):
            raise refused(f"{path}: this is a watched loop, not a model; its page: {command('report', path)}")
        raise refused(
            f"{path}: no config.json here or in model/; name the folder of a model, or of a run that has ended"
        )
    if not _NAME.fullmatch(text) or (owned and "/" not in text):
        raise refused(f"{text}: no such folder")
    if why := absent(text):
        raise refused(f"{text}: no such folder here, and on the hub it cannot be loaded: {why}")
    return None


SETUP = "setup.json"  # what trains in a watched folder: class, sizes, optimizer


def is_watched(folder: Path) -> bool:
    """What `isograd.watch` wrote: rows of steps, and none of a run's other files."""
    others = ("run.json", "resolved.json", "outcome.json")
    return (folder / "metrics.jsonl").is_file() and not any((folder / name).exists() for name in others)


def absent(name: str, kind: Kind = "model") -> str:
    """Why a name cannot be loaded: no hub within reach, nor a copy in the cache; empty where there is a chance.

    Where the cache has it and the hub is out of reach, huggingface_hub is switched to offline.
    """
    host = _host()
    if constants.HF_HUB_OFFLINE:
        reason = "HF_HUB_OFFLINE is set"
    elif not reachable(host):
        reason = f"{host} cannot be reached"
    else:
        return ""
    if not any(path.exists() for path in copies(name, kind)):
        return f"{reason}, and no copy is in the cache ({constants.HF_HUB_CACHE})"
    _stay_offline()
    return ""


def copies(name: str, kind: Kind) -> list[Path]:
    """Where copies of a model or a data set would lie."""
    name = "/".join(name.split("/")[:2])  # without a data set's configuration
    found = [Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"]
    if kind == "dataset":
        found.append(data_sets() / name.replace("/", "___"))
    return found


@cache
def reachable(host: str, seconds: float = SECONDS) -> bool:
    """Whether a connection to the host, or to the proxy before it, opens."""
    proxy = None if proxy_bypass(host) else getproxies().get("https")
    at = urlsplit(proxy if proxy is None or "//" in proxy else f"//{proxy}") if proxy else None
    where = (at.hostname or host, at.port or 80) if at else (host.partition(":")[0], int(host.partition(":")[2] or 443))
    opened: list[bool] = []

    def ask() -> None:
        try:
            socket.create_connection(where, timeout=seconds).close()
        except OSError:
            return
        opened.append(True)

    asking = Thread(target=ask, daemon=True)  # no timeout reaches the resolver
    asking.start()
    asking.join(seconds + 1)
    return bool(opened)


def standing() -> dict[str, Any]:
    """The hub's host, whether it is switched off, and whether a connection opens; None where it is switched off.

    Asks the network for at most some three seconds, unless HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set.
    """
    offline = constants.HF_HUB_OFFLINE
    return {"host": _host(), "offline": offline, "reachable": None if offline else reachable(_host())}


def _host() -> str:
    return urlsplit(constants.ENDPOINT).netloc


def data_sets() -> Path:
    """The data sets' library has a cache of its own, and its settings are dear to import."""
    return Path(os.environ.get("HF_DATASETS_CACHE") or f"{constants.HF_HOME}/datasets")


def _stay_offline() -> None:
    """For libraries that read the variable when they are imported, and for those that have read it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    if datasets := sys.modules.get("datasets.config"):
        vars(datasets)["HF_HUB_OFFLINE"] = True


_WEIGHTS = ("*.json", "*.safetensors")


def model_folder(name: str | Path) -> Path:
    """Where the files of a model are: in the folder of a run or of its model, or fetched from the hub.

    Raises:
        DataError: no model there.
    """
    return model_place(str(name), owned=True) or _download(str(name))


def _download(name: str) -> Path:
    try:
        return snapshot(name, _WEIGHTS)
    except Exception as error:  # the hub raises many kinds; a user needs one line
        raise DataError(
            f"{name}: no such folder here, and on the hub it cannot be loaded: {first_line(error)}"
        ) from error
