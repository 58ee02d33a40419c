"""Six small language models, checked: three designs that look wrong and are right, three that look right and are wrong.

    python -m benchmarks.designs --out docs/results/designs              a minute of one core
    python -m benchmarks.designs --out docs/results/designs --drawn      the page again, from measured.json

A design that is right has changes that a strict reader would ask for; they are tried as `isograd check` tries its own
suspicions. One that is wrong has its mend.
"""

import argparse
import inspect
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from isograd.errors import many
from isograd.files import read_json, write_json, write_text
from isograd.lab.report.style import drawing, label, plain, save, settings, shade
from isograd.lint.checked_model import CheckedModel
from isograd.lint.proof.trial import PLANS, SEEDS, Edit, Trial
from isograd.machine import processor
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import guess_inputs, run
from isograd.trace.record import answer

VOCAB, WIDTH, HEADS, LAYERS = 256, 64, 4, 4
COPIES = 4  # of the stream, in hyper-connections
Row = Mapping[str, Any]


def heads(x: Tensor) -> Tensor:
    """(batch, time, width) as (batch, heads, time, width of a head)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def rotary(x: Tensor) -> Tensor:
    """Heads rotated by position, in pairs of channels."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 1000.0 ** -(torch.arange(half) / half)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class PreLayer(nn.Module):
    """x + attn(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, attention: Callable[[], nn.Module] = Attention) -> None:
        super().__init__()
        self.attn_norm, self.attn = nn.LayerNorm(WIDTH), attention()
        self.ffn_norm, self.ffn = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """A causal language model; matrices begin with N(0, 0.02^2)."""

    def __init__(self, layer: Callable[[], nn.Module] = PreLayer) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.norm_out = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.init()

    def init(self) -> None:
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm_out(x))


# 1. Looks wrong: attention and feed-forward side by side, behind one norm


class ParallelLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.ffn = nn.LayerNorm(WIDTH), Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.attn(h) + self.ffn(h)


def one_after_another(checked: CheckedModel) -> Iterator[Edit]:
    """The feed-forward has a norm of its own (without weights), and then reads what attention wrote, too."""
    own, readers, serial = {}, {}, {}
    for at in range(LAYERS):
        norm = checked.trace.operations[_number(checked, f"layers.{at}.norm")]
        up = checked.trace.operations[number := _number(checked, f"layers.{at}.ffn.up")]
        attn = checked.trace.operations[_number(checked, f"layers.{at}.attn.out")].makes[0]

        def normed(made: Tensor, of: Callable[[int], Tensor], x: int = norm.reads[0]) -> Tensor:
            return F.layer_norm(of(x), (WIDTH,))

        def after(
            made: Tensor,
            of: Callable[[int], Tensor],
            attn: int = attn,
            norm: Sequence[int] = norm.reads,
            up: Sequence[int] = up.reads,
        ) -> Tensor:
            x, weight, bias = map(of, norm)
            return F.linear(F.layer_norm(x + of(attn), (WIDTH,), weight, bias), of(up[1]), of(up[2]))

        own[norm.makes[0]], readers[norm.makes[0]] = normed, frozenset([number])
        serial[up.makes[0]] = after
    yield Edit(says="x + attn(norm(x)) + ffn(norm2(x))", values=own, readers=readers)
    yield Edit(says="y = x + attn(norm(x)); y + ffn(norm(y))", values=serial)


def _number(checked: CheckedModel, address: str) -> int:
    """Of the operation of a module."""
    return next(at for at, o in enumerate(checked.trace.operations) if o.module == address)


# 2. Looks wrong: no norm before a branch, no plain sum, scores multiplied by sqrt(d) (nGPT)


def unit(x: Tensor, axis: int = -1) -> Tensor:
    return F.normalize(x, dim=axis)


class UnitLinear(nn.Module):
    """A matrix whose rows (axis -1) or columns (axis 0) have length 1."""

    def __init__(self, reads: int, writes: int, axis: int) -> None:
        super().__init__()
        self.weight, self.axis = nn.Parameter(torch.randn(writes, reads)), axis

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, unit(self.weight, self.axis))


class Scale(nn.Module):
    """A trained vector that begins with `first` and is stored as 1/sqrt(d), so that it learns as fast as matrices."""

    def __init__(self, width: int, first: float = 1.0) -> None:
        super().__init__()
        self.stored, self.factor = nn.Parameter(torch.full((width,), WIDTH**-0.5)), first * WIDTH**0.5

    def forward(self) -> Tensor:
        return self.stored * self.factor


class SphereLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = UnitLinear(WIDTH, 3 * WIDTH, -1), UnitLinear(WIDTH, WIDTH, 0)
        self.up, self.down = UnitLinear(WIDTH, 8 * WIDTH, -1), UnitLinear(4 * WIDTH, WIDTH, 0)
        self.query_key, self.hidden = Scale(WIDTH // HEADS), Scale(8 * WIDTH)
        self.attn_step, self.ffn_step = Scale(WIDTH, 1 / LAYERS), Scale(WIDTH, 1 / LAYERS)

    def attn(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, dim=-1))
        q, k = (unit(rotary(one)) * self.query_key() for one in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=(WIDTH // HEADS) ** 0.5)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def ffn(self, x: Tensor) -> Tensor:
        value, gate = (self.up(x) * self.hidden()).chunk(2, dim=-1)
        return self.down(value * F.silu(gate * WIDTH**0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = unit(x + self.attn_step() * (unit(self.attn(x)) - x))
        return unit(x + self.ffn_step() * (unit(self.ffn(x)) - x))


class Sphere(nn.Module):
    """nGPT, a causal language model; its matrices are normalized where they are read, not after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(VOCAB, WIDTH))
        self.layers = nn.ModuleList(SphereLayer() for _ in range(LAYERS))
        self.head, self.logits = UnitLinear(WIDTH, VOCAB, -1), Scale(VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, unit(self.tokens))
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.logits() * WIDTH**0.5


