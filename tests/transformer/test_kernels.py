"""Products by oneDNN: the same numbers as torch's own in float64, at every shape and through two derivatives."""

import copy
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from isograd.transformer import kernels
from isograd.transformer.parameters import Linear, project


def gradients(x: Tensor, weight: Tensor, bias: Tensor, linear: Callable[..., Tensor]) -> list[Tensor]:
    """The product, its gradients, and a gradient of those."""
    x, weight, bias = (t.detach().clone().requires_grad_() for t in (x, weight, bias))
    y = linear(x, weight, bias)
    first = torch.autograd.grad(y.square().sum(), (x, weight, bias), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum() + first[1].sum(), (x, weight))
    return [y, *first, *second]


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN at every shape."""
    monkeypatch.setattr(kernels, "WORTHWHILE", 1)


def agree(ours: list[Tensor], exact: list[Tensor]) -> None:
    for a, b in zip(ours, exact, strict=True):
        assert a.shape == b.shape
        assert not b.numel() or (a - b).abs().max() <= 3e-6 * b.abs().max()


@pytest.mark.parametrize("shape", [(300, 48), (3, 100, 48), (2, 3, 50, 48)])
@pytest.mark.usefixtures("every_size")
def test_equals_torch_in_float64(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    given = torch.randn(shape), torch.randn(80, 48), torch.randn(80)
    assert kernels.large_float32_on_cpu(*given[:2])
    ours = gradients(*given, kernels.linear)
    agree(ours, gradients(*(t.double() for t in given), F.linear))


LAYOUTS: dict[str, Callable[..., Tensor]] = {
    "adjacent": lambda *shape: torch.randn(shape),
    "transposed": lambda *shape: torch.randn(shape[::-1]).permute(*range(len(shape))[::-1]),
    "every second column": lambda *shape: torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2],
    "every second row": lambda *shape: torch.randn(2 * shape[0], *shape[1:])[1::2],
    "a part of wider rows": lambda *shape: torch.randn(*shape[:-1], shape[-1] + 3)[..., 2:-1],
    "one row": lambda *shape: torch.randn(1, *shape[1:]).expand(shape),
    "one column": lambda *shape: torch.randn(*shape[:-1], 1).expand(shape),
    "one number": lambda *shape: torch.randn(()).expand(shape),
    "not aligned": lambda *shape: torch.randn(torch.Size(shape).numel() + 1)[1:].view(shape),
    "sliding window": lambda *shape: torch.randn(*shape[:-2], sum(shape[-2:]) - 1).unfold(-1, shape[-1], 1),
}


def viewed(shape: tuple[int, ...], layout: str) -> Tensor:
    """Random numbers whose strides are those of a view; a bias has no rows to slide over."""
    return LAYOUTS["one number" if layout == "sliding window" and len(shape) == 1 else layout](*shape)


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_strides_of_every_operand(operand: int, layout: str) -> None:
    """The operator reads a bias as if its entries were adjacent, and refuses a weight that overlaps itself."""
    torch.manual_seed(0)
    shapes: list[tuple[int, ...]] = [(3, 20, 48), (32, 48), (32,)]
    x, weight, bias = (viewed(shape, layout if i == operand else "adjacent") for i, shape in enumerate(shapes))
    agree(values(x, weight, bias, kernels.linear), values(x.double(), weight.double(), bias.double(), F.linear))


def values(x: Tensor, weight: Tensor, bias: Tensor | None, linear: Callable[..., Tensor]) -> list[Tensor]:
    """The product and its gradients, of operands as they lie in memory."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    y = linear(*leaves)
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, 9)] * 4),
    layouts=st.tuples(*[st.sampled_from(list(LAYOUTS))] * 3),
    seed=st.integers(0, 2**31),
    with_bias=st.booleans(),
    flat=st.booleans(),
)
def test_any_shape_and_strides(
    sizes: tuple[int, ...], layouts: tuple[str, ...], seed: int, with_bias: bool, flat: bool
) -> None:
    """No rows, no columns, one of either; compared with the exact product of the absolute values (rounding)."""
    torch.manual_seed(seed)
    batch, time, fan_in, fan_out = sizes
    shape = (time, fan_in) if flat else (batch, time, fan_in)
    if "sliding window" in layouts and not (time and fan_in and fan_out):
        layouts = ("transposed",) * 3  # a window has a size
    x, weight = viewed(shape, layouts[0]), viewed((fan_out, fan_in), layouts[1])
    bias = viewed((fan_out,), layouts[2]) if with_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "WORTHWHILE", 1)
        ours = values(x, weight, bias, kernels.linear)
    exact = values(x.double(), weight.double(), bias if bias is None else bias.double(), F.linear)
    sizes_of = values(x.double().abs(), weight.double().abs(), bias if bias is None else bias.double().abs(), F.linear)
    for a, b, size in zip(ours, exact, sizes_of, strict=True):
        assert a.shape == b.shape
        assert not b.numel() or (a - b).abs().max() <= 3e-6 * size.abs().max()


