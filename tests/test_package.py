"""What is shipped: sdist and wheel in an environment of their own, extras by the names that messages say, versions."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import isograd
from tests.study.arms import called

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def test_extras_are_named_as_they_can_be_installed() -> None:
    texts = [p for folder in ("isograd", "docs") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md")]
    named = {
        extra
        for path in (*texts, ROOT / "README.md")
        if "_build" not in path.parts
        for group in re.findall(r"(?:isograd|'\.)\[([a-z,]+)\]", path.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    named -= {"extra"}  # what a docstring calls any of them
    assert len(named) > 5 and named <= PROJECT["optional-dependencies"].keys()


def least(requirement: str) -> tuple[str, str]:
    name, version = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement).groups()  # type: ignore[union-attr]
    return name, version


def test_the_lower_bounds_are_those_that_are_tested() -> None:
    lines = (ROOT / "constraints-lower.txt").read_text().splitlines()
    held = dict(line.split("==") for line in lines if not line.startswith("#"))
    bounds = dict(map(least, [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["lab"]]))
    assert held.pop("pyparsing")  # of matplotlib's
    said = {name: ".".join(version.split(".")[: bounds[name].count(".") + 1]) for name, version in held.items()}
    assert said == bounds


def test_versions_agree() -> None:
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    first, *_ = re.findall(r"^## (\S+), (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first[0] == said == isograd.__version__
    assert first[1] == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", first[1])
    kinds = {
        kind.partition(":")[0] for kind in re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    }
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_issue_forms_ask_for_something() -> None:
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    for form in forms:
        content = yaml.safe_load(form.read_text())
        if form.stem != "config":
            ids = [part["id"] for part in content["body"]]
            assert {"name", "description"} <= content.keys() and len(set(ids)) == len(ids) > 0
    assert len(forms) == 4


def test_git_archive_writes_the_commit_down() -> None:
    written = Path(isograd.__file__).with_name("commit.txt")
    assert written.read_text() == "$Format:%h$\n"
    assert "isograd/commit.txt export-subst" in (ROOT / ".gitattributes").read_text()


def copied(to: Path) -> Path:
    """The files that git has, or would take."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    (to / "isograd" / "commit.txt").write_text("abc1234\n")  # as git archive does
    return to


def ran(*command: str | Path, folder: Path, **environment: str) -> str:
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=alone | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_of_the_sdist_works_alone(tmp_path: Path) -> None:
    """In a new environment, which sees the packages of this one but not this checkout."""
    pytest.importorskip("setuptools", minversion="77")
    sdist = ran(sys.executable, "-c", BUILD, "build_sdist", tmp_path, folder=copied(tmp_path / "source")).split()[-1]
    with tarfile.open(tmp_path / sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.removesuffix(".tar.gz")
    wheel = tmp_path / ran(sys.executable, "-c", BUILD, "build_wheel", tmp_path, folder=unpacked).split()[-1]
    with zipfile.ZipFile(wheel) as packed_wheel:
        names = set(packed_wheel.namelist())
        (metadata,) = (packed_wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
    tracked = {str(p.relative_to(ROOT)) for p in (ROOT / "isograd").rglob("*") if p.suffix in (".py", ".yaml", ".j2")}
    assert tracked | {"isograd/cli/SKILL.md"} <= names and not {
        name for name in names if name.startswith(("tests/", "benchmarks/"))
    }
    assert set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE)) == PROJECT["optional-dependencies"].keys()
    ran(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare", folder=tmp_path)
    (packages,) = (tmp_path / "bare").glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as packed_wheel:
        packed_wheel.extractall(packages)
    (packages / "rest.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    python, verb = tmp_path / "bare/bin/python", ["-m", "isograd"]
    assert str(packages) in ran(python, "-c", "import isograd; print(isograd.__file__)", folder=tmp_path)
    assert ran(python, *verb, "--version", folder=tmp_path) == f"isograd {isograd.__version__} (abc1234)\n"
    assert ran(python, *verb, "list", folder=tmp_path) == called("show")[1]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran(python, *verb, "init-recipe", folder=tmp_path)
    few = ["training.steps=4", "training.warmup=1", "training.valid_every=4", "training.batch=2"]
    ran(python, *verb, "train", "embedded.yaml", *few, folder=tmp_path, **cache)
    assert ran(python, *verb, "open", "runs/embedded", folder=tmp_path).strip().endswith("report.html")
    (tmp_path / "test_it.py").write_text("def test_it(isograd_check):\n    assert callable(isograd_check)\n")
    assert "1 passed" in ran(python, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py", folder=tmp_path)
