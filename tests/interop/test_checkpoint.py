"""A checkpoint is read without running anything in it; what it must not name is named and refused."""

import argparse
import builtins
import collections
import enum
import io
import os
import pickle
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isograd.convert.checkpoints.checkpoint import plain, read_checkpoint, tensors
from isograd.errors import CheckpointError
from tests.build import in_turn


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Builds(argparse.Namespace):
    """Pickles as an object whose state is set."""


def payloads(mark: Path) -> dict[str, Any]:
    """Name that is refused -> what would write `mark`, or lead there."""
    write = f"open({str(mark)!r}, 'w').close()"
    return {
        "posix.system": Calls(os.system, f"touch {mark}"),
        "builtins.exec": Calls(exec, write),
        "builtins.eval": Calls(eval, write),
        "builtins.getattr": Calls(builtins.getattr, "torch", "load"),
        "io.open": Calls(io.open, str(mark), "w"),
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(mark)]),
        "torch.serialization.load": Calls(torch.load, str(mark)),
        "pickle.loads": Calls(pickle.loads, b"."),
        "tests.interop.test_checkpoint.Builds": Builds(a=1),
    }


def saved(content: Any, path: Path, new: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=new)
    return path


STATE = collections.OrderedDict(w=torch.arange(6.0).view(2, 3), h=torch.ones(2, dtype=torch.float16))


PLACES = ["beside", "among the weights", "in the options", "alone"]


@in_turn("place, name, new", PLACES, list(payloads(Path("mark"))), [True, False])
def test_what_would_run_is_named_and_refused(name: str, place: str, new: bool, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    payload = payloads(mark)[name]
    content = {
        "beside": {"model": STATE, "args": payload},
        "among the weights": {"model": STATE | {"x": payload}},
        "in the options": {"model": STATE, "args": argparse.Namespace(a=[payload])},
        "alone": payload,
    }[place]
    path = saved(content, tmp_path / "model.pt", new)
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(path)
    assert name in str(refused.value).replace("_io.open", "io.open").replace("_pickle.", "pickle.")
    assert "\n" not in str(refused.value)
    assert not mark.exists() and [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_the_payloads_would_write(tmp_path: Path) -> None:
    """The negative control: without care they do."""
    for name in ("posix.system", "builtins.exec"):
        mark = tmp_path / name
        torch.load(saved({"model": STATE, "args": payloads(mark)[name]}, tmp_path / "model.pt"), weights_only=False)
        assert mark.exists()


def test_a_pickle_by_hand_is_refused(tmp_path: Path) -> None:
    """Not of torch.save at all, or with the magic number alone."""
    mark = tmp_path / "mark"
    for payload in payloads(mark).values():
        for protocol in (0, 2, 4):
            (tmp_path / "model.pt").write_bytes(pickle.dumps(payload, protocol))
            with pytest.raises(CheckpointError, match=r"no checkpoint of torch\.save|nothing of it was run"):
                read_checkpoint(tmp_path / "model.pt")
    magic = pickle.dumps(torch.serialization.MAGIC_NUMBER, 2)
    (tmp_path / "model.pt").write_bytes(magic + pickle.dumps(Calls(os.system, f"touch {mark}"), 2))
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        read_checkpoint(tmp_path / "model.pt")
    assert not mark.exists()


def test_a_name_behind_a_second_archive_is_refused(tmp_path: Path) -> None:
    """Two pickles in one archive: whichever torch reads, nothing runs."""
    mark = tmp_path / "mark"
    path = saved({"model": STATE}, tmp_path / "model.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("another/data.pkl", pickle.dumps(Calls(os.system, f"touch {mark}"), 2))
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not mark.exists()


def test_torchscript_is_refused(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint of torch\.save"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_weights_and_options_are_read(new: bool, tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "args": argparse.Namespace(arch="transformer", encoder_layers=2, adam_betas="(0.9, 0.98)", path=None),
        "model": STATE | {"p": torch.nn.Parameter(torch.ones(1)), "v": torch.ones(3).double()[1:]},
        "extra_state": {"epoch": 3, "best": np.float64(2.5), "counts": collections.defaultdict(list, {"a": [1]})},
        "optimizer_history": [{"num_updates": 10**12}],
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(2)}}},
    }
    got = read_checkpoint(saved(content, tmp_path / "model.pt", new))
    assert plain(got["args"]) == vars(content["args"])
    found = tensors(got["model"])
    assert list(found) == ["w", "h", "p", "v"]
    assert all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in content["model"].items())
    assert plain(got["extra_state"]["counts"]) == {"a": [1]} and got["extra_state"]["epoch"] == 3


