"""The conformance suite passes what is right, and names what ports get wrong."""

import json
import re
import runpy
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isograd
from isograd.errors import UserError
from isograd.lint.conform import (
    MISTAKES,
    Conformance,
    Own,
    Setting,
    conform,
    designs,
    kind_of,
    meanings,
    weights_of,
)
from isograd.lint.conform.driven import Driven, difference_of
from isograd.lint.conform.equations import Equation
from isograd.lint.conform.mistakes import possible
from isograd.lint.conform.setting import design_of
from isograd.lint.conform.suite import Suite
from isograd.placement import CATALOGUE, Coupled, get
from isograd.placement.streams import Hyper
from isograd.residual import wiring
from tests.build import few
from tests.study.arms import called

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/conform.md"


def port(*changes: tuple[str, str]) -> str:
    """The example's adapter, with lines of the port changed."""
    source = (PAGE.parents[1] / "examples/mhc_port.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


def verdict(*changes: tuple[str, str]) -> Conformance:
    names: dict[str, Any] = {"__name__": "my_mhc"}
    exec(compile(port(*changes), "my_mhc.py", "exec"), names)
    return isograd.conform(names["Port"], "mhc")


def test_the_examples_adapter_passes() -> None:
    report = verdict()
    assert report, report
    assert all(row.status == "passed" for row in report.rows) and not report.lines()


SINKHORN = "mix = torch.softmax(mix, dim=-1) + self.eps"
WRONG: dict[str, list[tuple[str, str]]] = {  # what public ports have done -> lines of the port
    "outputs-swapped": [("read, write, mix = (flat", "write, read, mix = (flat"),
                        ("read_base, write_base, mix_base", "write_base, read_base, mix_base"),
                        ("read * self.scale[0]", "read * self.scale[1]"),
                        ("write * self.scale[1]", "write * self.scale[0]")],
    "mix-transposed": [("mix.transpose(-1, -2) @", "mix @")],
    "sinkhorn-from-exp": [(SINKHORN, "mix = mix.exp()")],
    "sinkhorn-eps-missing": [(SINKHORN, "mix = torch.softmax(mix, dim=-1)")],
    "read-eps-missing": [("self.scale[0] + read_base) + self.eps", "self.scale[0] + read_base)")],
    "softmax-over-columns": [("softmax(mix, dim=-1)", "softmax(mix, dim=-2)")],
    "write-not-doubled": [("write = 2 * torch", "write = torch")],
    "no-sinkhorn": [("        mix = mix / (mix.sum(-2, keepdim=True) + self.eps)\n        for _", "        for _"),
                    ("range(self.iterations - 1)", "range(0)")],
}  # fmt: skip


@pytest.mark.parametrize("name", few(WRONG, ["outputs-swapped"]))
def test_each_mistake_of_a_port_is_named(name: str) -> None:
    report = verdict(*WRONG[name])
    assert not report
    assert [one.name for one in report.mistakes] == [name], report
    (line,) = report.lines()
    assert "\n" not in line and " -> " in line


def test_two_mistakes_at_once_are_named() -> None:
    report = verdict(*WRONG["mix-transposed"], *WRONG["read-eps-missing"])
    assert {one.name for one in report.mistakes} == {"mix-transposed", "read-eps-missing"}


def test_gradients_that_are_cut() -> None:
    report = verdict(("flat = streams.flatten(-2)", "flat = streams.detach().flatten(-2)"))
    assert [row.check for row in report.rows if row.status == "failed"] == ["gradients"]


def test_an_init_that_is_not_the_papers() -> None:
    report = verdict(("torch.cat([torch.full((n,), -math.log(n - 1))", "torch.cat([torch.zeros(n)"))
    assert [row.check for row in report.rows if row.status == "failed"] == ["init"]


def test_weights_that_are_stored_around_1() -> None:
    class Around(nn.Module):
        """LayerNorm's weight as Gemma's classes keep it, and a checkpoint that has it as it is."""

        def __init__(self, setting: Setting) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(setting.width, setting.eps) for _ in range(setting.sublayers))

        def load(self, weights: dict[str, Tensor]) -> None:
            self.double()
            for k, norm in enumerate(self.norms):
                norm.load_state_dict({n: weights[f"parts.{k}.post.{n}"] for n in ("weight", "bias")})

        def open(self, x: Tensor) -> Tensor:
            return x

        def read(self, state: Tensor, k: int) -> Tensor:
            return state

        def write(self, state: Tensor, u: Tensor, k: int) -> Tensor:
            norm = self.norms[k]
            return nn.functional.layer_norm(state + u, norm.normalized_shape, 1 + norm.weight, norm.bias, norm.eps)

        def close(self, state: Tensor) -> Tensor:
            return state

    report = conform(Around, "post-ln")
    assert [one.name for one in report.mistakes] == ["weights-around-1"]


