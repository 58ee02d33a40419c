"""`isograd doctor`: versions, machine, caches and extras, and what is wrong with them."""

import os
import platform
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from rich.markup import escape

from isograd.cli.console import Result, loading, output, print_table
from isograd.machine import cache_folder, computes_bf16, cores, has_nvidia_driver, load, processor, quota

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Facts = dict[str, Any]
FIRST = ("isograd", "torch", "transformers", "accelerate", "tokenizers", "numpy")  # of the versions, on the screen


class Version(TypedDict):
    """A package: its version, null where it is not installed; the range that is wanted."""

    version: str | None
    wanted: str
    fits: bool


class Gpu(TypedDict):
    """A GPU; memory in bytes."""

    name: str
    memory: int
    bf16: bool


class Hub(TypedDict):
    """The hub; `reachable` null where it was not asked."""

    host: str
    offline: bool
    reachable: bool | None


class Cache(TypedDict):
    """A cache, and the variable that moves it."""

    folder: str
    bytes: int
    writable: bool
    set_by: str


class Problem(TypedDict):
    """What is wrong, and what to do."""

    problem: str
    cure: str


class Machine(TypedDict):
    """Versions, hardware, caches, extras, problems.

    Attributes:
        quota: cores whose time a container may use.
        memory: total and available, in bytes.
        extras: of each the packages that are missing.
    """

    python: str
    system: str
    versions: dict[str, Version]
    processor: str
    cores: int
    quota: float | None
    load: float | None
    threads: int
    OMP_NUM_THREADS: str | None
    memory: dict[str, int]
    gpus: list[Gpu]
    nvidia_driver: bool
    cuda: str | None
    bf16: bool | None
    hub: Hub
    caches: dict[str, Cache]
    extras: dict[str, list[str]]
    problems: list[Problem]


def doctor() -> Annotated[Result, Machine]:
    """Versions, hardware, caches, extras; problems, each with its cure.

    examples:
      isograd doctor
      isograd doctor --json > doctor.json

    It always exits with 0.
    """
    with loading():
        facts = gather()
    facts["problems"] = [{"problem": problem, "cure": cure} for problem, cure in problems(facts)]
    return Result(facts, partial(_print, facts))


def gather() -> Facts:
    """Everything but the problems; no environment variable but those named here is read out."""
    import psutil
    import torch

    memory = psutil.virtual_memory()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": _versions(),
        "processor": processor(),
        "cores": cores(),
        "quota": quota(),
        "load": load(),
        "threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "memory": {"total": memory.total, "available": memory.available},
        "gpus": _gpus(),
        "nvidia_driver": has_nvidia_driver(),
        "cuda": torch.version.cuda,
        "bf16": computes_bf16(),
        **_folders(),
        "extras": _extras(),
    }


def problems(facts: Facts) -> Iterator[tuple[str, str]]:
    """What is wrong, and what to do about it."""
    for name, one in facts["versions"].items():
        if one["version"] is None:
            yield f"{name} is not installed", f"pip install '{name}{one['wanted']}'"
        elif not one["fits"]:
            yield (
                f"{name} {one['version']}: isograd needs {name}{one['wanted']}",
                f"pip install '{name}{one['wanted']}'",
            )
    if facts["nvidia_driver"] and not facts["gpus"]:
        built = "built without CUDA" if facts["cuda"] is None else f"built for CUDA {facts['cuda']}, finds no GPU"
        yield f"a driver of NVIDIA's is here, and torch, {built}", "install the build that pytorch.org names for it"
    yield from _busy(facts)
    for name, one in facts["caches"].items():
        if not one["writable"]:
            yield (
                f"the cache of {name}, {one['folder']}, cannot be written",
                f"make it writable, or set {one['set_by']}",
            )
    if facts["hub"]["reachable"] is False:
        cure = "check the network or a proxy (HTTPS_PROXY); HF_HUB_OFFLINE=1 stops asking"
        yield f"{facts['hub']['host']} cannot be reached: what is not in the cache cannot be loaded", cure


def _busy(facts: Facts) -> Iterator[tuple[str, str]]:
    now, threads, cure = facts["load"], facts["threads"], "OMP_NUM_THREADS=1 for small models (docs/performance.md)"
    if facts["quota"] is not None and threads > facts["quota"] + 0.5:
        said = f"torch takes {threads} threads, and this container may use {facts['quota']:.3g} cores' time"
        yield said, f"OMP_NUM_THREADS={max(1, int(facts['quota']))}"
    if now is not None and now > facts["cores"] and not facts["gpus"]:
        busy = f"the machine is busy: load {now:.1f} on {facts['cores']} cores"
        alone = "times will vary; measure again when it is idle"
        yield busy, f"{cure}; {alone}" if threads > 1 else alone


