"""`isograd explain RUN | MODEL`: what is wrong, since when, why, and what to do."""

import re
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.markup import escape

from isograd.cli.check import foreign_model
from isograd.cli.console import Result, announce, loading, output, print_lines, print_path, print_table
from isograd.cli.parser import File, Folder
from isograd.cli.schema import Open
from isograd.errors import InputsError, IsogradError, UserError, command, one_line
from isograd.files import nearest_code
from isograd.hub import is_watched, must_be_a_model

if TYPE_CHECKING:
    from torch import nn

    from isograd.diagnose import Profile


class Cause(TypedDict):
    """A cause; `tested` where changing it was tried."""

    cause: str
    evidence: str
    remedy: str
    tested: bool


class Explanation(Open):
    """A run, a model or the setup of a run, explained.

    Attributes:
        broken: a run that diverged, collapsed or failed; a model or a setup with an error.
        causes: the likeliest first.
        next: the command to type, "" where there is none.
    """

    of: str
    verdict: str
    broken: bool
    causes: list[Cause]
    warnings: list[dict[str, Any]]
    findings: list[Annotated[Any, "isograd.lint.findings:Finding"]]
    profile: list[dict[str, Any]]
    next: str
    page: str


class Spikes(TypedDict):
    """Spikes of a watched script, each with its sentence, its trials and its remedy."""

    of: str
    spikes: list[dict[str, Any]]
    page: str


def explain(
    model: Annotated[str, "RUN|MODEL"],
    *,
    batch: Annotated[str, "MODULE:CALLABLE"] | None = None,
    text: File | None = None,
    lr: float | None = None,
    warmup: int | None = None,
    seed: int = 0,
    device: Literal["cpu", "cuda"] = "cpu",
    out: Folder | None = None,
) -> Annotated[Result, Explanation, Spikes]:
    """Explain a run or a model on one page: the verdict, since when, ranked causes, the next command.

    RUN is the folder of a run of isograd train, or of isograd watch; MODEL what isograd check takes, or
    isograd preflight.

    examples:
      isograd explain runs/my-run
      isograd explain my_model:build --batch my_model:batch --lr 1e-3 --warmup 0

    Of a run its files are read, and its model before the first update is checked where it is there. Of a model the
    findings of isograd check are ranked, and its depth profile is shown beside what theory or a model of the catalogue
    of this depth has; a second page has all quantities of every sublayer, with figures. Exit code 1 where a run
    diverged or collapsed, or a check finds an error.

    Args:
        model: the folder of a run; or a folder with a checkpoint, a hub id, package.module:callable, file.py:callable
        batch: for a model: returns what forward takes, where it cannot be guessed
        text: for a model: real text, read with its own tokenizer (default: the embedded text where it has one)
        lr: for a model: the peak learning rate you plan to use
        warmup: for a model: the warm-up steps you plan to use
        seed: for a model: of random labels and of the perturbation (default 0)
        device: for a model: of the backward pass (default cpu)
        out: where to write (default: RUN/explain, or runs/explain/NAME)
    """
    folder = Path(model)
    is_run = (folder / "run.json").is_file()
    if is_run and (batch or text or lr is not None or warmup is not None):
        raise UserError("--batch, --text, --lr and --warmup are for a model; a run has its own")
    if batch and text:
        raise UserError("--batch and --text contradict each other; give one")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: not a folder")
    if not is_run and (folder / "spike.json").is_file():
        return _spikes(folder, out or folder / "explain")
    watched = not is_run and is_watched(folder)
    if not is_run and not watched:
        if not folder.exists() and (code := nearest_code(model)):
            raise UserError(f"no code, run or model {model!r}; did you mean {code!r}?")
        must_be_a_model(model, callables=True)
    from isograd.lab.study.explain import explain_watched

    begun = time.perf_counter()
    name = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    announce(f"loading torch and {model} ...")
    with loading() as status:

        def shown(line: str) -> None:
            status(line)
            announce(f"{line} ...")

        where = out or (folder / "explain" if is_run or watched else Path("runs/explain") / name)
        if is_run:
            content = _of_run(folder, shown)
        elif watched:
            content = explain_watched(folder)
        elif (setup := _setup(model)) is not None:
            content = _of_setup(model, setup, shown)
        else:
            content, measured = _of_model(model, batch, text, lr, warmup, seed, device, shown)
            if measured is not None:
                shown("drawing the profile")
                content["profile_page"] = str(
                    _profile_page(where, measured, model, batch or content["text"], seed, begun)
                )
        from isograd.lab.report.pages.explain import write_explanation

        page = write_explanation(content, where)
    return Result({**content, "page": str(page)}, partial(_print, content, page), code=int(content["broken"]))


