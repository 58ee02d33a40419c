"""What a model is meant to do. What it computes cannot say so; its author does, by names, classes, masks and settings.

    isograd.check(model, intent="causal")
    isograd.check(model, intent=["bidirectional", "set"])

`INTENTS` has all that is asked. Where nothing speaks for an intent, a finding that depends on it is an info that asks.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isograd.errors import hint

if TYPE_CHECKING:
    from isograd.lint.checked_model import CheckedModel

INTENTS: dict[str, tuple[str, str]] = {  # name -> (what speaks against it, what it says)
    "causal": ("bidirectional", "no position may see a later one"),
    "bidirectional": ("causal", "positions may see all others"),
    "batch-first": ("time-first", "inputs are (batch, time, ...)"),
    "time-first": ("batch-first", "inputs are (time, batch, ...)"),
    "ordered": ("set", "the order of positions counts"),
    "set": ("ordered", "the order of positions does not count"),
    "shared": ("own-layers", "layers share parameters on purpose"),
    "own-layers": ("shared", "every layer has parameters of its own"),
    "logits": ("probabilities", "the output goes into a cross-entropy"),
    "probabilities": ("logits", "the output is taken as probabilities"),
}


@dataclass(frozen=True)
class Intents:
    """Those that the user has named."""

    named: frozenset[str] = frozenset()

    @classmethod
    def given(cls, intent: Iterable[str] | str) -> "Intents":
        """
        Raises:
            ValueError: an unknown intent, or two that exclude each other.
        """
        named = frozenset([intent] if isinstance(intent, str) and intent else intent)
        for name in named:
            if name not in INTENTS:
                raise ValueError(f"unknown intent {name!r}: {hint(name, sorted(INTENTS))}")
            if INTENTS[name][0] in named:
                raise ValueError(f"intent {name!r} and {INTENTS[name][0]!r} exclude each other")
        return cls(named)

    def says(self, name: str) -> bool | None:
        """True where it was named, False where its opposite was, None where neither."""
        return True if name in self.named else False if INTENTS[name][0] in self.named else None


BOTH_WAYS = ("xlnet", "xlm", "flaubert")  # language models that are not causal by design
CAUSAL = re.compile(
    r"causal|autoregressive|auto-regressive|next[- ]token|gpt|decoder.?only|decoder.?lm|llama"
    r"|mistral|qwen|gemma|falcon",
    re.IGNORECASE,
)
MASKED = re.compile(r"masked.?lm|mlm|bert|bidirectional|diffusion", re.IGNORECASE)
HUGGING_FACE = ("CausalLM", "LMHeadModel", "Seq2SeqLM", "ForConditionalGeneration")


def declares_causal(checked: "CheckedModel", stack: str | None = None) -> str | None:
    """What says that a model over tokens, or one of its stacks, is causal, in words; None where nothing does."""
    if checked.intents.says("causal"):
        return "it is meant to be causal"
    if not checked.takes_ids or checked.logits is None or declares_both(checked):
        return None
    stacks = {s.name: s for s in checked.anatomy.stacks}
    crossed = [s for s in stacks.values() if s.cross]
    if crossed and stack is not None:
        lengths = {checked.trace[v].shape[-1] for v in checked.trace.inputs.values() if checked.trace[v].ndim == 2}
        as_long = checked.trace[stacks[stack].first].shape[1] in lengths  # no latent vectors
        each = as_long and checked.trace[checked.logits].ndim > 2  # one answer to a question is no text
        return f"the {stack} writes what it is to predict" if stacks[stack] in crossed and each else None
    if checked.config is None and checked.trace[checked.logits].shape[-1] not in checked.vocabularies:
        return None  # it does not write tokens, whatever its parts are called
    writing = [s.name for s in stacks.values() if s.sublayers[-1].total in checked.reaching]
    if stack is not None and writing[-1:] != [stack]:
        return None
    return next(_signs(checked), None)


def declares_both(checked: "CheckedModel") -> bool:
    """Whether the user, its name or its configuration says that a model reads both ways."""
    if checked.intents.says("causal") is False:
        return True
    name = type(checked.model).__name__
    config = checked.config
    if config is not None and (getattr(config, "model_type", "") in BOTH_WAYS or "MaskedLM" in name):
        return True
    return bool(MASKED.search(name))


FIRST = re.compile(  # b, t, d = x.shape
    r"^\s*(?P<first>[A-Za-z_]\w*)\s*,\s*(?P<second>[A-Za-z_]\w*)\b[^=\n]*=\s*\w+\.(shape|size\(\))", re.M
)
SAID = re.compile(  # in a docstring or a comment: x: (batch, time, features)
    r"[(\[]\s*(?P<first>[A-Za-z_]\w*)\s*,\s*(?P<second>[A-Za-z_]\w*)\s*[,)\]]"
)
TURNED = re.compile(r"permute\(\s*1\s*,\s*0|transpose\(\s*0\s*,\s*1\s*\)|transpose\(\s*1\s*,\s*0\s*\)")
BATCH_NAMES = re.compile(r"^(b|bs|bsz|n|batch\w*|n_?batch|B|N|num_?seqs?)$")
TIME_NAMES = re.compile(r"^(t|l|s|seq\w*|time\w*|T|L|S|steps?|length|src_len|tgt_len|n_?steps)$")


def says_time_first(model: torch.nn.Module) -> bool | None:
    """Whether the code of its modules calls the axes (time, batch), or (batch, time); None where it calls them neither
    or both.
    """
    try:
        own = inspect.getsource(type(model))
    except (OSError, TypeError):
        own = ""
    if TURNED.search(own):  # it takes (batch, time) and turns them for what is inside
        return None
    votes = set()
    homes = {type(m).__module__ for m in model.modules()}
    for home in homes - {name for name in homes if name.startswith(("torch.", "transformers."))}:
        try:
            text = inspect.getsource(sys.modules[home])
        except (KeyError, OSError, TypeError):
            continue
        said = [line.partition("#")[2] or line for line in text.splitlines() if "#" in line or "=" not in line]
        axes = [(found["first"], found["second"]) for line in said for found in SAID.finditer(line)]
        votes |= {False for first, _ in axes if BATCH_NAMES.match(first)}
        votes |= {True for first, second in axes if TIME_NAMES.match(first) and BATCH_NAMES.match(second)}
        for found in FIRST.finditer(text):
            first, second = found["first"], found["second"]
            if BATCH_NAMES.match(first) and TIME_NAMES.match(second):
                votes.add(False)
            elif TIME_NAMES.match(first) and BATCH_NAMES.match(second):
                votes.add(True)
    return votes.pop() if len(votes) == 1 else None


SHARED = re.compile(r"shar(e|ed|es|ing)(?![a-z])|universal|albert|recurren|(?<![a-z])loops?(?![a-z])", re.I)


def says_shared(checked: "CheckedModel") -> bool:
    """Whether the user, a name, a setting or the text of a class says that layers share parameters on purpose."""
    if (said := checked.intents.says("shared")) is not None:
        return said
    own = {type(m) for m in checked.model.modules() if not type(m).__module__.startswith("torch.")}
    names = [name for kind in own for name in (kind.__name__, kind.__doc__ or "")]
    names += [name for m in checked.model.modules() for name in vars(m) if not name.startswith("_")]
    return any(SHARED.search(name) for name in names)


TIED = re.compile(  # whole names, since much else is tied or shared: encoders with decoders, queries with keys, layers
    r"weight_tying|tie_weights|tie_word_embeddings|tied?_(lm_)?head|share_(decoder_)?input_output_embed\w*", re.I
)


def says_tied(checked: "CheckedModel") -> str | None:
    """The setting that says that the head is tied to the table of tokens, as its author calls it."""
    if getattr(checked.config, "tie_word_embeddings", False) is True:
        return "tie_word_embeddings"
    if checked.config is not None:
        return None
    settings = [dict(vars(m)) for m in checked.model.modules()]
    parts = [part for own in settings for name, part in own.items() if not name.startswith("_")]
    settings += [vars(part) for part in parts if is_dataclass(part) or isinstance(part, SimpleNamespace)]
    return next((name for own in settings for name, said in own.items() if said is True and TIED.fullmatch(name)), None)


def _signs(checked: "CheckedModel") -> Iterator[str]:
    model, config = checked.model, checked.config
    name = type(model).__name__
    if config is not None:
        if name.endswith(HUGGING_FACE) or getattr(config, "is_decoder", False):
            yield f"{name} is causal"
        return
    if callable(getattr(model, "generate", None)):
        yield f"{name} generates"
    for address, module in model.named_modules():
        if CAUSAL.search(type(module).__name__) and not MASKED.search(type(module).__name__):
            yield f"a module is called {type(module).__name__}"
        if getattr(module, "causal", None) is True or getattr(module, "is_causal", None) is True:
            yield f"{address or name} has causal=True"
    for address, buffer in model.named_buffers():
        if is_lower_triangle(buffer):
            yield f"{address} is a causal mask"
    made = (o.makes[0] for o in checked.trace.operations if o.makes and o.makes[0] not in checked.dataflow.live)
    if any(is_lower_triangle(checked.trace[value]) for value in made):
        yield "it makes a causal mask"
    if CAUSAL.search(type(model).__doc__ or ""):
        yield f"the docstring of {name} says so"


def is_lower_triangle(buffer: Tensor) -> bool:
    """Whether a buffer says of each place that it sees those before it: of ones, of True, or of 0 and -inf."""
    if buffer.ndim < 2 or buffer.shape[-1] != buffer.shape[-2] or buffer.shape[-1] < 2:
        return False
    square = buffer.reshape(-1, *buffer.shape[-2:])[0]
    if square.dtype == torch.bool or not square.is_floating_point():
        square = square.float()
    below, above = square.tril(-1), square.triu(1)
    ones = torch.ones_like(square)
    of_ones = torch.equal(below, ones.tril(-1)) and not above.any()
    hides = torch.equal(above, ones.triu(1)) and not below.any()  # True where hidden
    adds = bool((above[ones.triu(1).bool()] < 0).all()) and not below.any()
    return of_ones or hides or adds
