"""Files and folders that are there whole or not at all, and folders with one process at work."""

import resource
from pathlib import Path

import pytest

from isograd.errors import (
    FolderBusyError,
    IsogradError,
    MissingExtra,
    UnknownPlacement,
    hint,
    nearest,
    needed,
    one_line,
)
from isograd.files import is_locked, locked, new_folder, read_rows, write_json, write_text


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    write_json(path, {"x": float("nan"), "é": (1, 2)})
    assert path.read_text() == '{\n  "x": null,\n  "\\u00e9": [\n    1,\n    2\n  ]\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A file may not grow beyond 4 KiB here, as on a full disk: the error names the file, nothing is left beside it."""
    path = tmp_path / "result.json"
    write_text(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError) as refusal:
            write_text(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert one_line(refusal.value) == f"{path}: File too large"
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_rows_up_to_a_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_a_new_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(KeyError), new_folder(tmp_path / "a") as scratch:
        (scratch / "file").write_text("x")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "a") as scratch:
        (scratch / "file").write_text("x")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a" / "file").read_text() == "x" and list(tmp_path.iterdir()) == [tmp_path / "a"]
    with pytest.raises(FileExistsError, match="exists already"), new_folder(tmp_path / "a"):
        pass


def test_one_at_a_time_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert not is_locked(folder) and not folder.exists()
    with locked(folder):
        assert is_locked(folder)
        with pytest.raises(FolderBusyError, match="another process is at work there"), locked(folder):
            pass
    assert not is_locked(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"), locked(tmp_path / "file"):
        pass


def test_errors_say_one_line_and_keep_their_kind() -> None:
    assert issubclass(UnknownPlacement, KeyError) and issubclass(UnknownPlacement, IsogradError)
    assert str(UnknownPlacement("a 'b'")) == "a 'b'"
    assert one_line(FileNotFoundError(2, "No such file", "x.yaml")) == "x.yaml: No such file"
    assert one_line(ValueError("a\n  b")) == "a b" and one_line(ValueError()) == "ValueError"
    with pytest.raises(MissingExtra, match=r"pip install 'isograd\[export\]'"):
        needed("export", "no_such_module.inside")


def test_a_hint_is_a_name_elsewhere_a_near_one_or_all() -> None:
    keys = ["model.layers", "model.encoder_layers", "training.lr", "training.batch", "data.length", "model.placement"]
    for name, said in {
        "n_layer": "model.layers",
        "model.num_hidden_layers": "model.layers",
        "training.learning_rate": "training.lr",
        "batch_size": "training.batch",
        "training.layers": "model.layers",
        "norm": "model.placement",
        "model.layesr": "model.layers",
    }.items():
        assert hint(name, keys) == f"did you mean {said!r}?"
    assert nearest("--n-layer", ["--layers", "--lr"]) == "--layers" and nearest("--workers", ["--jobs"]) == "--jobs"
    assert hint("?", ["layers", "width"]) == "choose one of layers, width"