def _spikes(folder: Path, out: Path) -> Result:
    from isograd.lab.report.pages.spike import explained, tried, write_spikes

    spikes, page = explained(folder), write_spikes(folder, out)

    def show() -> None:
        for spike in spikes:
            print_lines(spike["sentence"], "")
            if spike.get("remedy"):
                print_lines(f"-> {spike['remedy']}", "")
            table = tried(spike)
            print_table(table.header, [[escape(str(cell)) for cell in line] for line in table.lines])
        print_path(f"\nissue text: {out / 'issue.md'}")
        print_path(f"page: {page}")

    return Result({"of": str(folder), "spikes": spikes, "page": str(page)}, show)


def _profile_page(out: Path, measured: dict[str, Any], model: str, read: str | None, seed: int, begun: float) -> Path:
    from isograd.lab.report.pages.profile import write_profile

    facts = {"model": model, "inputs": read or "random", "seed": str(seed)}
    facts |= {"seconds": f"{time.perf_counter() - begun:.1f}"}
    facts |= {name: version(name) for name in ("isograd", "torch", "transformers")}
    return write_profile(out, measured, facts)


def _of_run(folder: Path, shown: Callable[[str], None]) -> dict[str, Any]:
    from isograd.lab.study.explain import BROKEN, explain_run

    initial = folder / "checkpoints/initial"
    found: list[dict[str, Any]] = []
    if initial.is_dir():
        from isograd.files import read_json

        shown("checking the model before its first update")
        training = read_json(folder / "run.json").get("training", {})
        found = [one.as_dict() for one in _checked(str(initial), None, training.get("lr"), training.get("warmup"))]
    content = explain_run(folder, found)
    return {**content, "broken": content["outcome"].get("outcome") in (*BROKEN, "failed")}


def _checked(model: str, batch: str | None, lr: float | None, warmup: int | None) -> Any:
    from isograd.lint import check
    from isograd.trace.inputs import as_inputs
    from isograd.trace.load import load_callable, load_model

    with foreign_model(model, batch):
        inputs = as_inputs(load_callable(batch)()) if batch else None
        return check(load_model(model), inputs, lr=lr, warmup=warmup, name=model)


def _inputs(model: "nn.Module", name: str, batch: str | None, text: Path | None) -> tuple[Any, Any, str | None]:
    """What the model is run on, its labels, and which text that is; None: random inputs."""
    from isograd.text import EMBEDDED, read
    from isograd.trace.inputs import text_inputs
    from isograd.trace.load import load_callable

    if batch:
        return load_callable(batch)(), None, None
    if text is None and not Path(name).is_dir():  # nothing is asked of the hub for a look at random ids
        return None, None, None
    source = str(text) if text else EMBEDDED
    try:
        documents = read(source)
        return *text_inputs(model, name, "\n".join(one for _, one in documents)), source
    except IsogradError as error:
        if text:
            raise UserError(f"--text {one_line(error)}") from error
        return None, None, None