@pytest.fixture
def libraries() -> Iterator[dict[str, Any]]:
    """fairseq and omegaconf, as far as their pickles go; gone again before anything is read."""
    names = ("omegaconf", "fairseq")
    made: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    sys.modules.update(made)
    for module, name in (("omegaconf", "DictConfig"), ("omegaconf", "AnyNode"), ("fairseq", "AverageMeter")):
        setattr(made[module], name, type(name, (), {"__module__": module}))
    backend = enum.Enum("Backend", {"no_c10d": "no_c10d"}, module="fairseq")  # type: ignore[misc]
    made["fairseq"].Backend = backend
    yield made
    for name in names:
        sys.modules.pop(name, None)


def held(kind: Any, **state: Any) -> Any:
    made = kind()
    made.__dict__.update(state)
    return made


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_objects_of_the_libraries_are_data(libraries: Any, new: bool, tmp_path: Path) -> None:
    """omegaconf's containers and nodes are opened; meters and enums hold what they held. None of them is imported."""
    omegaconf, fairseq = libraries["omegaconf"], libraries["fairseq"]
    layers = held(omegaconf.AnyNode, _val=6, _metadata=None)
    model = held(omegaconf.DictConfig, _content={"encoder_layers": layers, "name": "x"}, _parent=None)
    cfg = held(omegaconf.DictConfig, _content={"model": model, "ddp": fairseq.Backend.no_c10d}, _parent=None)
    content = {"model": STATE, "cfg": cfg, "extra_state": {"meter": held(fairseq.AverageMeter, sum=1.0)}}
    path = saved(content, tmp_path / "model.pt", new)
    for name in libraries:
        del sys.modules[name]
    got = read_checkpoint(path)
    assert plain(got["cfg"]) == {"model": {"encoder_layers": 6, "name": "x"}, "ddp": "no_c10d"}
    assert plain(got["extra_state"]) == {"meter": {"sum": 1.0}}


class Named:
    """An enum's member as Python 3.11.2 stores it, or something else of an object."""

    def __init__(self, of: Any, name: Any) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> Any:
        return getattr, (self.of, self.name)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_member_of_an_enum_by_its_name(libraries: Any, new: bool, tmp_path: Path) -> None:
    backend = libraries["fairseq"].Backend
    path = saved({"model": STATE, "cfg": Named(backend, "no_c10d")}, tmp_path / "model.pt", new)
    assert plain(read_checkpoint(path)["cfg"]) == "no_c10d"
    for of in (dict, "torch", [1]):
        path = saved(
            {"model": STATE, "cfg": Named(of, "clear" if of is dict else "__class__")}, tmp_path / "model.pt", new
        )
        if of is dict:  # a stand-in of it, of which nothing but the name is given
            assert plain(read_checkpoint(path)["cfg"]) == "clear"
            continue
        with pytest.raises(CheckpointError, match=r"model\.pt.*builtins\.getattr"):
            read_checkpoint(path)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_what_is_cut_short_is_refused(new: bool, tmp_path: Path) -> None:
    path = saved({"model": {"w": torch.ones(500)}, "args": argparse.Namespace(a=1)}, tmp_path / "model.pt", new)
    whole = path.read_bytes()
    for size in (0, 1, 7, 40, 200, len(whole) // 2, len(whole) - 9):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model\.pt") as refused:
            read_checkpoint(path)
        assert "\n" not in str(refused.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dict.txt", "a 1\n")
    for content in (None, b"of 3\nthe 2\n" * 20, b"\x80\x02\x8a"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"no checkpoint of torch\.save"):
            read_checkpoint(path)
    for wrong, said in ((tmp_path / "none.pt", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(CheckpointError, match=said):
            read_checkpoint(wrong)


def test_a_state_dict_holds_tensors_alone() -> None:
    with pytest.raises(CheckpointError, match="no state dict of tensors: found lr"):
        tensors({"w": torch.ones(1), "lr": 1.0})
    with pytest.raises(CheckpointError, match="found nothing"):
        tensors({})


@pytest.mark.parametrize("odd", [torch.zeros(2, 2).to_sparse(), torch.zeros(2, 2, dtype=torch.int8)])
def test_sparse_and_quantised_weights_are_named(odd: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"sparse or of whole numbers: a\.weight"):
        tensors({"a.weight": odd, "b.weight": torch.zeros(2)})
    tensors({"a.weight": torch.zeros(2), "position_ids": torch.arange(2)})  # a counter is no weight