def plain_sums(checked: CheckedModel) -> Iterator[Edit]:
    """x + f(norm(x)) in place of each step: matrices have no bias, so that what they make is divided by |x|."""
    values = {}
    for sublayer in checked.anatomy.sublayers:

        def total(made: Tensor, of: Callable[[int], Tensor], terms: tuple[int, int]) -> Tensor:
            return of(terms[0]) + of(terms[1])

        def shorter(made: Tensor, of: Callable[[int], Tensor], x: int) -> Tensor:
            return made / of(x).norm(dim=-1, keepdim=True)

        values[sublayer.stream] = _with(total, (sublayer.enters, sublayer.branch))
        for operation in checked.trace.read_by(sublayer.stream):
            if operation.name == "linear":
                values[operation.makes[0]] = _with(shorter, sublayer.stream)
    yield Edit(says="x + f(norm(x))", values=values)


def _with(change: Callable[..., Tensor], last: Any) -> Callable[..., Tensor]:
    return lambda made, of: change(made, of, last)


# 3. Looks wrong: four copies of the stream, no x + f(x), and a gate that halves every branch (hyper-connections)


class HyperConnection(nn.Module):
    """Reads a mix of the copies, mixes them, writes the branch to each with a weight; begins as x + g f(norm(x))."""

    def __init__(self, first: int, branch: nn.Module) -> None:
        super().__init__()
        self.read = nn.Parameter(F.one_hot(torch.tensor(first), COPIES).float())
        self.mix, self.write = nn.Parameter(torch.eye(COPIES)), nn.Parameter(torch.ones(COPIES))
        self.norm, self.branch, self.gate = nn.LayerNorm(WIDTH), branch, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.einsum("n,btnd->btd", self.read, x))
        u = torch.sigmoid(self.gate(h)) * self.branch(h)
        return torch.einsum("mn,btnd->btmd", self.mix, x) + self.write[:, None] * u[:, :, None]


class HyperDecoder(Decoder):
    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(HyperConnection(0, Attention()), HyperConnection(1, FeedForward())))

    def init(self) -> None:
        super().init()
        for module in self.modules():
            if isinstance(module, HyperConnection):
                nn.init.eye_(module.mix)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)[:, :, None].expand(-1, -1, COPIES, -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm_out(x.sum(2)))