def _of_model(
    name: str,
    batch: str | None,
    text: Path | None,
    lr: float | None,
    warmup: int | None,
    seed: int,
    device: str,
    shown: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The explanation, and the whole profile, None where there is none."""
    import torch

    from isograd.diagnose import profile
    from isograd.lab.report.pages.profile import USUAL, gradients_said, plain, verdict
    from isograd.trace.load import load_model

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here")
    shown(f"recording one forward and backward pass of {name}")
    found = [one.as_dict() for one in _checked(name, batch, lr, warmup)]
    read = None
    try:
        loaded = load_model(name)
        inputs, labels, read = _inputs(loaded, name, batch, text)
        measured = profile(loaded, inputs, labels, seed, device=device, progress=shown)
    except UserError:  # of what was asked for
        raise
    except IsogradError as error:
        measured, said = None, one_line(error)
    except Exception as error:  # a model's own code
        measured, said = None, f"{type(error).__name__}: {one_line(error)}"
    serious = [one for one in found if one["severity"] == "error"]
    reported = [one for one in found if one["severity"] != "info"]
    known = next((one for one in found if one["code"] == "collapse-predicted"), None)
    shape = plain(measured.as_dict()) | {"text": read} if measured else {}
    seen = verdict(shape, judged=known is not None) if measured else f"No depth profile: {said}."
    if measured and reported and seen.startswith(USUAL):
        seen = f"The depth profile does not show it: {gradients_said(shape)}."
    head = reported[0] if reported else known
    first = f"{head['message'][:1].upper()}{head['message'][1:]} ({head['address'] or 'the model'})." if head else ""
    first = first if reported or not first else f"No fault found, but whether it trains depends on the rate: {first}"
    content = {
        "of": name,
        "verdict": f"{first} {seen}".strip() if first else f"No fault found. {seen}",
        "broken": bool(serious),
        "causes": [_cause(one) for one in reported],
        "warnings": [],
        "findings": found,
        "text": read,
        **_after(bool(reported), command("explain", name, batch=batch, text=text, lr=lr, warmup=warmup), lr),
    }
    return {**content, **_with_references(measured, shown)}, shape or None


def _setup(name: str) -> Any:
    """What a callable returns that is no model: the setup of a training run; else None."""
    from torch import nn

    from isograd.trace.load import load_callable

    made = load_callable(name)() if ":" in name and not Path(name).exists() else None
    return None if isinstance(made, nn.Module) else made


def _of_setup(name: str, setup: Any, shown: Callable[[str], None]) -> dict[str, Any]:
    """What preflight finds of a training run before it begins."""
    from isograd.lint.step import preflight

    shown("taking batches and a few updates")
    try:
        report = preflight(setup, name=name)
    except InputsError as error:
        raise UserError(f"{name}: {one_line(error)}") from error
    found = [one.as_dict() for one in report]
    reported = [one for one in found if one["severity"] != "info"]
    first = f"{reported[0]['message'][:1].upper()}{reported[0]['message'][1:]}." if reported else "No fault found."
    return {
        "of": name,
        "verdict": first,
        "broken": bool(report.errors),
        "causes": [_cause(one) for one in reported],
        "warnings": [],
        "findings": found,
        "groups": report.groups,
        "profile": [],
        "reference": "",
        **_after_setup(name, bool(reported)),
    }


def _after_setup(name: str, reported: bool) -> dict[str, str]:
    """What to run next."""
    if reported:
        return {"next": command("preflight", name), "note": "again after the first change"}
    script = name.rpartition(":")[0]
    if script.endswith(".py"):
        return {"next": command("watch", script), "note": "train it, and be warned when it goes wrong"}
    return {"next": "", "note": "train it, with isograd watch SCRIPT"}


def _cause(one: dict[str, Any]) -> dict[str, Any]:
    """A finding as a line of the causes."""
    return {
        "cause": one["message"],
        "evidence": f"{one['code']} at {one['address'] or 'the model'}, measured {one['measured']:.3g}"
        + (f"; {one['proof']['says']}" if one["proof"] else ""),
        "remedy": one["remedy"],
        "tested": bool(one["proof"]) and one["proof"]["verdict"] == "confirmed",
    }


def _after(faulty: bool, again: str, lr: float | None) -> dict[str, str]:
    """The next command, and what is to be said of it."""
    if faulty:
        return {"next": again, "note": "again after the first change"}
    if lr is None:
        return {"next": f"{again} --lr 1e-3 --warmup 0", "note": "with the rate and the warm-up that you train with"}
    return {"next": "", "note": "train it, with isograd.watch in the loop (docs/watch.md)"}


def _with_references(measured: "Profile | None", shown: Callable[[str], None]) -> dict[str, Any]:
    """The profile, and beside each number theory's, or that of the catalogue's model of this depth."""
    if measured is None:
        return {"profile": [], "reference": ""}
    from isograd.lab.report.pages.profile import COLUMNS
    from isograd.placement import CATALOGUE

    content = measured.as_dict()
    rows, stacks = content["rows"], content["stacks"]
    placement = max(stacks[-1]["placements"], key=lambda one: stacks[-1]["placements"][one])
    named = placement if placement in CATALOGUE else "pre-ln"
    kinds = len({row["kind"] for row in rows if row["stack"] == stacks[-1]["name"]})
    theirs: dict[tuple[int, str], Any] = {}
    if kinds == 2 and stacks[-1]["layers"] <= 96:
        shown(f"measuring {named} of this depth")
        theirs = {(row["layer"], row["kind"]): row for row in _reference(named, stacks[-1]["layers"])}
    theory = {
        (line["stack"], index, line["quantity"]): value
        for line in content["expected"]
        for index, value in zip(line["index"], line["value"], strict=True)
    }
    found = []
    for row in rows:
        like = theirs.get((row["layer"], row["kind"]), {}) if row["stack"] == stacks[-1]["name"] else {}
        references = {
            column.key: theory.get((row["stack"], row["index"], column.key), like.get(column.key)) for column in COLUMNS
        }
        values = {column.key: row[column.key] for column in COLUMNS}
        found.append({"layer": row["layer"], "kind": row["kind"], "values": values, "references": references})
    said = f"Beside each number (ref.) theory's where there is one, else that of {named} with as many layers, of width"
    said += " 64, at initialization: sizes compare over depth, not with each other. The columns: docs/diagnose.md of"
    said += " isograd's repository."
    return {"profile": found, "reference": said}


def _reference(placement: str, layers: int) -> list[Any]:
    import torch

    from isograd.diagnose import profile
    from isograd.models import IsogradConfig, IsogradForCausalLM

    shape: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = IsogradForCausalLM(IsogradConfig(placement=placement, num_hidden_layers=layers, **shape))
        rows: list[Any] = profile(model).as_dict()["rows"]
        return rows


def _print(content: dict[str, Any], page: Path) -> None:
    from isograd.lab.report.pages import explain as explain_page

    print_lines(content["verdict"])
    if content["causes"]:
        print_lines("")
    for i, one in enumerate(content["causes"], 1):
        print_lines(f"{i}. {one['cause']}", f"   because {one['evidence']}")
        print_lines(f"   {'tested' if one['tested'] else 'change'}: {one['remedy']}")
    table = explain_page.profile(content, explain_page.MOST)
    if table:
        print_lines("")
        wide = output().width < 150 and len(table.header) > 8
        shown = [i for i in range(len(table.header)) if not wide or i < 8]
        said = explain_page.caption([table.header[i] for i in shown])
        left_out = f" {len(table.header) - len(shown)} more columns: on the page below." if wide else ""
        print_lines(*filter(None, [f"{said}{left_out}".strip()]))
        print_table([table.header[i] for i in shown], [[escape(line[i]) for i in shown] for line in table.lines])
        print_lines("", explain_page.profile_text(content))
    note = f"   ({content['note']})" if content["next"] and content.get("note") else content.get("note", "")
    print_path(f"\nnext: {content['next']}{note}")
    print_path(f"page: {page}")
    if profile := content.get("profile_page"):
        print_path(f"every quantity, with figures: {profile}")
