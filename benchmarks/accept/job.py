"""`python -m benchmarks.accept.job FOLDER WORDS`: one command, which ends when the runner does, in whatever way.

The runner holds the other end of stdin and never writes: where it is killed, reading ends, and so does the job. What a
command has written by then is whole, and the same command goes on from it.
"""

import os
import runpy
import sys
import threading
from pathlib import Path

CPU = "cpu-seconds"  # a file beside the job's log: what it took of all cores, the attempts that were killed left out


def main(folder: Path, words: list[str]) -> int:
    """`isograd VERB ..`, `python FILE ..` or `python -m MODULE ..`, in this process."""
    threading.Thread(target=_end_with_runner, daemon=True).start()
    try:
        return _run(*words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        (folder / CPU).write_text(f"{sum(os.times()[:4]):.1f}\n")


def _run(program: str, *rest: str) -> int:
    if program == "isograd":
        from isograd.cli import main as isograd

        return isograd(list(rest))
    if rest[0] == "-m":
        sys.argv = list(rest[1:])
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(rest)
        sys.path.insert(0, str(Path(rest[0]).resolve().parent))
        runpy.run_path(rest[0], run_name="__main__")
    return 0


def _end_with_runner() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
