"""The verbs that need no torch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import isograd
from isograd.cli import verbs
from isograd.placement import CATALOGUE
from isograd.placement.formula import Group
from tests.build import few
from tests.study.arms import called, refused

COMMANDS = [
    ["show"],
    ["show", "deepnorm", "layers=48"],
    ["show", "--json"],
    ["show", "recipes"],
    ["reproduce", "--list"],
    ["--version"],
]


@pytest.mark.parametrize("command", few(COMMANDS, 4), ids="-".join)
def test_no_torch(command: list[str]) -> None:
    """In a process of its own, as the console script calls it."""
    code = f"import sys; from isograd.cli import main\ntry: main({command})\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout and not done.stderr


def test_list_names_every_placement() -> None:
    code, out, err = called("show")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(CATALOGUE)
    groups = [line for line in lines if line and not line.startswith((" ", "'"))]
    assert groups == list(dict.fromkeys(p.group for p in CATALOGUE.values())) == list(get_args(Group))
    assert {line.split()[0] for line in lines if "equation unconfirmed" in line} == {"keel", "spannorm"}


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["mix-ln"], ["attn, layers 1 to 3 x <- LN(x + Attn(x))", "attn, layers 4 to 12 x <- x + Attn(LN(x))"]),
        (["layerscale", "layers=24"], ["24 layers, every sublayer: scale = 1e-05"]),
        (["layernorm-scaling", "layers=4"], ["layer 4:               pre.scale = 0.5"]),
        (["mhc"], ["u = Attn(LN(read))", "a branch reads sum_i r_i S_i; S_i <- sum_j C_ij S_j + w_i u"]),
        (["spannorm"], ["The equation is unconfirmed", "first  x <- LN(x)"]),
        (["b2t"], ["add(x, u) = LN(x + u)"]),
        (["completep", "layers=8"], ["scale = 0.25", "eps of query", "times 2 / L"]),
        (["qk-clip"], ["whose largest logit S was above 100 times sqrt(100 / S)"]),
        (["ngpt"], ["x <- L2((1 - scale) * x + scale * L2(W_2 act(w * W_1 sqrt(d) * x)))"]),
        (["dyt"], ["slope: a trainable number, initialized to 0.5", "x <- x + FFN(DyT(x))"]),
    ],
)
def test_the_card_of_later_entries(words: list[str], lines: list[str]) -> None:
    out = called("show", *words)[1]
    for line in lines:
        assert line in out


def test_recipes_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recipe of the package, found from an empty folder by its name, and listed with a sentence and a command."""
    monkeypatch.chdir(tmp_path)
    code, out, err = called("show", "recipes", "--json")
    listed = json.loads(out)
    files = sorted((Path(isograd.__file__).parent / "lab/recipes").rglob("*.yaml"))
    assert (code, err) == (0, "") and sorted(map(Path, (one["file"] for one in listed.values()))) == files
    for name, one in listed.items():
        assert Path(one["file"]).read_text(encoding="utf-8") == called("show", name)[1]
        assert one["about"].endswith((".", "?")) and 20 < len(one["about"]) < 200, name
        assert {name, name.rpartition("/")[2]} & set(one["command"].split()), name
    same = [called("train", word, "--keys")[1] for word in ("bert-mini", listed["bert-mini"]["file"])]
    assert same[0] == same[1] and "task: masked" in same[0]
    (tmp_path / "bert-mini").write_text("name: mine\n")
    assert "name: mine" in called("train", "bert-mini", "--keys")[1]  # a file that is there comes first


@pytest.mark.parametrize(
    ("word", "typed"), [("headroom", "isograd study --find max-lr"), ("theory", "isograd reproduce theory")]
)
def test_a_word_for_a_part_of_a_verb_says_what_to_type(word: str, typed: str) -> None:
    assert f"no verb '{word}'; did you mean '{typed}'?" in refused(word)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "bert-mni"], "bert-mni: no such recipe; did you mean 'bert-mini'?"),
        (["train", "iwslt14-smal"], "did you mean 'xiong2020/iwslt14-small'?"),
        (["study", "warm-up"], "did you mean 'warmup'?"),
        (["compare", "iwslt14"], "choose one of admin2020/iwslt14, xiong2020/iwslt14"),
        (
            ["study", "zzzz", "--find", "max-lr"],
            "zzzz: no such recipe; 'isograd show recipes' lists those of the package",
        ),
    ],
)
def test_recipes_of_no_such_name(command: list[str], said: str) -> None:
    assert said in refused(*command)


def test_list_json() -> None:
    code, out, err = called("show", "--json")
    content = json.loads(out)
    assert (code, err, list(content)) == (0, "", list(CATALOGUE))
    assert content["post-ln"]["formulas"] == {"attn": "x <- LN(x + Attn(x))", "ffn": "x <- LN(x + FFN(x))"}
    assert (content["pre-ln"]["final"], content["post-ln"]["final"]) == ("x <- LN(x)", None)


