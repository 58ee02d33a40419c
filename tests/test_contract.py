"""What stays, whatever moves behind it: the public names, and that documentation and examples teach no others."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = {
    "isograd": """IsogradConfig IsogradForCausalLM IsogradForMaskedLM IsogradForSeq2SeqLM
        IsogradForSequenceClassification
        LightningWatch OwnLoop Placement WatchCallback calibrate check conform get graft preflight register transfer
        watch""",
    "isograd.convert": """ParityReport Runner export_folder fold from_transformers import_pretrained measure
        to_transformers""",
    "isograd.lab": """Boundary Model PairsSection RateSearch Run TextData TextTraining TranslationModel TranslationRun
        TranslationTraining compare constant_scores draw load_causal_model load_corpus load_glue load_parallel load_run
        load_study load_task load_tasks next_rate on_ray plan run_cells write_report zero_shot""",
    "isograd.papers": "CLAIMS Layout dependency_map from_fairseq from_torch verdicts",
}
ROOMS = (  # of core, whose own names are public where they have no underscore
    "isograd.placement",
    "isograd.residual",
    "isograd.diagnose",
    "isograd.errors",
    "isograd.models",
    "isograd.lint.conform",
    "isograd.transformer.streams",
    "isograd.machine",
    "isograd.cli",
)
TAUGHT = re.compile(r"^\s*(from isograd[\w.]* import (?:\([^)]*\)|[^\n#(]+)|import isograd[\w.]*)", re.MULTILINE)


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_these(package: str) -> None:
    module = import_module(package)
    assert set(module.__all__) == set(PUBLIC[package].split())
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'nothing_of_that_name'"):
        _ = module.nothing_of_that_name


def taught() -> list[tuple[str, str, str]]:
    """Where, module, name: of every import in README, docs and examples."""
    folders = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/tutorials").glob("*.md")]
    found = []
    for path in [*folders, *(ROOT / "docs/check").glob("*.md"), *(ROOT / "examples").rglob("*.py")]:
        for line in TAUGHT.findall(path.read_text(encoding="utf-8")):
            (node,) = ast.parse(line.strip()).body
            names = [alias.name for alias in node.names]  # type: ignore[attr-defined]
            if isinstance(node, ast.ImportFrom):
                found += [(path.name, node.module or "", name) for name in names]
            else:
                found += [(path.name, name, "") for name in names]
    return found


def test_only_public_names_are_taught() -> None:
    """A path into a storey is no public name: it may move."""
    lines = taught()
    assert len(lines) > 40
    strangers = [
        (where, module, name)
        for where, module, name in lines
        if not (name and name in PUBLIC.get(module, "").split())
        and not any(module == room or module.startswith(f"{room}.") for room in ROOMS)
        and module not in PUBLIC | {f"isograd.{name}": None for name in PUBLIC["isograd"].split()}
    ]
    assert strangers == []