def test_a_loaded_bias_may_be_a_view() -> None:
    layer = Linear(64, 96, role="dense")
    x, bias, exact = torch.randn(1000, 64), torch.randn(96, 2), torch.nn.Linear(64, 96).double()
    layer.load_state_dict({"weight": layer.weight.detach(), "bias": bias[:, 0]}, assign=True)
    assert layer.bias.stride() == (2,)
    exact.load_state_dict({k: v.double() for k, v in layer.state_dict().items()})
    agree([layer(x)], [exact(x.double())])


def refusal(linear: Callable[..., Tensor], *operands: Tensor) -> type[Exception] | None:
    try:
        linear(*operands)
    except (RuntimeError, IndexError) as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "bias",
    [torch.ones(1), torch.ones(()), torch.ones(40), torch.ones(48, dtype=torch.float64), torch.ones(200, 48)],
    ids=["one", "a number", "too short", "float64", "a row for each"],
)
@pytest.mark.usefixtures("every_size")
def test_a_bias_of_another_shape_or_dtype_is_torchs_business(bias: Tensor) -> None:
    """What it broadcasts is broadcast, what it refuses is refused: oneDNN would read as many numbers as it needs."""
    x, weight = torch.randn(200, 32), torch.randn(48, 32)
    refused = refusal(F.linear, x, weight, bias)
    assert refusal(kernels.linear, x, weight, bias) == refused
    if refused is None:
        assert kernels.linear(x, weight, bias).equal(F.linear(x, weight, bias))


@pytest.mark.usefixtures("every_size")
def test_operands_that_do_not_fit_are_refused() -> None:
    x = torch.randn(200, 32)
    for weight in (torch.randn(48, 31), torch.randn(48, 33), torch.randn(2, 48, 32)):
        assert refusal(kernels.linear, x, weight) is not None
    assert kernels.linear(x, torch.ones(32)).shape == (200,)
    assert not kernels.large_float32_on_cpu(x, torch.eye(32).to_sparse())


def test_a_counter_knows_the_product() -> None:
    """Twice a multiplication per entry forward, and twice that backward, at every size and in either part alone."""
    for rows in (10, 2000):
        x, weight, bias = (torch.randn(s).requires_grad_() for s in ((rows, 64), (96, 64), (96,)))
        with FlopCounterMode(display=False) as forward:
            y = kernels.linear(x, weight, bias)
        loss = y.sum()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        assert (forward.get_total_flops(), backward.get_total_flops()) == (2 * rows * 64 * 96, 4 * rows * 64 * 96)


def test_accumulation_is_counted() -> None:
    for rows in (10, 2000):
        with FlopCounterMode(display=False) as counter:
            kernels.add_gradient(None, torch.randn(rows, 64), torch.randn(rows, 96), torch.float32)
        assert counter.get_total_flops() == 2 * rows * 64 * 96