def test_an_unknown_difference_says_where() -> None:
    report = verdict(("write = 2 * torch", "write = 3 * torch"))
    assert not report.mistakes
    assert report.lines() == [
        "writes and mixes: a difference first in what branch 1 reads (random weights), and none of the 10 mistakes"
        " known of this design",
        "no difference where branches write 0: look at how their output is written",
    ]
    report = verdict(("flat = streams.flatten(-2)", "flat = streams.float().double().flatten(-2)"))
    assert "set `dtype = torch.float32`" in report.lines()[0]
    report = verdict(("return self.head(state)", "return self.head(state)[0]"))
    assert "ValueError: shape (3, 8); expected (2, 3, 8)" in str(report)
    report = verdict(('weights[f"{place}.base"]', 'weights["base"]'))
    assert report.lines() == [
        "load raised KeyError: 'base' -> `isograd conform NAME --weights` lists what it gets, by name and shape"
    ]
    report = verdict(("return x, (mixed, write)", "return [x, mixed, write]"))
    assert report.lines() == [
        "read of branch 0 raised TypeError: 3 values; expected what the branch reads, or a tuple of that and what"
        " `write` needs"
    ]
    report = verdict(("return self.head(state)", "return self.head(state) / 0"))
    assert report.lines() == ["close: not finite in what the stream closes with (random weights)"]


class InPlace:
    """x += u, as code for inference does: what was read before must not change with it, nor what was given."""

    def __init__(self, setting: Setting) -> None: ...

    def load(self, weights: dict[str, Tensor]) -> None: ...

    def open(self, x: Tensor) -> Tensor:
        return x

    def read(self, state: Tensor, k: int) -> Tensor:
        return state

    def write(self, state: Tensor, u: Tensor, k: int) -> Tensor:
        state += u
        u.zero_()
        return state

    def close(self, state: Tensor) -> Tensor:
        return state


def test_a_port_that_writes_in_place() -> None:
    report = conform(InPlace, "pre-ln")
    assert report, report


def test_a_port_with_dropout_is_asked_in_eval_mode() -> None:
    assert verdict(
        ("        self.head = Head(", "        self.drop = nn.Dropout(0.5)\n        self.head = Head("),
        ("return self.head(state)", "return self.drop(self.head(state))"),
    )


@pytest.mark.parametrize("name", designs())
def test_our_own_part_passes(name: str) -> None:
    report = conform(Own, name)
    assert report, report


class Mistaken:
    """The equations with one mistake, as an adapter."""

    def __init__(self, setting: Setting, mistake: str) -> None:
        self.suite, self.mistake = Suite(Own, setting), mistake
        self.equation: Equation

    def load(self, weights: dict[str, Tensor]) -> None:
        self.equation = self.suite.equation(weights, self.mistake)

    def open(self, x: Tensor) -> Any:
        return self.equation.open(x)

    def read(self, state: Any, k: int) -> Tensor:
        return self.equation.read(state, k)

    def write(self, state: Any, u: Tensor, k: int) -> Any:
        return self.equation.write(state, u, k)

    def close(self, state: Any) -> Tensor:
        return self.equation.close(state)


def every_mistake() -> Iterator[tuple[str, str]]:
    """Each mistake with the first placement in which it can be made."""
    for mistake in MISTAKES:
        yield next((name, mistake.name) for name in designs() if mistake in possible(design_of(name)))


@pytest.mark.parametrize("made", few(every_mistake(), 6), ids=str)
def test_every_mistake_of_the_table_is_recognized(made: tuple[str, str]) -> None:
    """Also in float32: it is far above what rounding does there."""
    name, mistake = made
    report = conform(lambda setting: Mistaken(setting, mistake), name)
    assert [one.name for one in report.mistakes] == [mistake]
    assert max(row.difference or 0 for row in report.rows[:3]) > 1e-4


