"""What a number was measured with: the code by its content, the commit, versions and hardware."""

import hashlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_CODE = ("isograd",)
_KINDS = (".py", ".yaml")


def code() -> str:
    """Ten hexadecimal digits of every file that can change a number: the package and the recipes, not the docs."""
    content = hashlib.sha256()
    for path in sorted(p for folder in _CODE for p in (ROOT / folder).rglob("*") if p.suffix in _KINDS):
        content.update(f"{path.relative_to(ROOT)}\n".encode())
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:10]


def commit() -> str:
    """The commit, with "+" where the package or the recipes differ from it; "unknown" without git."""
    head = _git("rev-parse", "--short=10", "HEAD")
    return f"{head}{'+' if _git('status', '--porcelain', '--', *_CODE) else ''}" if head else "unknown"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def now() -> dict[str, Any]:
    """Date, commit, versions and hardware, as every row of the page carries them."""
    from isograd.lab.train.provenance import provenance  # torch with it, which a runner of commands does not need

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    about = {name: value for name, value in provenance().items() if name != "device"}
    device = provenance()["device"].rpartition(",")[0]
    return {"date": time.strftime("%Y-%m-%d %H:%M"), "commit": commit(), "device": f"{device}, {cores} cores", **about}