def no_gate(checked: CheckedModel) -> Iterator[Edit]:
    gates = [o.makes[0] for o in checked.trace.operations if o.name == "sigmoid"]
    yield Edit(says="no gate", values=dict.fromkeys(gates, lambda made, of: torch.ones_like(made)))


# 4. Looks right: each position reads the one before it as well, as in RWKV


class ShiftedBranch(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), branch
        self.own = nn.Parameter(torch.full((WIDTH,), 0.5))

    def before(self, h: Tensor) -> Tensor:
        return torch.roll(h, 1, dims=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.branch(torch.lerp(self.before(h), h, self.own))


class ShiftedBranchMended(ShiftedBranch):
    def before(self, h: Tensor) -> Tensor:
        return F.pad(h, (0, 0, 1, -1))


def shifted(kind: type[ShiftedBranch]) -> Decoder:
    return Decoder(lambda: nn.Sequential(kind(Attention()), kind(FeedForward())))


# 5. Looks right: matrices that write to the stream begin smaller, as in GPT-2, and are found by their names


class ScaledDecoder(Decoder):
    writes = ("out.weight", "down.weight")

    def init(self) -> None:
        super().init()
        for name, weight in self.named_parameters():
            if name.endswith(self.writes):
                nn.init.normal_(weight, std=0.02 / (2 * LAYERS) ** 0.5)


class ScaledDecoderMended(ScaledDecoder):
    writes = (".out.weight", ".down.weight")


# 6. Looks right: heads split and joined by a view


class ViewedAttention(Attention):
    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.reshape(b, HEADS, t, d // HEADS) for y in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.out(mixed.reshape(b, t, d))


class ViewedAttentionMended(Attention):
    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.reshape(b, t, HEADS, d // HEADS).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))


# Two mistakes more


class NormedResidual(nn.Module):
    """The shortcut starts after the norm."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), branch

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return x + self.branch(x)


class WideScale(Attention):
    """The scale is that of the stream's width, 1/sqrt(64), where heads have 16."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, dim=-1))
        scale = x.shape[-1] ** -0.5
        mixed = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True, scale=scale)
        return self.out(mixed.transpose(1, 2).flatten(2))


@dataclass(frozen=True, kw_only=True)
class Design:
    """Attributes:
    name: of its figures.
    title: of its section.
    looks: what a reader of the code sees.
    about: what it is.
    code: whose source is shown.
    build: the model.
    mended: the model without the mistake; None of a design that is right.
    mend: whose source is shown as the mend.
    changes: what a strict reader would ask for, of a design that is right.
    """

    name: str
    title: str
    looks: str
    about: str
    code: Callable[..., Any]
    build: Callable[[], nn.Module]
    mended: Callable[[], nn.Module] | None = None
    mend: Any = None
    changes: Callable[[CheckedModel], Iterator[Edit]] | None = None


DESIGNS = (
    Design(
        name="parallel",
        title="Attention and feed-forward side by side, behind one norm",
        looks="the feed-forward does not see what attention wrote, and has no norm of its own",
        about="GPT-J (Wang and Komatsuzaki, 2021) and PaLM (Chowdhery et al., 2022)",
        code=ParallelLayer.forward,
        build=lambda: Decoder(ParallelLayer),
        changes=one_after_another,
    ),
    Design(
        name="sphere",
        title="Unit vectors, and steps of trained size",
        looks="no norm before a branch, no plain sum, and scores multiplied by sqrt(d) instead of divided by it",
        about="nGPT (Loshchilov et al., 2024); steps begin with 1/L, and matrices are normalized where"
        " they are read, so that their size does not count: what the check suspects of it is overturned",
        code=SphereLayer.forward,
        build=Sphere,
        changes=plain_sums,
    ),
    Design(
        name="hyper",
        title="Four copies of the stream, and a gate on every branch",
        looks="no x + f(x) anywhere, and a sigmoid that halves every branch at the first step",
        about="hyper-connections with constant maps (Zhu et al., 2024), and an output gate",
        code=HyperConnection.forward,
        build=HyperDecoder,
        changes=no_gate,
    ),
    Design(
        name="shift",
        title="The position before, by `torch.roll`",
        looks="each branch mixes a position with the one before it, as RWKV does",
        about="`roll` is circular: the first position reads the last one, and with it the tokens that it is to predict."
        " All shapes fit",
        code=ShiftedBranch.before,
        build=lambda: shifted(ShiftedBranch),
        mended=lambda: shifted(ShiftedBranchMended),
        mend=ShiftedBranchMended.before,
    ),
    Design(
        name="names",
        title="Smaller init for what writes to the stream, by name",
        looks="W_O and W_2 begin with 1/sqrt(2L) of the standard deviation, as in GPT-2",
        about="the last norm is called `norm_out`, and its weight ends in `out.weight` as well: it is drawn from a"
        " normal distribution of standard deviation 0.007, where it should be 1",
        code=ScaledDecoder,
        build=ScaledDecoder,
        mended=ScaledDecoderMended,
        mend=ScaledDecoderMended,
    ),
    Design(
        name="view",
        title="Heads split and joined by a view",
        looks="all shapes fit, the view back undoes the view before, and no position sees a later one",
        about="a head of (b, heads, t, d) holds a quarter of the positions instead of a quarter of the channels: no"
        " position reads one outside of its quarter",
        code=ViewedAttention.forward,
        build=lambda: Decoder(lambda: PreLayer(ViewedAttention)),
        mended=lambda: Decoder(lambda: PreLayer(ViewedAttentionMended)),
        mend=ViewedAttentionMended.forward,
    ),
)
MORE = {
    "the residual added to the normalized input, `x = norm(x); x + f(x)`": lambda: Decoder(
        lambda: nn.Sequential(NormedResidual(Attention()), NormedResidual(FeedForward()))
    ),
    "scores divided by the root of the stream's width, 8, where heads of width 16 need 4": lambda: Decoder(
        lambda: PreLayer(WideScale)
    ),
}


def built(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


def checked(build: Callable[[], nn.Module]) -> dict[str, Any]:
    """What the check says, infos about an optimizer to come left out, and its seconds of processor time."""
    model, begun = built(build), time.process_time()
    findings = isograd.check(model, prove=True)
    seconds = round(time.process_time() - begun, 1)
    kept = [f for f in findings if f.code != "gains-decayed"]
    keys = ("code", "severity", "kind", "address", "message")
    return {
        "sublayers": len(findings.placements),
        "placements": sorted(set(findings.placements.values())),
        "missed": [*findings.missed],
        "findings": [{key: getattr(f, key) for key in keys} | {"proof": f.proof and f.proof.as_dict()} for f in kept],
        "seconds": seconds,
    }


def severity(row: Row) -> str:
    """The most severe of the findings; "nothing" where there is none."""
    return row["findings"][0]["severity"] if row["findings"] else "nothing"


def provoked(design: Design) -> list[dict[str, Any]]:
    """The proofs of the changes that a strict reader would ask for."""
    model = built(design.build).eval()
    inputs = guess_inputs(model)
    found = CheckedModel(model, inputs, find_anatomy(model, inputs))
    trial = Trial(found, None)
    return [trial.of(edit).as_dict() for edit in design.changes(found)] if design.changes else []


@torch.no_grad()
def reached(build: Callable[[], nn.Module]) -> list[float]:
    """By position, the largest change of its logits when the last token is another one, over the largest logit."""
    model = built(build).eval()
    inputs = guess_inputs(model)
    ids = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs[0]
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % VOCAB
    before, after = (answer(run(model, (x,))) for x in (ids, other))
    gap = (after - before).abs().amax(dim=(0, 2)) / before.abs().max()
    return [round(x, 6) for x in gap.tolist()]


def measured(design: Design) -> dict[str, Any]:
    row: dict[str, Any] = {"as_is": checked(design.build), "changes": provoked(design)}
    if design.mended:
        row["mended"] = checked(design.mended)
        if not any(f["proof"] for f in row["as_is"]["findings"]):
            row["reached"] = [reached(build) for build in (design.build, design.mended)]
    return row


def shown(row: Row) -> list[Row]:
    """The proofs of the changes that a reader would ask for, of a wrong design those of the check."""
    return row["changes"] or [f["proof"] for f in row["as_is"]["findings"] if f["proof"]]


def draw(design: Design, row: Row, out: Path) -> None:
    with settings():
        drawn = drawing(1, height=3.2)
        (axes,) = drawn.panels
        if "reached" in row:
            for name, gaps, part in zip(("as it is", "mended"), row["reached"], (1.0, 0.2), strict=True):
                axes.plot(gaps, label=name, color=shade(part), marker="o", markersize=3)
            label(axes, "position, of 16: the last token is another one", "change of the logits, of the largest")
        else:
            proofs = shown(row)
            axes.plot(proofs[0]["as_is"], label="as it is", color=shade(1.0))
            for at, proof in enumerate(proofs):
                name = f"with the change: {plain(proof['change'])}"
                axes.plot(proof["changed"], label=name, color=shade(0.4 * at), linestyle=("-", "--")[at])
            label(axes, "step", f"loss, nats ({proofs[0]['task']})")
        save(drawn, out / design.name, ("svg",))


def page(content: Row) -> str:
    rows, more = content["designs"], content["more"]
    right = [d for d in DESIGNS if d.changes]
    reported = sum(severity(rows[d.name]["as_is"]) in ("error", "warning") for d in right)
    caught = sum(severity(rows[d.name]["as_is"]) == "error" for d in DESIGNS if d.mended)
    parts = [
        "# Designs that look wrong, and designs that look right",
        f"Of three published designs that look wrong `isograd check` reports {_COUNTS[reported]} as an error or a"
        f" warning; of three that look right and are not, {_COUNTS[caught]} as an error.",
        _table(rows),
        _READ.format(steps=PLANS[0][0], seeds=len(SEEDS)),
        *(_section(design, rows[design.name]) for design in DESIGNS),
        "## Two mistakes more",
        "Written for this page as well, and kept as they came out.",
        "\n".join(_more(name, row) for name, row in more.items()),
        "## Setting",
        f"Each model: {LAYERS} layers, width {WIDTH}, {HEADS} heads, {VOCAB} tokens, built once, with seed 0, in"
        " `benchmarks/designs.py`; the trial makes its data itself, permutes the columns of the weights for each seed,"
        " and takes the best of three learning rates after 20 steps on a further seed. Seconds are processor time of"
        f" one core. {content['versions']}; {content['processor']}.",
        "    python -m benchmarks.designs --out docs/results/designs",
    ]
    return "\n\n".join(map(_filled, parts)) + "\n"


def _filled(part: str) -> str:
    if part[0] in "#|!`- " or "\n\n" in part:
        return part
    return textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False)


_READ = """*Error*, *info*, *nothing*: the most severe finding; infos about an optimizer to come are left out. A *fact*
is a computation that anybody can repeat. A *suspicion* is tried: the recorded computation is trained for {steps} steps
with and without the change, each at the best of three learning rates; it is an error where the model trains better
in all of {seeds} seeds. *Gain*: the loss as it is minus that with the change, mean of the second half of the steps, in
nats (natural logarithm), by seed; positive where the change helps. *Control*: how far the loss of the model as it is
moves when all its parameters are moved by a thousandth. A gain counts where it is more than the control and more than
1 % of what was learned."""
_COUNTS = ("none", "one", "two", "three")


def _table(rows: Row) -> str:
    lines = ["| design | check | then | seconds |", "|---|---|---|---|"]
    for design in DESIGNS:
        row = rows[design.name]
        said = severity(row["as_is"])
        if row["as_is"]["findings"]:
            first = row["as_is"]["findings"][0]
            said = f"**{said}**: `{first['code']}`, a {first['kind']}"
        then = f"mended: {severity(row['mended'])}" if "mended" in row else "; ".join(map(_told, row["changes"]))
        spent = row["as_is"]["seconds"] + sum(p["seconds"] for p in row["changes"])
        lines.append(f"| [{design.title}](#{_anchor(design.title)}) | {said} | {then} | {spent:.1f} |")
    return "\n".join(lines)


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _told(proof: Row) -> str:
    return f"`{proof['change']}`: {_gains(proof)} nats, {_verdict(proof)}"


def _gains(proof: Row) -> str:
    return ", ".join(f"{gain:+.2f}" for gain in proof["gains"])


def _verdict(proof: Row) -> str:
    verdicts = {"confirmed": "**trains better**", "overturned": "no gain that counts", "untried": "not tried"}
    return verdicts[proof["verdict"]]


def _section(design: Design, row: Row) -> str:
    as_is = row["as_is"]
    parts = [
        f"## {design.title}",
        f"What a reader sees: {design.looks}. What it is: {design.about}.",
        _code(design.code),
        f"**Check**: {_said(as_is)} ({many(as_is['sublayers'], 'sublayer')},"
        f" {' and '.join(as_is['placements'])}; {as_is['seconds']} s).",
    ]
    if design.mended:
        parts += ["Mended:", _code(design.mend), f"**Check, mended**: {_said(row['mended'])}."]
    parts.append(f"![{_caption(row)}]({design.name}.svg)")
    if "reached" in row:
        share = " and ".join(str(sum(gap > 1e-6 for gap in gaps[:-1])) for gaps in row["reached"])
        parts.append(
            "Another last token, and nothing else: of the"
            f" {len(row['reached'][0]) - 1} positions before it, {share} change (as it is, mended)."
        )
    if proofs := shown(row):
        lines = [
            "| change | gain by seed, nats | control | rates, as it is and changed | seconds |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| `{p['change']}` | {_gains(p)} | {p['control']:.2f} | {p['rates'][0]:g}, {p['rates'][1]:g} |"
            f" {p['seconds']:.1f} |"
            for p in proofs
        ]
        parts.append("\n".join(lines))
        parts += [f"{p['says'][:1].upper()}{p['says'][1:]}." for p in row["changes"]]
    return "\n\n".join(map(_filled, parts))


def _said(row: Row) -> str:
    if not row["findings"]:
        return "nothing is reported"
    told = []
    for code in dict.fromkeys(one["code"] for one in row["findings"]):
        first, *others = [one for one in row["findings"] if one["code"] == code]
        proof = f"; {first['proof']['says']}" if first["proof"] else ""
        beside = f"; the same of {many(len(others), 'other role')}" if others else ""
        told.append(f"{first['severity']}, `{code}` at `{first['address']}`: {first['message']}{proof}{beside}")
    return "; ".join(told)


def _caption(row: Row) -> str:
    return "Change of the logits by position" if "reached" in row else "Loss by step, the median of the seeds"


def _code(thing: Any) -> str:
    return f"```python\n{textwrap.dedent(inspect.getsource(thing)).rstrip()}\n```"


def _more(name: str, row: Row) -> str:
    first = row["findings"][0]
    gains = f" {_gains(first['proof'])} nats, control {first['proof']['control']:.2f}" if first["proof"] else ""
    return f"- {name[:1].upper()}{name[1:]}: {first['severity']}, `{first['code']}`; gain{gains}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drawn", action="store_true", help="measure nothing, read OUT/measured.json")
    options = parser.parse_args()
    file = options.out / "measured.json"
    if not options.drawn:
        torch.set_num_threads(1)
        content = {
            "designs": {design.name: measured(design) for design in DESIGNS},
            "more": {name: checked(build) for name, build in MORE.items()},
            "versions": f"torch {version('torch')}, isograd {isograd.__version__}",
            "processor": processor(),
        }
        write_json(file, content)
    content = read_json(file)
    for design in DESIGNS:
        draw(design, content["designs"][design.name], options.out)
    write_text(options.out / "README.md", page(content))


if __name__ == "__main__":
    main()