def test_no_mistake_hides_another() -> None:
    """In each design no two single mistakes compute the same."""
    for name in ("mhc", "hyper-connections", "gated-streams", "attention-residuals", "denseformer", "residual"):
        suite = Suite(Own, Setting(placement=design_of(name)))
        found = [
            torch.cat([t.flatten() for w in suite.cases.values() for t in suite.outputs(suite.equation(w, one.name))])
            for one in possible(get(name))
        ]
        for i, a in enumerate(found):
            assert all((a - b).abs().max() > 1e-9 for b in found[:i]), name


TRANSFORMERS = runpy.run_path(str(ROOT / "examples/conform_transformers.py"))


@pytest.mark.parametrize(("name", "of"), TRANSFORMERS["DESIGNS"].items())
def test_transformers_classes_pass(name: str, of: str) -> None:
    try:
        report = conform(TRANSFORMERS[name], of)
    except UserError as error:
        pytest.skip(str(error))
    assert report, report
    assert [row.check for row in report.rows if row.status == "skipped"] == ["init"]


def test_what_is_no_adapter_is_refused() -> None:
    class Half:
        def __init__(self, setting: Setting) -> None: ...
        def open(self, x: Tensor) -> Tensor: ...

    with pytest.raises(UserError, match="Half has no load, read, write, close: an adapter has all five"):
        conform(Half, "mhc")
    for line, said in (
        ("dtype = 'float32'", "dtype = 'float32': expected a torch.dtype"),
        (
            "skips = {'inits': 'why'}",
            "skips: 'inits'; expected a dict from checks to reasons, the checks reads, writes and",
        ),
        ("skips = ['init']", "skips: a list; expected a dict from checks to reasons"),
    ):
        with pytest.raises(UserError, match=said):
            verdict(("class Port(nn.Module):  # the adapter", f"class Port(nn.Module):\n    {line}"))
    with pytest.raises(UserError, match="an object; pass the class"):
        conform(Own(Setting(placement=design_of("mhc"))), "mhc")  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match="value-residual: no equations of FirstValues: its work is inside the attention"
    ):
        conform(Own, "value-residual")


class HyperPort(nn.Module):
    """Hyper-connections after the paper's algorithm 2, with what is `wrong`."""

    wrong = ""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.copies, self.every = setting.stream.copies, range(setting.sublayers)
        shift = self.wrong == "the next copy"
        self.alpha = nn.ParameterList(self.static((k + shift) % self.copies) for k in self.every)
        self.beta = nn.ParameterList(torch.ones(self.copies) for _ in self.every)
        self.maps = nn.ParameterList(torch.zeros(setting.width, self.copies + 2) for _ in self.every)
        self.factors = nn.ParameterList(torch.full((2,), 0.01) for _ in self.every)
        kind = nn.RMSNorm if self.wrong == "norm-not-centered" else partial(nn.LayerNorm, bias=False)
        self.norms = nn.ModuleList(kind(setting.width, eps=setting.eps) for _ in self.every)

    def static(self, copy: int) -> Tensor:
        return torch.cat([torch.eye(self.copies)[:, copy : copy + 1], torch.eye(self.copies)], dim=1)

    def load(self, weights: dict[str, Tensor]) -> None:
        self.double()
        for k in self.every:
            for mine, name in ((self.alpha, "alpha"), (self.beta, "beta"), (self.factors, "factors")):
                mine[k].data = weights[f"parts.{k}.stream.{name}"]
            self.maps[k].data = weights[f"parts.{k}.stream.maps"].T
            self.norms[k].weight.data = weights[f"parts.{k}.stream.norm_weight"]

    def open(self, x: Tensor) -> Tensor:
        return x[..., None, :].repeat(1, 1, self.copies, 1)

    def read(self, state: Tensor, k: int) -> tuple[Tensor, Any]:
        by = self.factors[k][[0] * (self.copies + 1) + [1]]
        rows = self.norms[k](state) @ self.maps[k]
        rows = by * torch.tanh(rows)
        alpha, beta = self.alpha[k] + rows[..., :-1], self.beta[k] + rows[..., -1]
        if self.wrong == "sin in place of tanh":
            beta = self.beta[k] + self.factors[k][1] * torch.sin(self.norms[k](state) @ self.maps[k])[..., -1]
        if self.wrong == "the mix of the copies before":
            alpha = torch.cat([alpha[..., :1], alpha[..., :-1]], dim=-1)
        mixed = alpha.transpose(-1, -2) @ state
        return mixed[..., 0, :], (mixed[..., 1:, :], beta, alpha[..., 1:].transpose(-1, -2))

    def write(self, held: Any, u: Tensor, k: int) -> Tensor:
        mixed, beta, mix = held
        written = beta[..., None] * u[..., None, :]
        return mixed + (mix @ written if self.wrong == "written-before-mixed" else written)

    def close(self, state: Tensor) -> Tensor:
        return state.sum(-2)