def test_show_deepnorm_decoder() -> None:
    """(2 * 48)^(1/4) = 3.13017, (8 * 48)^(-1/4) = 0.225901."""
    out = called("show", "deepnorm", "layers=48")[1]
    assert "48 layers, every sublayer: skip = 3.13017, init.value = 0.225901" in out


def test_show_deepnorm_two_stacks() -> None:
    """The paper's constants at N = M = 100."""
    code, out, _ = called("show", "deepnorm", "encoder=100", "decoder=100", "--json")
    sites = json.loads(out)["sites"]
    assert code == 0 and {k: len(v) for k, v in sites.items()} == {"encoder": 200, "decoder": 300}
    for tower, skip, start in (("encoder", 3.4157, 0.2063), ("decoder", 4.1618, 0.1699)):
        assert {round(row["skip"], 4) for row in sites[tower]} == {skip}
        assert {round(row["init.ffn_in"], 4) for row in sites[tower]} == {start}
    assert {row["kind"] for row in sites["decoder"]} == {"attn", "cross", "ffn"}
    text = called("show", "deepnorm", "encoder=100", "decoder=100")[1]
    assert "encoder, 100 layers, every sublayer: skip = 3.4157" in text
    assert "cross  x <- LN(skip * x + Cross(x))" in text


def test_show_admin_closed() -> None:
    rows = json.loads(called("show", "admin-closed", "encoder=100", "decoder=100", "--json")[1])["sites"]
    assert {round(r["skip"], 4) for r in rows["encoder"]} == {6.0746}
    assert {round(r["skip"], 4) for r in rows["decoder"]} == {7.1931}


@pytest.mark.parametrize("name", few(CATALOGUE, 4))
def test_show_every_placement(name: str) -> None:
    code, out, err = called("show", name)
    assert (code, err) == (0, "") and "12 layers" in out and CATALOGUE[name].about in out
    assert called("show", name, "layers=1")[0] == called("show", name, "encoder=2", "decoder=3")[0] == 0
    assert len(json.loads(called("show", name, "--json")[1])["sites"]["layers"]) == 24


def test_words_behind_an_option() -> None:
    assert called("show", "deepnorm", "--json", "layers=48") == called("show", "deepnorm", "layers=48", "--json")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["show", "depnorm"], "did you mean 'deepnorm'?"),
        (["show", "zzz"], "choose one of post-ln"),
        (["show", "pre-ln", "layers=0"], "at least 1"),
        (["show", "pre-ln", "layers=-3"], "at least 1"),
        (["show", "pre-ln", "layers=x"], "whole number"),
        (["show", "pre-ln", "layer=3"], "expected layers=48"),
        (["show", "pre-ln", "48"], "expected layers=48"),
        (["show", "pre-ln", "encoder=3"], "needs both"),
        (["show", "pre-ln", "encoder=3", "decoder=3", "layers=3"], "not both"),
        (["show", "pre-ln", "--bogus"], "--bogus"),
        (["lst"], "'lst'"),
        ([], "expected a verb"),
        (["check", "x", "--lr", "fast"], "'fast'"),
        (["compare", "data.level=word"], "data.level=word: expected char, bpe"),
        (["compare", "--seds", "3"], "did you mean --seeds?"),
        (["check", "x", "--learning-rate", "3"], "did you mean --lr?"),
        (["study", "x.yaml", "--workers", "3"], "did you mean --jobs?"),
        (["trian"], "did you mean 'train'?"),
        (["evaluate"], "the following arguments are required: MODEL"),
        (["evaluate", "x", "--tsks", "a"], "did you mean --tasks?"),
        (["evaluate", "x", "--task", "rte", "--beam", "2"], "--beam --task do not go together"),
        (["show", "prenorm"], "did you mean 'pre-ln'?"),
        (["show", "post_layernorm"], "did you mean 'post-ln'?"),
        (["show", "deepnet"], "did you mean 'deepnorm'?"),
        (["train", "n_layer=3"], "did you mean 'model.layers'?"),
        (["train", "training.learning_rate=3"], "did you mean 'training.lr'?"),
        (["compare", "--placements", "prenorm"], "did you mean 'pre-ln'?"),
    ],
)
def test_wrong_use(command: list[str], said: str) -> None:
    assert said in refused(*command)


def test_help_and_version() -> None:
    code, out, _ = called("--version")
    assert code == 0 and re.fullmatch(
        rf"isograd {re.escape(isograd.__version__)}( \([0-9a-f]{{7,}}(-dirty)?\))?\n", out
    )
    assert (" (" in out) == (Path(isograd.__file__).parents[1] / ".git").exists()
    code, out, err = called("--help")
    assert (code, err) == (0, "") and all(f"\n  {verb} " in out for verb in verbs())
    for verb in verbs():
        code, out, err = called(verb, "--help")
        assert (code, err) == (0, "") and "usage: isograd " + verb in out
        assert out.count("usage: ") == len(verbs()[verb])
    out = called("compare", "--help")[1]
    for flag in ("placements", "arm", "model", "seeds", "data", "out", "json", "jobs", "fresh"):
        assert f"--{flag} " in out, flag


