"""Text for what is measured and fitted: batches with labels, the loss on them, and a few steps of training."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from isograd.convert.sample import longest_of
from isograd.diagnose.watch import watch
from isograd.errors import GraftError
from isograd.trace.inputs import IGNORED

Batch = dict[str, Any]
_ROWS, _LONGEST, _HELD = 4, 128, 8  # sequences of a batch, tokens of a sequence, batches for fitting and for the loss
_MASKED = 0.15
_TOKENS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Text:
    """Batches of one text, in three parts without a sequence in common.

    Attributes:
        fit: what new parameters are fitted on.
        held: what losses are measured on.
        train: what is trained on afterwards.
    """

    fit: Sequence[Batch]
    held: Sequence[Batch]
    train: Sequence[Batch]


def text_of(model: PreTrainedModel, tokenizer: Any, documents: Iterable[str], seed: int = 0) -> Text:
    """A text as a model reads it, in order: the first batches are fitted on, the next measured on, the rest trained on.

    Raises:
        GraftError: no tokenizer, or too short a text.
    """
    if tokenizer is None:
        raise GraftError("no tokenizer in the model's folder to read a text with; what is measured needs one")
    length = min(_LONGEST, longest_of(model))
    ids: list[int] = []
    for document in documents:
        ids += tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) > _TOKENS:
            break
    rows = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)
    draw = torch.Generator().manual_seed(seed)
    rows = rows[torch.randperm(len(rows), generator=draw)]
    batches = [_batch(model, tokenizer, part, draw) for part in rows.split(_ROWS)]
    if len(batches) < 3:
        raise GraftError(f"the text has {len(ids)} tokens, too few for batches of {_ROWS} x {length}")
    most = min(_HELD, len(batches) // 3)
    return Text(fit=batches[:most], held=batches[most : 2 * most], train=batches[2 * most :])


@torch.inference_mode()
def loss_on(model: PreTrainedModel, batches: Sequence[Batch]) -> float:
    """The mean loss per token, in nats."""
    model.eval()
    return sum(float(model(**batch).loss) for batch in batches) / len(batches)


def healed(
    model: PreTrainedModel, text: Text, steps: int, rate: float, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Train in place: AdamW, a tenth of the steps warm-up, then down to 0; the warnings of the watch.

    Raises:
        GraftError: a loss that is not finite.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    watched = watch(model)
    warmup = max(1, steps // 10)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
        batch = text.train[step % len(text.train)]
        model.train()
        loss = model(**batch).loss
        if not torch.isfinite(loss):
            raise GraftError(f"healing: the loss is not finite at step {step + 1}; take a lower rate than {rate:g}")
        optimizer.zero_grad()
        loss.backward()
        watched.step(loss.detach(), batch)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % max(1, steps // 10) == 0:
            progress(f"healing: step {step + 1} of {steps}, loss {float(loss.detach()):.3f}")
    watched.read()
    model.eval()
    return [dict(row) for row in watched.warnings]


def _batch(model: PreTrainedModel, tokenizer: Any, ids: Tensor, draw: torch.Generator) -> Batch:
    """Of a masked model 15 % of the tokens replaced by <mask>, which are its labels."""
    if not type(model).__name__.endswith("ForMaskedLM"):
        return {"input_ids": ids, "labels": ids}
    if tokenizer.mask_token_id is None:
        raise GraftError("the tokenizer has no mask token")
    chosen = torch.rand(ids.shape, generator=draw) < _MASKED
    chosen[:, 0] = True
    return {
        "input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id),
        "labels": ids.masked_fill(~chosen, IGNORED),
    }
