"""The fixtures in a project's own tests, as pytest runs them there."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

import isograd.diagnose.watch
import isograd.lint

pytest_plugins = ["pytester"]
INSTALLED = any(one.value == "isograd.pytest_plugin" for one in entry_points(group="pytest11"))
MODELS = """
import torch
from torch import nn

def stack(norm):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 3, norm=norm, enable_nested_tensor=False)

def bare():
    made = stack(nn.LayerNorm(32))
    made.register_parameter("spare", nn.Parameter(torch.ones(32)))
    return made

def normed():
    return stack(nn.LayerNorm(32))
"""


TESTS = """
import torch
from some_stacks import bare, normed

def test_bare(isograd_check):
    isograd_check(bare())

def test_normed(isograd_check):
    findings = isograd_check(normed())
    assert set(findings.placements.values()) == {"pre-ln"}

def test_ignored(isograd_check):
    isograd_check(bare(), ignore=["parameter-unused"])

def run_of(rate):
    model = normed()
    data = [(x, x.flip(1)) for x in torch.randn(12, 4, 8, 32)]
    optimizer = torch.optim.SGD(model.parameters(), rate)
    loss = torch.nn.MSELoss()
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer}

def test_rate(isograd_preflight):
    assert "step" in isograd_preflight(run_of(1e-2), prove=False).groups

def test_no_rate(isograd_preflight):
    isograd_preflight(run_of(0.0), prove=False)

def steps(watch, moves):
    model = normed()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    watched = watch(model, optimizer=optimizer)
    for i in range(20):
        loss = model(torch.randn(2, 8, 32)).square().mean()
        loss.backward()
        watched.step(loss)
        if moves:
            optimizer.step()
        optimizer.zero_grad()

def test_moves(isograd_watch):
    steps(isograd_watch, True)

def test_stands_still(isograd_watch):
    steps(isograd_watch, False)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """What its tests need is imported above: pytest forgets what a run here imports, and torch bears one import."""
    monkeypatch.setenv("PYTHONPATH", str(Path(isograd.__file__).parents[1]))
    pytester.makepyfile(some_stacks=MODELS, test_stacks=TESTS)
    return pytester


def run(project: pytest.Pytester, *words: str, inprocess: bool = True) -> pytest.RunResult:
    plugin = () if INSTALLED else ("-p", "isograd.pytest_plugin")
    start = project.runpytest_inprocess if inprocess else project.runpytest_subprocess
    return start(*plugin, "-p", "no:cacheprovider", *words)


@pytest.mark.parametrize("inprocess", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_findings_and_warnings_fail_a_test(inprocess: bool, project: pytest.Pytester) -> None:
    done = run(project, inprocess=inprocess)
    done.assert_outcomes(passed=5, failed=2, errors=1)  # those that pass are the negative controls
    done.stdout.re_match_lines_random(
        [
            r"E +AssertionError: isograd check of TransformerEncoder: \d+ findings?",
            r"E +error parameter-unused at spare",
            r"E +-> .+",
            r"E +AssertionError: isograd preflight of TransformerEncoder: 1 finding",
            r"E +error lr-zero",
            r"isograd.watch: 1 warning",
            r" +updates: step \d+: no weight has moved.*",
        ]
    )
    assert "pytest_plugin.py" not in done.stdout.str()  # the traceback ends in the test


def test_level_and_codes_by_option_and_by_ini(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nisograd_ignore = parameter-unused updates lr-zero\nisograd_level = info")
    done = run(project, "--isograd-level", "error")
    done.assert_outcomes(passed=7)


def test_a_code_that_does_not_exist(project: pytest.Pytester) -> None:
    done = run(project, "-k", "bare", "--isograd-ignore", "final-norm-mising")
    done.assert_outcomes(failed=1)
    done.stdout.re_match_lines_random(
        [r"E .*isograd_ignore: 'final-norm-mising' is .*did you mean 'final-norm-missing'"]
    )


def test_a_level_that_does_not_exist(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nisograd_level = loud")
    done = run(project, "-k", "bare")
    done.assert_outcomes(errors=1)
    done.stdout.re_match_lines_random([r".*isograd_level = loud: expected one of error, warning, info"])


def test_loading_the_plugin_costs_nothing(project: pytest.Pytester) -> None:
    """Where no test asks for a fixture, torch is never imported."""
    heavy = "{'torch', 'transformers', 'numpy'} & {*sys.modules}"
    project.makepyfile(test_other=f"import sys\n\ndef test_no_torch():\n    assert not {heavy}\n")
    run(project, "test_other.py", inprocess=False).assert_outcomes(passed=1)
