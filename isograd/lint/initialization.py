"""Rules about how parameters begin. They are silent about a trained model, whose gains have moved."""

import math
from collections.abc import Iterator

import torch

from isograd.lint.checked_model import Subject
from isograd.lint.findings import Finding
from isograd.trace.dataflow import NORMS, bare
from isograd.trace.record import record
from isograd.trace.structure import FoundSublayer

LOUD = 3.0  # standard deviation of logits at which the softmax has chosen before it has learnt
OFF = 1.5  # times ln V


def identical(subject: Subject) -> Iterator[Finding]:
    """Layers that begin as copies of one another."""
    for tower in subject.anatomy.towers:
        groups: dict[tuple[str, ...], list[FoundSublayer]] = {}
        for sublayer in tower.sublayers:
            if sublayer.last is not None:
                weight = subject.parameters[sublayer.last]
                key = (sublayer.kind, str(tuple(weight.shape)), *map(repr, weight.flatten()[:64].tolist()))
                groups.setdefault(key, []).append(sublayer)
        copies = [group for group in groups.values() if _copied(subject, group)]
        if copies:
            many = max(copies, key=len)
            yield Finding(
                code="layers-identical",
                severity="warning",
                address=many[1].address,
                measured=float(len(many)),
                message=f"{len(many)} layers of the {tower.name} begin with the same weights, as copies of one do",
                remedy="draw each layer's weights anew (copy.deepcopy and torch's TransformerEncoder copy them)",
            )


def embedding(subject: Subject) -> Iterator[Finding]:
    """A head that is not tied though the configuration says so; a tied table as large as an untied one may be."""
    said = getattr(subject.config, "tie_word_embeddings", False) is True
    if (head := subject.head) is not None and head not in subject.tables:
        own = subject.parameters[head]
        alike = [t for n in subject.token_tables if (t := subject.parameters[n]).shape == own.shape]
        copied = any(torch.equal(own, table) for table in alike)
        if (said and alike) or copied:
            yield Finding(
                code="embedding-untied",
                severity="error",
                address=head,
                measured=min((own - table).abs().max().item() for table in alike),
                message="the head begins as a copy of the token table, and they are two tensors"
                if copied
                else "the configuration ties the head to the token table, but they are two tensors",
                remedy="call model.tie_weights() after replacing either, or set tie_word_embeddings=False",
            )
    tied = subject.head is not None and subject.head in subject.tables
    if tied and subject.at_start and (loud := _loudness(subject)) is not None and loud > LOUD:
        assert subject.head is not None
        yield Finding(
            code="embedding-std",
            severity="error",
            address=subject.head,
            measured=subject.std(subject.head),
            message=f"the tied token table starts with a standard deviation of {subject.std(subject.head):.3g}, and the"
            f" logits with {loud:.3g}: the first loss is {_first_loss(subject):.3g} nats",
            remedy="draw a tied table with N(0, 1/d), or 0.02, and scale it on the way in (nn.Embedding draws N(0, 1))",
        )


def first_loss(subject: Subject) -> Iterator[Finding]:
    """A first loss far from that of guessing, ln V."""
    if subject.logits is None or not subject.at_start or "embedding-std" in subject.said:
        return
    classes = subject.trace[subject.logits].shape[-1]
    loss = _first_loss(subject)
    if classes > 1 and loss > OFF * math.log(classes):
        yield Finding(
            code="initial-loss",
            severity="warning",
            address=subject.head or "logits",
            measured=loss,
            message=f"the first loss is {loss:.3g} nats, where guessing among {classes} has ln {classes} ="
            f" {math.log(classes):.3g}",
            remedy="start the head smaller, or norm what it reads",
        )


def norms(subject: Subject) -> Iterator[Finding]:
    """A norm's eps that is no small number, or that the norm's own precision rounds to nothing."""
    for norm in subject.flow.norms.values():
        gain = subject.parameters.get(norm.gain or "")
        half = gain is not None and gain.dtype == torch.float16
        if norm.eps is None or (norm.eps <= 1e-3 and not (half and norm.eps < 2**-25)):
            continue
        what = "float16 rounds it to 0" if half and norm.eps < 2**-25 else "it flattens what has a small variance"
        yield Finding(
            code="norm-eps",
            severity="warning",
            address=norm.address,
            measured=norm.eps,
            message=f"eps is {norm.eps:g}: {what}",
            remedy="use 1e-5 or 1e-6, and compute the norm in float32",
        )
        return


def precision(subject: Subject) -> Iterator[Finding]:
    """Hand-written norms that take their mean square in half precision; torch's own kernels do not."""
    half = (torch.float16, torch.bfloat16)
    if not any(p.dtype in half for p in subject.parameters.values()):
        return
    written = {n.address for n in subject.flow.norms.values() if bare(subject.maker(n.result)) not in NORMS}
    trace = record(subject.model, subject.inputs, in_half=True)
    for operation in trace.operations:
        means = bare(operation) in ("mean", "var", "rsqrt", "linalg_vector_norm")
        if means and operation.module in written and trace[operation.makes[0]].dtype in half:
            bits = torch.finfo(trace[operation.makes[0]].dtype).bits
            yield Finding(
                code="norm-dtype",
                severity="warning",
                address=operation.module,
                measured=float(bits),
                message=f"this norm takes its {operation.name} in {bits} bits"
                f" ({str(trace[operation.makes[0]].dtype).removeprefix('torch.')})",
                remedy="cast to float32 before the mean square and back behind it, as Llama's RMSNorm does, or call"
                " torch.nn.functional.rms_norm",
            )
            return


def _copied(subject: Subject, group: list[FoundSublayer]) -> bool:
    names = {s.last for s in group if s.last}
    weights = [subject.parameters[name] for name in names]
    first = weights[0]
    return (
        len(weights) > 1 and first.numel() > 1 and bool(first.std() > 0) and all(torch.equal(first, w) for w in weights)
    )


def _loudness(subject: Subject) -> float | None:
    if subject.logits is None:
        return None
    return subject.trace[subject.logits].double().std(dim=-1).mean().item()


def _first_loss(subject: Subject) -> float:
    """Cross-entropy of the logits against labels drawn evenly: logsumexp - mean."""
    assert subject.logits is not None
    logits = subject.trace[subject.logits].double()
    return (logits.logsumexp(-1) - logits.mean(-1)).mean().item()
