"""Runs of two processes, looked at before they begin: `torchrun .. job.py FILE`, which gets the findings of each."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import isograd
from tests.lint.test_pages import DOCS, IN_PROCESSES, mended, text

CASES = (*sorted(IN_PROCESSES), "healthy")


def example(case: str) -> str:
    """Of a code's page; the healthy one is that of a page with its advice."""
    if case == "healthy":
        return mended("gradients-not-averaged") or ""
    return text(case).partition("```python\n")[2].partition("```")[0]


def main(out: Path) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(DOCS / "check"))
    distributed.init_process_group("gloo")
    join, distributed.init_process_group = distributed.init_process_group, lambda *_: None  # once for all examples
    found: dict[str, Any] = {}
    for case in CASES:
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(example(case), case, "exec"), names)
        report = isograd.preflight(names["setup"](), prove=False)
        found[case] = {"codes": sorted(report.codes), "said": report.groups["processes"], "missed": report.missed}
    distributed.init_process_group = join
    if distributed.get_rank() == 0:
        out.write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