def hyper(wrong: str) -> Conformance:
    return conform(type("Hyper", (HyperPort,), {"wrong": wrong}), "hyper-connections")


def test_hyper_connections_of_ones_own() -> None:
    assert hyper("")
    for wrong in ("norm-not-centered", "written-before-mixed"):
        assert [one.name for one in hyper(wrong).mistakes] == [wrong]


def test_what_makes_an_unknown_difference_go_away() -> None:
    where, write, weight = hyper("sin in place of tanh").lines()
    assert "first in what branch 1 reads (random weights)" in where
    assert write == "no difference where branches write 0: look at how their output is written"
    assert weight.startswith("no difference with stream.maps as initialized: look at where it is used (rows 0 to n:")
    (where,) = hyper("the mix of the copies before").lines()
    assert "first in what branch 1 reads" in where  # what is mixed is wrong with any weights and any output


def test_the_copy_that_is_read_first_shows_at_init() -> None:
    report = hyper("the next copy")
    assert [(row.check, row.found) for row in report.rows if row.status == "failed"] == [
        ("init", "in what branch 5 reads of unequal copies, as initialized")
    ]


@pytest.mark.parametrize("name", designs())
def test_every_weight_has_a_meaning(name: str) -> None:
    means = meanings(get(name))
    assert all(means[kind_of(key)] for key in weights_of(name))


def test_the_weights_in_words() -> None:
    code, out, _ = cli("hyper-connections", "--weights")
    assert code == 0 and re.search(r"parts\.K\.stream\.factors +2 +0, 1, 2, 3, 4, 5 +on A's computed part", out)


def cli(*words: Sequence[str] | str) -> Any:
    return called("conform", *map(str, words))


def test_the_command(tmp_path: Path) -> None:
    good, bad = tmp_path / "my_mhc.py", tmp_path / "bad_mhc.py"
    good.write_text(port())
    bad.write_text(port(*WRONG["mix-transposed"]))
    assert cli("mhc", "--adapter", f"{good}:Port")[0] == 0
    code, out, _ = cli("mhc", "--adapter", f"{bad}:Port")
    assert code == 1 and "mix-transposed" in out and "comb.transpose(-1, -2)" in out
    code, out, _ = cli("mhc", "--adapter", f"{bad}:Port", "--json")
    assert code == 1 and json.loads(out)["conformance"][0]["mistakes"][0]["name"] == "mix-transposed"
    code, out, _ = cli("mhc", "--weights", "--json")
    assert code == 0 and json.loads(out)["weights"]["parts.5.stream.projection"] == [24, 32]


def test_the_page_lists_every_mistake() -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"`([\w-]+)`", page.split("Alone or two at once: ")[1].split(".\n")[0])
    assert listed == [one.name for one in MISTAKES]


PLACEMENTS = PAGE.with_name("placements.md")


def own_stream(tmp_path: Path, *changes: tuple[str, str], equation: bool = True) -> str:
    """The two pages' module, the stream of placements.md with the equations of conform.md, and lines of it changed."""
    (source,) = re.findall(r"```python\n(from dataclasses.*?)```", PLACEMENTS.read_text(encoding="utf-8"), re.DOTALL)
    _, equations = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    source = source.split("model = ")[0].replace('"highway"', f'"{tmp_path.name}"')
    if equation:
        source = equations + source
        source = source.replace(
            "    def connection(", "    def equation(self):\n        return Carried\n\n    def connection("
        )
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    (tmp_path / "mine.py").write_text(source)
    exec(compile(source, "mine.py", "exec"), {"__name__": "mine"})
    return tmp_path.name