def test_a_reader_that_goes_early_and_a_terminal_without_arrows() -> None:
    command = f"{sys.executable} -W error -m isograd"
    piped = f"set -o pipefail; {command} show | head -n 1 && {command} show --json | head -c 5"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("norm on the sum") and not done.stderr
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys; from isograd.cli import main; print(main(['show']), '\\u2192')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ascii_only)
    assert done.stdout.endswith("0 ?\n") and not done.stderr


@pytest.mark.parametrize(
    ("line", "found"),
    [("isograd comp", "compare"), ("isograd evaluate --l", "--limit"), ("isograd study --j", "--jobs")],
)
def test_completion(line: str, found: str, tmp_path: Path) -> None:
    """As bash asks for it, by argcomplete."""
    pytest.importorskip("argcomplete")
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    environment = os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "found")}
    subprocess.run([sys.executable, "-m", "isograd"], env=environment, check=True)
    assert found in (tmp_path / "found").read_text().replace("\v", " ").split()


@pytest.mark.parametrize(
    "command",
    [
        "train model.layrs=3",
        "compare --placements prenorm",
        "study studies/warmup model.layrs=3",
        "study model.layrs=3 --find max-lr",
    ],
)
def test_a_refusal_of_the_recipe_loads_no_torch(command: str) -> None:
    code = (
        f"import sys; from isograd.cli import main\ncode = main({command.split()})\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nsys.exit(code)"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "did you mean" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_module_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--import` registers first; what it registers is shown with its own norm, and trained in other processes."""
    (tmp_path / "mine.py").write_text(
        "from isograd.placement import Learned, Norm, Placement, Residual, register\n"
        "N = Norm(kind='rmsnorm')\n"
        "register('mine', Placement(each=Residual(pre=N, out=N, scale=Learned(init=0.1)), final=N, about='mine'))\n"
    )
    (tmp_path / "text.txt").write_text("a text of some words and of some more\n" * 60)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "isograd"]
    shown = subprocess.run([*command, "show", "mine", "--import", "mine"], capture_output=True, text=True, check=True)
    assert "attn   x <- x + scale * RMS(Attn(RMS(x)))" in shown.stdout
    assert "final  x <- RMS(x) after the last layer" in shown.stdout
    small = [
        "model.layers=1",
        "model.width=8",
        "model.heads=2",
        "training.steps=2",
        "training.batch=2",
        "data.length=8",
    ]
    arms = ["--placements", "mine", "pre-ln", "--data", "text.txt", "--out", "out", "--jobs", "2"]
    told = subprocess.run(
        [*command, "compare", "--import", "mine", "--json", *arms, *small], capture_output=True, text=True, check=True
    )
    assert [a["outcome"] for a in json.loads(told.stdout)["arms"]].count("failed") == 0
    wrong = subprocess.run([*command, "show", "--import", "nobody"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "isograd show: --import nobody: No module named 'nobody'\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "--import", ""], "--import : ValueError: Empty module name"),
        (["show", "--import", "broken"], "--import broken: SyntaxError: "),
        (["show", ""], "argument PLACEMENT: is empty"),
        (["train", ""], "argument RECIPE: is empty"),
        (["train", "--out", ""], "argument --out: is empty"),
        (["train", "a.yaml", "--json", ""], "an argument is empty"),
        (["report", ""], "argument FOLDER: is empty"),
        (["import", "x"], "arguments are required: --out ("),
        (["import", "x", "--outt", "y"], "did you mean --out?"),
        (["export", "x", "y", "z"], "unrecognized arguments: z ("),
        (["export", "x", "y"], "isograd export: x: no such folder"),
        (["export", "--json", "x", "x", "--to", "folded"], "isograd export: x: no such folder"),
        (["export", "x", "y", "--untie"], "isograd export: x: no such folder"),
        (
            ["train", "--into", "y"],
            "unrecognized arguments: --into; a setting of the recipe has no dashes: into=VALUE (",
        ),
        (["compare", "--layers", "3"], "has no dashes: layers=VALUE ("),
        (["study", "warmup", "--layers", "3"], "has no dashes: layers=VALUE ("),
    ],
)
def test_wrong_use_in_one_line(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty word, too: what a shell makes of a variable that is not set."""
    (tmp_path / "broken.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words)


def test_quiet_holds_for_one_call() -> None:
    """In one process, as in a notebook: what comes after it shows its progress again."""
    from isograd.cli import console, main

    assert main(["show", "--quiet"]) == 0
    assert not console._quiet


def test_no_color_is_stronger_than_a_forced_one() -> None:
    """Jupyter's kernels force colours on every process; who sets NO_COLOR has plain text in a notebook, too."""
    code = (
        "from isograd.cli.console import output, progress; output().print('[bold]x[/bold]'); progress().print('[red]y')"
    )
    forced = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"FORCE_COLOR": "1"}

    def said(environment: dict[str, str]) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        return done.stdout + done.stderr

    assert said(forced).count("\x1b[") >= 2
    assert said(forced | {"NO_COLOR": "1"}) == "x\ny\n"
