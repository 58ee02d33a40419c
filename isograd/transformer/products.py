"""Which library multiplies float32 matrices on a CPU: oneDNN from a size on, or torch's own product at every size.

Which is the faster one depends on the processor and on the size. Both are measured in a tenth of a second, forward and
for both gradients, at four sizes; oneDNN begins at the smallest from which on it is faster at every one. The choice is
kept in the user's cache by processor, version of torch and threads. `isograd train` and the verbs that train many
runs ask for it, once, before anything is trained; a run writes its choice into resolved.json and goes on with that.
Plain use of the library is torch's own; `use(choose().products)` asks.

ISOGRAD_PRODUCTS=onednn is oneDNN from 2^20 multiplications on, =torch never oneDNN; neither measures.
"""

import hashlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from isograd.errors import UserError
from isograd.files import read_object, write_json
from isograd.machine import cache_folder, processor
from isograd.transformer import kernels

VARIABLE = "ISOGRAD_PRODUCTS"
PRODUCTS = ("forward", "gradient of the input", "gradient of the weight")
SHAPES = (  # rows, fan-in, fan-out, pairs of measurements, calls in each
    (256, 64, 64, 11, 8),  # 2^20 multiplications
    (512, 64, 128, 11, 3),  # 2^22
    (512, 128, 256, 11, 1),  # 2^24
    (512, 256, 512, 7, 1),  # 2^26
)


@dataclass(frozen=True, kw_only=True)
class Products:
    """oneDNN from so many multiplications on; None: torch's own product at every size."""

    onednn_from: int | None

    def __str__(self) -> str:
        if self.onednn_from is None:
            return "torch's own"
        return f"oneDNN from 2^{math.log2(self.onednn_from):.3g} multiplications on"


ONEDNN, TORCHS = Products(onednn_from=2**20), Products(onednn_from=None)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Both libraries at one size: oneDNN's time over torch's, medians over pairs measured in turn.

    Attributes:
        ratios: of each of `PRODUCTS`.
        ratio, low, high: of the three together; low and high are quartiles.
        torch_ms, onednn_ms: of the three together.
    """

    rows: int
    fan_in: int
    fan_out: int
    pairs: int
    ratios: tuple[float, ...]
    ratio: float
    low: float
    high: float
    torch_ms: float
    onednn_ms: float

    @property
    def multiplications(self) -> int:
        return self.rows * self.fan_in * self.fan_out


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen and why.

    Attributes:
        source: in a few words.
        sizes: what was measured, in this process or when the cache was written.
        path: where it is kept.
        note: what a user should know of, such as a cache that cannot be written.
    """

    products: Products
    source: str
    sizes: tuple[Size, ...] = ()
    path: Path | None = None
    note: str | None = None


def available() -> bool:
    """Whether this build of torch has oneDNN, switched on."""
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)


def in_use() -> Products:
    """What this process does now, where oneDNN is available."""
    return Products(onednn_from=None if math.isinf(kernels.WORTHWHILE) else int(kernels.WORTHWHILE))


def use(products: Products) -> None:
    """From now on, in this process."""
    kernels.WORTHWHILE = math.inf if products.onednn_from is None else products.onednn_from


@contextmanager
def used(products: Products) -> Iterator[None]:
    """In this block."""
    before = in_use()
    use(products)
    try:
        yield
    finally:
        use(before)


def choose(threads: int | None = None, again: bool = False) -> Choice:
    """The library for this machine: what the environment says, what the cache knows, or what is measured now.

    Args:
        threads: of the runs; None takes torch's.
        again: measure, whatever the cache knows, and replace that.

    Raises:
        UserError: ISOGRAD_PRODUCTS is neither onednn nor torch.
    """
    if said := os.environ.get(VARIABLE):
        if said not in ("onednn", "torch"):
            raise UserError(f"{VARIABLE}={said}: expected onednn or torch; unset it to have both measured")
        return Choice(products=ONEDNN if said == "onednn" else TORCHS, source=f"{VARIABLE}={said}")
    if not available():
        return Choice(products=TORCHS, source="this build of torch has no oneDNN")
    if torch.cuda.is_available() and not again:
        return Choice(products=TORCHS, source="with a GPU nothing is measured")
    threads = threads or torch.get_num_threads()
    path = cache_path(threads)
    known = None if again else _kept(path, threads)
    if known is not None:
        return known
    sizes = measure(threads)
    products, note = decide(sizes), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, _key(threads) | asdict(products) | {"sizes": [asdict(size) for size in sizes]})
    except OSError as error:
        note = f"the cache {path.parent} cannot be written ({error.strerror}): measured again by every command"
    return Choice(products=products, source="measured now", sizes=sizes, path=None if note else path, note=note)


