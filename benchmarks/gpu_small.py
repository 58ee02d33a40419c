"""Many small runs on one device, side by side: which way makes most updates a second. Jobs of `gpu.py`.

A run is a Pre-LN model of the studies' shape (12 layers, width 64, 16 x 32 tokens) with an optimizer of its own; an
update is forward, loss, backward and fused Adam in float32, with no probe and no ledger. Ways:

    turns       one model after another, in one process: the reference
    streams     a thread and a CUDA stream for each model, in one process
    graphs      each model's update recorded as a CUDA graph, replayed on a stream of its own
    stacked     one plain network on the stacked parameters of all (stacks.py, products by torch.baddbmm), one Adam
    stacked graph   the update of those recorded as a CUDA graph
    processes   a process for each model
    mps         the same under CUDA's Multi-Process Service, started and ended here

Whoever takes part is warm before the clock starts; then all go on for some seconds, and the updates of all are counted;
one of all models together counts for each of them. TF32 everywhere. Without CUDA streams, graphs and MPS are absent.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ALONE = ("turns", "streams", "graphs", "stacked", "stacked graph")  # in one process
SECONDS, TINY_SECONDS = 4.0, 0.3
CONTROL = "nvidia-cuda-mps-control"
ELSEWHERE = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/bin"  # where a container may have it, and not in its PATH
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
Update = Callable[[], None]
Result = dict[str, Any]


def small(how: str, count: int, tiny: bool) -> Result:
    """Updates a second of so many models, that way."""
    missing = absent(how)
    if missing:
        return {"absent": missing}
    seconds = TINY_SECONDS if tiny else SECONDS
    rate = in_this_process(how, count, seconds, tiny) if how in ALONE else in_processes(how, count, seconds, tiny)
    return {"models": count, "updates/s": rate, "of one": rate / count}


def absent(how: str) -> str:
    """What this way lacks here; "" when nothing."""
    import torch

    if how not in ("turns", "stacked", "processes") and not torch.cuda.is_available():
        return "no CUDA device"
    return f"no {CONTROL}" if how == "mps" and control() is None else ""


def control() -> str | None:
    return shutil.which(CONTROL) or shutil.which(CONTROL, path=ELSEWHERE)


# One process.


def in_this_process(how: str, count: int, seconds: float, tiny: bool) -> float:
    updates = made(how, count, tiny)
    return in_threads(updates, seconds) if how == "streams" else in_turn(updates, seconds) * count / len(updates)


def made(how: str, count: int, tiny: bool) -> list[Update]:
    """A call for each model; a single one where they are stacked."""
    import torch
    from stacks import KINDS, make_models, stacked

    torch.set_float32_matmul_precision("high")
    layers, batch, length = (2, 2, 8) if tiny else (12, 16, 32)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    models = [model.to(where) for model in make_models(count, 100, length, layers)]
    ids = torch.randint(0, 100, (count, batch, length), device=where)
    if how.startswith("stacked"):
        losses, stacks = KINDS["bmm"](models), stacked(models)
        together = update_of(stacks.values(), lambda: losses(stacks, ids).sum())
        return [recorded(together) if how == "stacked graph" else together]
    updates = [
        update_of(model.parameters(), lambda model=model, own=own: model(input_ids=own, labels=own).loss)
        for model, own in zip(models, ids, strict=True)
    ]
    return [recorded(update) for update in updates] if how == "graphs" else updates


def update_of(parameters: Any, loss: Callable[[], Any]) -> Update:
    import torch

    optimizer = torch.optim.Adam(list(parameters), lr=1e-4, fused=True, capturable=torch.cuda.is_available())

    def update() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return update


def recorded(update: Update) -> Update:
    """A CUDA graph of the update, on a stream of its own (docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs)."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            update()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        update()

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def in_turn(updates: Sequence[Update], seconds: float) -> float:
    """Calls of all, one after another, a second."""
    from gpu_jobs import settle

    for _ in range(3):
        for update in updates:
            update()
    settle()
    rounds, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(5):  # a queue that is never empty
            for update in updates:
                update()
        settle()
        rounds += 5
    return rounds * len(updates) / (time.perf_counter() - began)


def in_threads(updates: Sequence[Update], seconds: float) -> float:
    """Calls of all a second, each in its thread and stream."""
    import torch

    ready = threading.Barrier(len(updates), timeout=100)

    def go(update: Update) -> float:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                update()
            torch.cuda.current_stream().synchronize()
            ready.wait()
            count, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                for _ in range(5):
                    update()
                torch.cuda.current_stream().synchronize()
                count += 5
            return count / (time.perf_counter() - began)

    def guarded(update: Update) -> float:
        try:
            return go(update)
        except Exception:
            ready.abort()  # or the others would wait for it
            raise

    torch.cuda.synchronize()  # what made the models was another stream
    with ThreadPoolExecutor(len(updates)) as pool:
        futures = [pool.submit(guarded, update) for update in updates]
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return sum(future.result() for future in futures)


# A process for each.


def in_processes(how: str, count: int, seconds: float, tiny: bool) -> float:
    """The sum of their updates a second; all begin once the last is warm."""
    with beside(how) as (folder, environment):
        job = json.dumps({"kind": "one small", "options": {"folder": str(folder), "seconds": seconds, "tiny": tiny}})
        command = [sys.executable, str(Path(__file__).with_name("gpu_jobs.py")), job]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            for _ in range(count)
        ]
        try:
            while len(list(folder.glob("ready-*"))) < count:
                if any(process.poll() for process in running):
                    break
                time.sleep(0.01)
            (folder / "go").touch()
            ended = [process.communicate() for process in running]
        finally:
            for process in running:
                process.kill()
    failed = [
        said.strip().splitlines()[-1] for process, (_, said) in zip(running, ended, strict=True) if process.returncode
    ]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} processes failed: {failed[0]}")
    return sum(json.loads(out.splitlines()[-1])["updates/s"] for out, _ in ended)


def one_small(folder: str, seconds: float, tiny: bool) -> Result:
    """A process of several."""
    import torch
    from gpu_jobs import settle

    torch.set_num_threads(1)
    updates = made("turns", 1, tiny)
    for _ in range(3):
        updates[0]()
    settle()
    Path(folder, f"ready-{os.getpid()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.005)
    return {"updates/s": in_turn(updates, seconds)}


@contextmanager
def beside(how: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder for files, and the environment for processes side by side; with "mps" the service runs for them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        if how != "mps":
            yield Path(name), dict(os.environ)
            return
        with service(Path(name)) as environment:
            yield Path(name), environment


@contextmanager
def service(folder: Path) -> Iterator[dict[str, str]]:
    """CUDA's Multi-Process Service with files of its own; ends with the block. What it logged goes to stderr."""
    environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    (folder / "pipe").mkdir()
    name = control() or CONTROL
    subprocess.run([name, "-d"], env=environment, check=True, timeout=30, **QUIET)
    try:
        yield environment
    finally:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([name], input=b"quit\n", env=environment, check=False, timeout=30, **QUIET)
        for log in sorted(folder.glob("*.log")):
            print(log.name, log.read_text(errors="replace")[-2000:], file=sys.stderr)