def test_others_take_torch_own_product() -> None:
    x, weight = torch.randn(2048, 64), torch.randn(64, 64)
    assert kernels.large_float32_on_cpu(x, weight)
    assert not kernels.large_float32_on_cpu(x.double(), weight.double())
    assert not kernels.large_float32_on_cpu(x[:10], weight)
    assert not kernels.large_float32_on_cpu(x.to("meta"), weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not kernels.large_float32_on_cpu(x, weight)
        assert kernels.linear(x, weight).dtype == torch.bfloat16
    torch.backends.mkldnn.set_flags(False)
    try:
        assert not kernels.large_float32_on_cpu(x, weight)
    finally:
        torch.backends.mkldnn.set_flags(True)


@pytest.mark.parametrize("rows", [8, 4096])
def test_accumulates(rows: int) -> None:
    torch.manual_seed(0)
    expected, total = torch.zeros(64, 32, dtype=torch.float64), None
    for some in (rows, rows, 3):  # the last chunk is a small one
        grad, x = torch.randn(some, 64), torch.randn(some, 32)
        expected += grad.double().t() @ x.double()
        total = kernels.add_gradient(total, grad, x, torch.float32)
    assert total is not None and (total - expected).abs().max() <= 3e-6 * expected.abs().max()
    wide = kernels.add_gradient(None, torch.randn(8, 64).bfloat16(), torch.randn(8, 32).bfloat16(), torch.float32)
    assert wide.dtype == torch.float32 and wide.shape == (64, 32)


def layers_of(*sizes: int, bias: bool = True, width: int = 64) -> list[Linear]:
    """Projections of one x: query, key, value, of these widths."""
    torch.manual_seed(0)
    return [Linear(width, size, role="query", bias=bias) for size in sizes]


@pytest.mark.parametrize("sizes", [(64, 64, 64), (64, 16, 16), (64, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_projections_of_one_x_are_one_product(sizes: tuple[int, ...], bias: bool) -> None:
    """Forward to the last bit, gradients as float64 has them, twice."""
    layers = layers_of(*sizes, bias=bias)
    x = torch.randn(4, 512, 64, requires_grad=True)
    parameters = [p for layer in layers for p in layer.parameters()]

    def found(x: Tensor, outputs: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
        loss = sum((y * (n + 1)).sin().sum() for n, y in enumerate(outputs))
        first = torch.autograd.grad(loss, (x, *leaves), create_graph=True)
        return [*outputs, *first, *torch.autograd.grad(first[0].square().sum(), (x, *leaves[:1]))]

    together = project(x, *layers)
    assert len({y.untyped_storage().data_ptr() for y in together}) == 1
    assert all(torch.equal(a, b) for a, b in zip(together, (layer(x) for layer in layers), strict=True))
    exact = [copy.deepcopy(layer).double() for layer in layers]
    leaves = [p for layer in exact for p in layer.parameters()]
    y = x.detach().double().requires_grad_()
    agree(found(x, list(project(x, *layers)), parameters), found(y, [layer(y) for layer in exact], leaves))


@pytest.mark.parametrize("bias", [True, False])
def test_what_a_gpu_joins(bias: bool) -> None:
    """In any dtype and under autocast, where the product is torch's: values and gradients of one after another."""
    layers = [Linear(64, to, role="query", bias=bias).double() for to in (64, 32, 32)]
    x = torch.randn(640, 64, dtype=torch.float64, requires_grad=True)
    parameters = [p for layer in layers for p in layer.parameters()]

    def grads(outputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sum((n + y).sin().sum() for n, y in enumerate(outputs)), [x, *parameters])

    made = kernels.join(x, [m.weight for m in layers], [m.bias for m in layers] if bias else [])
    agree([*made, *grads(made)], [*(apart := [layer(x) for layer in layers]), *grads(apart)])


def test_a_projection_that_does_more_is_called_itself() -> None:
    """A hook, an adapter in place of it, other dtypes, few rows: no product of stacked matrices."""
    x = torch.randn(1024, 64)

    def joined(x: Tensor, layers: Sequence[nn.Module]) -> bool:
        return len({y.untyped_storage().data_ptr() for y in project(x, *layers)}) == 1

    layers = layers_of(64, 64)
    assert joined(x, layers) and not joined(x[:256], layers) and not joined(x.double(), [m.double() for m in layers])
    layers = layers_of(64, 64)
    seen: list[Tensor] = []
    handle = layers[1].register_forward_hook(lambda module, args, y: seen.append(y))
    assert not joined(x, layers) and len(seen) == 1
    handle.remove()
    assert joined(x, layers) and not joined(x, [layers[0], nn.Sequential(layers[1])])
    layers[0].bias = None
    assert not joined(x, layers)
    layers = layers_of(64, 64)
    layers[0].forward = lambda x: x  # type: ignore[method-assign]  # as accelerate wraps a module
    assert project(x, *layers)[0] is x
    layers = layers_of(64, 64)
    torch.nn.utils.parametrizations.weight_norm(layers[0])
    assert not joined(x, layers)
    with torch.autocast("cpu", torch.bfloat16):
        assert not joined(x, layers_of(64, 64))