def measure(threads: int) -> tuple[Size, ...]:
    """Both libraries at every one of `SHAPES`, with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter  # which other processes cannot make longer
    try:
        return tuple(_size(*shape, clock) for shape in SHAPES)
    finally:
        torch.set_num_threads(before)


def decide(sizes: Sequence[Size]) -> Products:
    """oneDNN from the smallest size from which on it is faster at every one, by the medians; else torch's own."""
    faster = takewhile(lambda size: size.ratio < 1.0, reversed(sizes))
    return Products(onednn_from=min((size.multiplications for size in faster), default=None))


def recorded(path: Path) -> Products | None:
    """What resolved.json or study.json says; None where neither does."""
    try:
        return _products(read_object(path).get("products"))
    except ValueError:
        return None


def cache_path(threads: int) -> Path:
    """Where the choice of this processor, version of torch and number of threads is kept."""
    name = hashlib.sha256(repr(_key(threads)).encode()).hexdigest()[:16]
    return cache_folder() / "products" / f"{name}.json"


def _key(threads: int) -> dict[str, Any]:
    return {"processor": processor(), "torch": torch.__version__, "threads": threads}


def _kept(path: Path, threads: int) -> Choice | None:
    """None where nothing can be read, or something else stands there."""
    try:
        content = read_object(path)
        products = _products(content)
        sizes = tuple(Size(**{**size, "ratios": tuple(size["ratios"])}) for size in content["sizes"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    same = {name: content.get(name) for name in _key(threads)} == _key(threads)
    return Choice(products=products, source="measured before", sizes=sizes, path=path) if same and products else None


def _products(content: Any) -> Products | None:
    """What a file says, None of anything else."""
    if not isinstance(content, dict) or "onednn_from" not in content:
        return None
    size = content["onednn_from"]
    return Products(onednn_from=size) if size is None or (type(size) is int and size > 0) else None


def _size(rows: int, fan_in: int, fan_out: int, pairs: int, times: int, clock: Callable[[], float]) -> Size:
    """In turn, after one that is not counted, so that a machine that slows down slows down both."""
    calls = _calls(rows, fan_in, fan_out)
    always = Products(onednn_from=1)

    def pair() -> list[tuple[float, float]]:
        return [(_timed(call, TORCHS, times, clock), _timed(call, always, times, clock)) for call in calls]

    with torch.no_grad():
        found = [pair() for _ in range(pairs + 1)][1:]
    each = [statistics.median(one[i][1] / one[i][0] for one in found) for i in range(len(calls))]
    whole = [(sum(theirs for theirs, _ in one), sum(ours for _, ours in one)) for one in found]
    low, middle, high = statistics.quantiles([ours / theirs for theirs, ours in whole], n=4)
    return Size(
        rows=rows,
        fan_in=fan_in,
        fan_out=fan_out,
        pairs=pairs,
        ratios=tuple(each),
        ratio=middle,
        low=low,
        high=high,
        torch_ms=1e3 * statistics.median(theirs for theirs, _ in whole),
        onednn_ms=1e3 * statistics.median(ours for _, ours in whole),
    )


def _calls(rows: int, fan_in: int, fan_out: int) -> tuple[Callable[[], object], ...]:
    """The products of one layer, as a training step calls them; torch's generator is left alone."""
    draw = torch.Generator().manual_seed(0)
    x, grad = (torch.rand(rows, fan, generator=draw) for fan in (fan_in, fan_out))
    weight = torch.rand(fan_out, fan_in, generator=draw)
    return (
        lambda: kernels.linear(x, weight),
        lambda: kernels.linear(grad, weight.t()),
        lambda: kernels.gradient_of_weight(grad, x),
    )


def _timed(call: Callable[[], object], products: Products, times: int, clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    with used(products):
        began = clock()
        for _ in range(times):
            call()
        return (clock() - began) / times
