"""What a user types as a model or a data set, as far as that can be said without loading anything.

huggingface_hub, asked for a name without a network, tries again for half a minute; here the network is asked once,
for a second or two, before anything is imported. What is in the cache still loads.
"""

import os
import re
import socket
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import constants

from isograd.errors import DataError, ModelError

Kind = Literal["model", "dataset"]

SECONDS = 2.0  # for an answer; a resolver without a network may take longer to give up
_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_CALLABLE = re.compile(r"[\w.]+:.+")


def must_be_a_model(text: str, *, callables: bool = False, owned: bool = False) -> None:
    """Refuse what can be no MODEL: neither a folder with a configuration nor a name on the hub.

    Args:
        callables: package.module:name is a model too.
        owned: as in `model_place`.

    Raises:
        ModelError: with what was expected.
    """
    if callables and not Path(text).exists() and _CALLABLE.fullmatch(text):
        module = text.partition(":")[0]
        first = module.partition(".")[0]
        here = any((Path.cwd() / f"{first}{end}").exists() for end in ("", ".py"))
        if not here and find_spec(first) is None:
            raise ModelError(f"{module}: no such module, in {Path.cwd()} or installed")
        return
    model_place(text, ModelError, owned=owned)


def model_place(
    text: str, refused: type[ModelError] | type[DataError] = DataError, *, owned: bool = False
) -> Path | None:
    """The folder of a model, of itself or in that of a run; None where `text` is a name on the hub.

    Args:
        owned: a name on the hub is OWNER/NAME, as all but the oldest are.

    Raises:
        refused: no folder, no config.json in it, or a name that neither the cache nor a hub within reach has.
    """
    path = Path(text)
    if path.exists():
        for folder in (path, path / "model"):
            if (folder / "config.json").is_file():
                return folder
        raise refused(
            f"{path}: no config.json here or in model/; name the folder of a model, or of a run that has ended"
        )
    if not _NAME.fullmatch(text) or (owned and "/" not in text):
        raise refused(f"{text}: no such folder")
    if why := absent(text):
        raise refused(f"{text}: no such folder here, and on the hub it cannot be loaded: {why}")
    return None


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
    found = [Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"]
    if kind == "dataset":
        found.append(_datasets() / name.replace("/", "___"))
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


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known of the hub from here.

    Attributes:
        offline: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set.
        reachable: a connection opens; None where none was tried.
        folders: of models and of data sets in the cache.
    """

    host: str
    offline: bool
    reachable: bool | None
    folders: tuple[Path, Path]


def standing() -> Standing:
    """Asks the network for at most some three seconds, unless it is switched off."""
    offline = constants.HF_HUB_OFFLINE
    return Standing(
        host=_host(),
        offline=offline,
        reachable=None if offline else reachable(_host()),
        folders=(Path(constants.HF_HUB_CACHE), _datasets()),
    )


def _host() -> str:
    return urlsplit(constants.ENDPOINT).netloc


def _datasets() -> Path:
    """The data sets' library has a cache of its own, and its settings are dear to import."""
    return Path(os.environ.get("HF_DATASETS_CACHE") or f"{constants.HF_HOME}/datasets")


def _stay_offline() -> None:
    """For libraries that read the variable when they are imported, and for those that have read it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    if datasets := sys.modules.get("datasets.config"):
        vars(datasets)["HF_HUB_OFFLINE"] = True