def _versions() -> Facts:
    """Of what isograd needs: the version, the range, and whether one fits the other."""
    found: Facts = {"isograd": {"version": _isograd(), "wanted": "", "fits": True}}
    for one in _required():
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            has = _version(one.name)
            fits = has is not None and one.specifier.contains(has, prereleases=True)
            found[one.name] = {"version": has, "wanted": str(one.specifier), "fits": fits}
    return found


def _extras() -> Facts:
    """Of each extra the packages that are missing; those that gather others are left out."""
    found: dict[str, list[str]] = {}
    several = set()
    for one in _required():
        for extra in _extra_of(one):
            if len(one.extras) > 1:
                several.add(extra)
            if one.name == "isograd":
                continue
            found.setdefault(extra, [])
            has = _version(one.name)
            if has is None or not one.specifier.contains(has, prereleases=True):
                found[extra].append(f"{one.name}{one.specifier}")
    return {name: missing for name, missing in found.items() if name not in several}


def _extra_of(one: "Requirement") -> list[str]:
    """The extras that ask for a requirement, of which metadata have one line each."""
    if one.marker is None or one.marker.evaluate({"extra": ""}):
        return []
    return [word for word in str(one.marker).split('"')[1::2] if one.marker.evaluate({"extra": word})]


def _required() -> "list[Requirement]":
    """What the installed package says; nothing where isograd runs from a folder that was never installed."""
    from packaging.requirements import Requirement

    try:
        return [Requirement(line) for line in requires("isograd") or ()]
    except PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _isograd() -> str:
    from isograd import __version__
    from isograd.machine import commit

    return f"{__version__}{f' ({known})' if (known := commit()) else ''}"


def _gpus() -> list[Facts]:
    import torch

    found = []
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        with torch.cuda.device(i):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        found.append({"name": about.name, "memory": about.total_memory, "bf16": bf16})
    return found


def _folders() -> Facts:
    """The hub, and the caches with their sizes."""
    from huggingface_hub import constants

    from isograd.hub import data_sets, standing

    caches = {
        "isograd": (cache_folder(), "XDG_CACHE_HOME"),
        "models": (Path(constants.HF_HUB_CACHE), "HF_HOME"),
        "data sets": (data_sets(), "HF_HOME"),
    }
    return {
        "hub": standing(),
        "caches": {
            name: {"folder": str(folder), "bytes": _size(folder), "writable": _writable(folder), "set_by": variable}
            for name, (folder, variable) in caches.items()
        },
    }


def _size(folder: Path) -> int:
    """Bytes below a folder; a link counts as itself."""
    files = (Path(home, name) for home, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.exists())


def _writable(folder: Path) -> bool:
    """Whether it can be written, or made."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _print(facts: Facts) -> None:
    """One screen."""
    print_table(["", ""], [[name, escape(text)] for name, text in _lines(facts)], left=2)
    output().print()
    for one in facts["problems"]:
        output().print(f"[red]problem:[/] {escape(one['problem'])}\n  {escape(one['cure'])}")
    if not facts["problems"]:
        output().print("no problem found")


def _lines(facts: Facts) -> Iterator[tuple[str, str]]:
    from isograd.cli.console import bytes_in_words

    versions = facts["versions"]
    named = [name for name in FIRST if name in versions]
    yield "versions", ", ".join([f"{one} {versions[one]['version']}" for one in named] + [f"Python {facts['python']}"])
    bf16 = {True: ", bf16", False: ", no bf16 of its own", None: ""}[facts["bf16"]]
    limit = f", {facts['quota']:.3g} cores' time allowed" if facts["quota"] else ""
    yield "processor", f"{facts['processor']}, {facts['cores']} cores{limit}{bf16}; {facts['system']}"
    now = "unknown" if facts["load"] is None else f"{facts['load']:.1f}"
    said = facts["OMP_NUM_THREADS"]
    yield (
        "threads",
        f"torch takes {facts['threads']}, OMP_NUM_THREADS {f'is {said}' if said else 'is not set'}; load {now}",
    )
    memory = facts["memory"]
    yield "memory", f"{bytes_in_words(memory['total'])}, {bytes_in_words(memory['available'])} available"
    for gpu in facts["gpus"] or [None]:
        yield (
            "GPU",
            f"{gpu['name']}, {bytes_in_words(gpu['memory'])}{', bf16' if gpu['bf16'] else ''}" if gpu else "none",
        )
    for name, one in facts["caches"].items():
        yield f"cache, {name}", f"{bytes_in_words(one['bytes'])} in {one['folder']}"
    hub = facts["hub"]
    answers = {None: "not asked", True: "reachable", False: "cannot be reached"}[hub["reachable"]]
    yield "hub", f"{hub['host']}: {'offline by HF_HUB_OFFLINE' if hub['offline'] else answers}"
    yield "extras", ", ".join(name for name, missing in facts["extras"].items() if not missing) or "none"
    absent = [name for name, missing in facts["extras"].items() if missing]
    if absent:
        yield "", f"not installed: pip install 'isograd[{','.join(absent)}]'"