@pytest.fixture
def unregistered(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    CATALOGUE.pop(tmp_path.name, None)


def test_a_stream_of_ones_own(unregistered: Path) -> None:
    name = own_stream(unregistered)
    report = conform(Own, name)
    assert report and all(row.status == "passed" for row in report.rows), report
    assert name in designs()
    assert conform(Own, get(name)).rows == report.rows
    code, out, _ = cli(name, "--weights")
    assert code == 0 and re.search(r"parts\.K\.stream\.bias +8 +0, 1, 2, 3, 4, 5 +b", out)


def test_a_stream_of_ones_own_that_computes_something_else(unregistered: Path) -> None:
    name = own_stream(unregistered, ("(1 - t) * held + t * u", "t * held + (1 - t) * u"))
    report = conform(Own, name)
    assert "writes and mixes: a difference first in what branch 1 reads" in report.lines()[0], report
    assert not report


def test_a_stream_without_equations(unregistered: Path) -> None:
    name = own_stream(unregistered, equation=False)
    assert name not in designs()
    with pytest.raises(UserError, match="Highway has no method `equation`"):
        conform(Own, name)


# ------------------------------------------------------------------- statements that need no equations, of our own part


@pytest.mark.parametrize("name", [n for n in designs() if isinstance(get(n).stream, Hyper)])
def test_copies_keep_their_sum_and_equal_copies_stay_equal(name: str) -> None:
    driven = Driven(Own, Setting(placement=wiring(get(name))))
    if driven.setting.stream.maps in ("sinkhorn", "independent"):
        assert sum_of_copies(driven) < 2e-3 and equal_copies(driven) < 2e-3


@pytest.mark.parametrize("name", designs())
def test_skip_and_scale_follow_from_one_another(name: str) -> None:
    driven = Driven(Own, Setting(placement=wiring(get(name))))
    first = driven.setting.placement.at(driven.every[0])
    if isinstance(first.skip, Coupled) and first.post is None:
        assert coupled(driven) < 2e-3


def even(driven: Driven) -> dict[str, Tensor]:
    """Reads of 1/2 + eps each and writes of half their magnitude, whatever the copies are."""
    n = driven.setting.stream.copies
    weights = {name: value.clone() for name, value in driven.usual.items()}
    for name, value in weights.items():
        if name.endswith(("stream.projection", "stream.base")):
            value[: 2 * n] = 0
    return weights


def sum_of_copies(driven: Driven) -> float:
    stream = driven.setting.stream
    n, read = stream.copies, 0.5 + stream.eps
    write = 1.0 if stream.maps == "sinkhorn" else stream.magnitude / 2 + stream.eps
    got, total, worst = driven.outputs(driven.loaded(even(driven))), driven.x, 0.0
    for k, u in enumerate(driven.us):
        worst = max(worst, difference_of(got[k], read * n * total))
        total = total + write * u
    return worst


def equal_copies(driven: Driven) -> float:
    nothing = [torch.zeros_like(u) for u in driven.us]
    first, *others = driven.outputs(driven.loaded(even(driven)), us=nothing)[:-1]
    return max(difference_of(other, first.detach().cpu().double()) for other in others)


def coupled(driven: Driven) -> float:
    """skip = 1 - scale, or skip^2 + scale^2 = 1, from what x alone and the branch alone leave."""
    weights = dict(driven.usual)
    for name, value in weights.items():
        if ".out." in name:
            weights[name] = torch.ones_like(value) if name.endswith("weight") else torch.zeros_like(value)
    residual = driven.setting.placement.at(driven.every[0])
    assert isinstance(residual.skip, Coupled)
    nothing, equation = torch.zeros_like(driven.x), driven.equation(weights)
    x, u = driven.x, driven.us[0]
    zeros = [torch.zeros_like(x) for _ in driven.us]
    skip = driven.outputs(driven.loaded(weights), us=zeros)[1].cpu().double() / x
    scale = driven.outputs(driven.loaded(weights), x=nothing, us=[u, *zeros[1:]])[1].cpu().double()
    scale = scale / equation.norm("parts.0.out", residual.out, u)
    total = skip + scale if residual.skip.by == "complement" else skip**2 + scale**2
    return difference_of(total, torch.ones_like(total))
