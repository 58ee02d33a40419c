"""The changes of findings as text: `isograd check --diff` prints them as a unified diff of the source lines."""

import ast
import difflib
import linecache
from collections.abc import Callable, Iterable
from pathlib import Path

from isograd.lint.findings import Finding


def diff(findings: Iterable[Finding], root: Path) -> str:
    """The changes of the source lines that are known as text, as a unified diff; "" where there are none."""
    changed: dict[str, dict[int, str]] = {}
    for finding in findings:
        new = None if finding.severity == "info" else rewritten(finding)
        if new is not None and finding.source is not None:
            changed.setdefault(finding.source.file, {})[finding.source.line] = new
    parts: list[str] = []
    for file, lines in changed.items():
        old = linecache.getlines(file)
        new_lines = [lines.get(number, text) for number, text in enumerate(old, 1)]
        path = Path(file)
        name = str(path.relative_to(root)) if path.is_relative_to(root) else file
        parts += difflib.unified_diff(old, new_lines, f"a/{name}", f"b/{name}")
    return "".join(parts)


def rewritten(finding: Finding) -> str | None:
    """The whole source line with the change in it; None where it is not known as text."""
    source = finding.source
    if source is None or source.columns[1] <= source.columns[0] or finding.code not in _TEXTS:
        return None
    whole = linecache.getline(source.file, source.line)
    start = len(whole) - len(whole.lstrip()) + source.columns[0]
    end = start + source.columns[1] - source.columns[0]
    try:
        call = ast.parse(whole[start:end], mode="eval").body
    except SyntaxError:
        return None
    new = _TEXTS[finding.code](call)
    return None if new is None else f"{whole[:start]}{new}{whole[end:]}"


def _with_shortcut(call: ast.expr) -> str | None:
    """x + f(norm(x)) of f(norm(x))."""
    inner: ast.expr = call
    while isinstance(inner, ast.Call) and inner.args:
        inner = inner.args[0]
    return f"{ast.unparse(inner)} + {ast.unparse(call)}" if inner is not call and isinstance(inner, ast.Name) else None


def _with_activation(call: ast.expr) -> str | None:
    return f"torch.nn.functional.gelu({ast.unparse(call)})" if isinstance(call, ast.Call) else None


def _without_activation(call: ast.expr) -> str | None:
    return f"({ast.unparse(call.args[0])})" if isinstance(call, ast.Call) and len(call.args) == 1 else None


def _over_keys(call: ast.expr) -> str | None:
    """A softmax over the last axis, where keys stand in scores (..., queries, keys)."""
    if not isinstance(call, ast.Call):
        return None
    call.keywords = [k for k in call.keywords if k.arg != "dim"] + [ast.keyword("dim", ast.Constant(-1))]
    method = isinstance(call.func, ast.Attribute) and not (
        isinstance(call.func.value, ast.Name) and call.func.value.id in ("F", "torch", "nn")
    )
    call.args = call.args[: 0 if method else 1]
    return ast.unparse(call)


_TEXTS: dict[str, Callable[[ast.expr], str | None]] = {
    "shortcut-missing": _with_shortcut,
    "ffn-linear": _with_activation,
    "activation-on-stream": _without_activation,
    "softmax-axis": _over_keys,
}
