"""Rules about single matrices as they begin: zero, constant, off centre, damaged in part, shared."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.intent import says_shared
from isograd.lint.proof.trial import Edit, drawn
from isograd.lint.rules import RUN, Phase, rule
from isograd.trace.dataflow import LAYOUT, SCALING, bare, numbered
from isograd.trace.record import anything

MAY_BE_ZERO = ("query", "attn_out", "ffn_out")  # muP's queries; branches that begin at zero
SIDEWAYS = 0.5  # mean over standard deviation of a matrix that is not drawn around 0
UNREGISTERED = "model.parameters() does not have them, so they are neither trained nor saved nor moved to a device"
REGISTER = "nn.ModuleList(layers) instead of a list, nn.ModuleDict instead of a dict"
SHARE = 0.02  # of the rows of a table that may be zero or alike, as padding


@rule(
    Phase.VALUES, "weights-zero", hides=(Phase.INIT, Phase.WIRING, "embedding-untied", "weights-constant",
    "weights-partial", "positions-missing", "encoder-unused", "gradient-zero"),
)  # fmt: skip
def zero(checked: CheckedModel) -> Iterator[Finding]:
    """Whole matrices of zeros where no published init has them."""
    if not checked.at_init:
        return
    found: list[tuple[str, str]] = []
    excused = checked.adapters | checked.idle_writers
    for role, names in checked.by_role.items():
        empty = [
            n
            for n in names
            if not anything(checked.parameters[n])
            and n not in excused
            and not (_gates(checked, n) or _ends_a_branch(checked, n))
        ]
        allowed = all(part in MAY_BE_ZERO for part in role.split("+"))
        if empty and not (allowed and len(empty) == len(names)):
            found += [(n, f"{role} matrix") for n in empty]
    found += [(n, "table of token vectors") for n in _token_tables(checked) if not anything(checked.parameters[n])]
    if found:
        name, what = found[0]
        meant = not any(anything(checked.parameters[n]) for n in checked.parameters if numbered(n) == numbered(name))
        yield Finding(
            kind="suspicion" if meant else "fact",  # zeros in every layer may be a design
            address=name,
            measured=float(len(found)),
            message=f"this {what} is all zeros ({many(len(found), 'matrix', 'matrices')})",
            remedy="initialize it, as nn.init.normal_(weight, std=0.02) does; only last projections (W_O, W_2), gates"
            " and the head may begin at 0",
            edit=_redrawn(checked, [n for n, _ in found]),
        )


def _redrawn(checked: CheckedModel, names: list[str]) -> Edit:
    """Matrices drawn as nn.Linear draws them, tables as GPT-2 does."""
    sizes = {n: 0.02 if n in checked.tables else (3 * checked.parameters[n].shape[-1]) ** -0.5 for n in names}
    return Edit(says="drawn at random", parameters={n: drawn(std) for n, std in sizes.items()})


def _ends_a_branch(checked: CheckedModel, name: str) -> bool:
    """Whether what a matrix makes is gated and added, as that of a triangle update, and its likes all begin at 0."""
    dataflow = checked.dataflow
    if any(checked.parameters[n].any() for n in checked.parameters if numbered(n) == numbered(name)):
        return False
    for sublayer in checked.anatomy.sublayers:
        for product in (o for o in checked.trace.operations if name in sublayer.roles and dataflow.is_product(o)):
            if name in dataflow.weights(product):
                after = dataflow.between(product.makes[0], sublayer.branch)
                return bool(after) and all(bare(o) in SCALING | LAYOUT for o in after)
    return False


def _gates(checked: CheckedModel, name: str) -> bool:
    """Whether what a matrix makes goes straight into a softmax or a gate, or says where to sample: even weights pass a
    gradient.
    """
    trace, dataflow = checked.trace, checked.dataflow
    todo = [o.makes[0] for o in trace.operations if dataflow.is_product(o) and name in dataflow.weights(o)]
    ends: list[bool] = []
    for value in todo:
        for operation in trace.read_by(value):
            alone = len(dataflow.data(operation)) == 1
            if bare(operation) in SCALING | LAYOUT | {"stack", "cat"} and (alone or bare(operation) != "sub"):
                todo += [made for made in operation.makes if made not in todo]
            else:
                gate = bare(operation) in ("softmax", "_softmax", "sigmoid", "tanh")
                ends.append(gate or operation.name.startswith("grid_sampl"))
    return bool(ends) and all(ends)


@rule(
    Phase.VALUES, "weights-constant", "weights-mean", "weights-partial", hides={"weights-constant": (Phase.INIT,
    "weights-mean", "weights-partial", "gradient-zero"), "weights-mean": (Phase.INIT, "init-large", "init-small",
    "gradient-zero"), "weights-partial": ("init-std",)},
)  # fmt: skip
def undrawn(checked: CheckedModel) -> Iterator[Finding]:
    """Matrices that are not drawn at random around 0: constant, off centre, or in part zero or copies."""
    for code, (look, remedy) in LOOKS.items() if checked.at_init else ():
        found = [(n, what) for n in _matrices(checked) if (what := look(checked, n)) is not None]
        if found:
            name, what = found[0]
            yield Finding(
                code=code,
                address=name,
                measured=float(len(found)),
                message=f"{what} ({many(len(found), 'matrix', 'matrices')})",
                remedy=remedy,
                edit=_redrawn(checked, [n for n, _ in found]),
            )


def _is_constant(checked: CheckedModel, name: str) -> str | None:
    lines = _constant(checked.parameters[name]) if name in checked.applied or name in checked.tables else None
    return lines and f"{lines} of this matrix are equal: its units compute the same and get the same gradient"


def _constant(weight: Tensor) -> str | None:
    flat = weight.float().flatten(1)
    few = flat[:2]
    if min(flat.shape) < 4 or not anything(flat) or not (torch.equal(few[0], few[1]) or (few == few[:, :1]).all()):
        return None
    if torch.equal(flat, flat[:1].expand_as(flat)):
        return "all rows"
    return "all columns" if torch.equal(flat, flat[:, :1].expand_as(flat)) else None


def _sideways(checked: CheckedModel, name: str) -> str | None:
    """Of what a product applies: no table of sines, no logarithm of a rate."""
    flat = checked.parameters[name].float()
    ratio = (flat.mean().abs() / flat.std()).item() if name in checked.applied and flat.numel() >= 64 else 0.0
    if not SIDEWAYS < ratio < math.inf:
        return None
    return f"the mean of this matrix is {ratio:.2g} times its standard deviation; an init has mean 0"


def _damage(checked: CheckedModel, name: str) -> str | None:
    weight = checked.parameters[name].float()
    if weight.ndim != 2 or min(weight.shape) < 4 or not anything(weight) or _constant(weight):
        return None
    table = name in checked.tables or name == checked.head
    for axis_, lines in (("rows", weight), ("columns", weight.T)):
        spare = max(1, int(SHARE * len(lines))) if table and axis_ == "rows" else 0
        even = lines[(lines[:, :8] == lines[:, :1]).all(1)]  # that may hold one number each
        empty = int((even == 0).all(1).sum())
        if empty > spare:
            return f"{empty} of {len(lines)} {axis_} are zero"
        flat = int((even == even[:, :1]).all(1).sum()) - empty
        if flat > spare:
            return f"{flat} of {len(lines)} {axis_} hold one number each"
        if spare:  # rows that were added begin alike, as the mean of the others
            added = int((lines == lines[-1]).all(1).flip(0).int().cumprod(0).sum())
            lines = lines[: len(lines) - added + 1]
        copies = len(lines) - max(empty - 1, 0) - _distinct(lines)
        if copies > spare:
            return f"{copies} of {len(lines)} {axis_} are copies of others"
    return None


def _distinct(lines: Tensor) -> int:
    """How many different lines there are. Only those whose first entry stands in another line too are compared."""
    first = lines[:, 0] + 0.0  # -0 is 0
    _, alike, counts = torch.unique(first, return_inverse=True, return_counts=True)
    again = counts[alike] > 1
    return int((~again).sum()) + (len(torch.unique(lines[again], dim=0)) if again.any() else 0)


LOOKS: dict[str, tuple[Callable[[CheckedModel, str], str | None], str]] = {
    "weights-constant": (_is_constant, "draw it at random: nn.init.normal_(weight, std=0.02) or xavier_uniform_"),
    "weights-mean": (
        _sideways,
        "torch.randn instead of torch.rand; nn.init.uniform_(weight, -a, a), not uniform_(weight, 0, a)",
    ),
    "weights-partial": (_damage, "initialize the whole matrix; of a fused one, each part separately"),
}


@rule(Phase.REGISTERED, "layers-shared", hides=("init-std",))
def shared(checked: CheckedModel) -> Iterator[Finding]:
    """One module that stands several times in a list of layers."""
    for address, module in checked.model.named_modules():
        parts = [*module] if isinstance(module, nn.ModuleList | nn.Sequential) else []
        parts = [p for p in parts if isinstance(p, nn.Module) and any(w.ndim >= 2 for w in p.parameters())]
        different = len({id(part) for part in parts})
        if different < len(parts):
            yield Finding(
                severity="info" if says_shared(checked) else "error",
                address=address,
                measured=float(different),
                message=f"the {len(parts)} layers of {address or 'the model'} share {many(different, 'module')}: they"
                " are not separate, and train as one",
                remedy="build each layer: nn.ModuleList([Layer() for _ in range(n)]), not [Layer()] * n",
            )
            return


@rule(Phase.REGISTERED, "unregistered", hides=(*RUN, Phase.GRADIENTS), stops=("unregistered",))
def unregistered(checked: CheckedModel) -> Iterator[Finding]:
    """Modules in a Python list or dictionary: no optimizer sees their parameters, no checkpoint holds them."""
    for address, kind, lost in in_python(checked.model):
        if any(p.requires_grad for p in lost):
            yield Finding(
                address=address,
                measured=float(len(lost)),
                message=f"{many(len(lost), 'parameter')} in a Python {kind}: {UNREGISTERED}",
                remedy=REGISTER,
            )
            return


def in_python(model: nn.Module) -> Iterator[tuple[str, str, list[nn.Parameter]]]:
    """Attributes that are lists, tuples or dictionaries with parameters that the model does not have: address, type."""
    known = {id(p) for p in model.parameters()}
    for address, module in model.named_modules():
        for name, value in vars(module).items():
            kept = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ()
            if name.startswith("_"):
                continue
            lost = [p for part in kept if isinstance(part, nn.Module) for p in part.parameters() if id(p) not in known]
            lost += [p for p in kept if isinstance(p, nn.Parameter) and id(p) not in known]
            if lost:
                yield f"{address}.{name}".lstrip("."), type(value).__name__, lost


def _matrices(checked: CheckedModel) -> list[str]:
    """Of the layers, the token tables and the head, those that an output depends on."""
    names = [n for names in checked.by_role.values() for n in names]
    names += _token_tables(checked) + ([checked.head] if checked.head else [])
    return [n for n in dict.fromkeys(names) if n in checked.parameters]


def _token_tables(checked: CheckedModel) -> list[str]:
    return [n for n, by_ids in checked.tables.items() if by_ids and len(checked.parameters[n]) > 4]
