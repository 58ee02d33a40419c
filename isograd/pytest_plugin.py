"""The pytest plugin: `isograd.check`, `preflight` and `watch` as fixtures. Loading it does not import torch.

def test_model(isograd_check):
    isograd_check(build_model())

def test_run(isograd_preflight):
    isograd_preflight(build_trainer())

def test_training(isograd_watch):
    watch = isograd_watch(model, optimizer=optimizer)
    ...                                        # a few steps with watch.step(loss)
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from isograd.errors import many

if TYPE_CHECKING:
    from torch import nn

    from isograd.diagnose.watch import Watch
    from isograd.lint import Findings
    from isograd.lint.step import Preflight

LEVELS = ("error", "warning", "info")
_INI = {
    "isograd_level": ("the least severity at which isograd_check fails: error, warning or info", "string", "error"),
    "isograd_ignore": ("codes and signals that are not reported, separated by white space", "args", []),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("isograd")
    group.addoption("--isograd-level", choices=LEVELS, help=f"{_INI['isograd_level'][0]} (default: isograd_level)")
    group.addoption(
        "--isograd-ignore", action="append", default=[], metavar="CODE", help="a code that is not reported; repeatable"
    )
    for name, (text, kind, default) in _INI.items():
        parser.addini(name, text, type=kind, default=default)  # type: ignore[arg-type]


def _level(config: pytest.Config) -> str:
    level = config.getoption("--isograd-level") or config.getini("isograd_level")
    if level not in LEVELS:
        raise pytest.UsageError(f"isograd_level = {level}: expected one of {', '.join(LEVELS)}")
    return str(level)


def _ignored(config: pytest.Config) -> list[str]:
    return [*config.getini("isograd_ignore"), *config.getoption("--isograd-ignore")]


def _refuse_unknown(ignored: Iterable[str]) -> None:
    from isograd.diagnose.watch import SIGNALS
    from isograd.errors import hint
    from isograd.lint.check import CODES
    from isograd.lint.step.report import CODES as OF_STEP

    every = CODES | OF_STEP | SIGNALS
    for code in ignored:
        if code not in every:
            what = "neither a code of isograd check or preflight nor a signal of isograd.watch"
            raise pytest.UsageError(f"isograd_ignore: {code!r} is {what}; {hint(code, sorted(every))}")


def _asking(config: pytest.Config, verb: str) -> "Callable[..., Any]":
    """`isograd.check` or `isograd.preflight`, failing with the findings of a level and above."""
    usual, ignored = _level(config), _ignored(config)

    def ask(*given: Any, level: str | None = None, ignore: Iterable[str] = (), **more: Any) -> Any:
        __tracebackhide__ = True
        import isograd
        from isograd.lint.check import CODES
        from isograd.lint.step.report import CODES as OF_STEP

        wanted = level or usual
        if wanted not in LEVELS:
            raise ValueError(f"level={wanted!r}; expected one of {', '.join(LEVELS)}")
        _refuse_unknown(ignored)
        known = CODES if verb == "check" else CODES | OF_STEP
        codes = [*(code for code in ignored if code in known), *ignore]  # a signal of the watch is none
        findings = getattr(isograd, verb)(*given, ignore=codes, **more)
        failing = [one for one in findings if one.severity in LEVELS[: LEVELS.index(wanted) + 1]]
        if failing:
            said = [f"{one.severity} {one.code}{f' at {one.address}' if one.address else ''}" for one in failing]
            parts = zip(said, failing, strict=True)
            lines = [f"  {head}\n    {one.message}\n    -> {one.remedy}" for head, one in parts]
            raise AssertionError(
                "\n".join([f"isograd {verb} of {findings.model}: {many(len(failing), 'finding')}", *lines])
            )
        return findings

    return ask


@pytest.fixture
def isograd_check(request: pytest.FixtureRequest) -> "Callable[..., Findings]":
    """Checks a model: `isograd_check(model, batch, level="warning", ignore=["norm-eps"])`.

    It takes what `isograd.check` does, and returns its findings; it fails with those of `level` and above.
    """
    return _asking(request.config, "check")


@pytest.fixture
def isograd_preflight(request: pytest.FixtureRequest) -> "Callable[..., Preflight]":
    """Looks at a run before it begins: `isograd_preflight(trainer)`, or `isograd_preflight(model, loss=.., data=..)`.

    It takes what `isograd.preflight` does, and returns its report; it fails with findings of `level` and above.
    """
    return _asking(request.config, "preflight")


@pytest.fixture
def isograd_watch(request: pytest.FixtureRequest) -> "Iterator[Callable[..., Watch]]":
    """Watches a run: `isograd_watch(model, optimizer=..)` as `isograd.watch`; its warnings fail the test at its end."""
    watches: list[Watch] = []
    ignored = _ignored(request.config)

    def watch(model: "nn.Module", **settings: Any) -> "Watch":
        import isograd

        _refuse_unknown(ignored)
        watches.append(isograd.watch(model, **settings))
        return watches[-1]

    yield watch
    for one in watches:
        one.close()
    warned = [row for one in watches for row in one.warnings if row["signal"] not in ignored]
    if warned:
        lines = [f"  {row['signal']}: {row['message']}" for row in warned]
        pytest.fail("\n".join([f"isograd.watch: {many(len(warned), 'warning')}", *lines]), pytrace=False)
