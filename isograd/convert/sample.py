"""What two models read when they are compared: batches with padding on the right, and prompts to write on from.

Ids are random and never special, from a generator of their own, or those of a text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isograd.convert.checkpoints.vocabulary import sides
from isograd.errors import InteropError

Batch = Mapping[str, Tensor]
Rows = list[list[int]]

_LONGEST = 48
_PROMPT = 8  # tokens of a prompt, where the positions allow so many
_SHORTER = (1.0, 0.8, 0.6, 0.4)  # lengths of the sequences of a batch, of the longest


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Inputs of both models.

    Attributes:
        kind: "random ids", "text", or a name of yours; it stands in the report.
        batches: what `forward` takes; the masks say which places are no padding.
        prompts: what `generate` takes, without padding for a causal model; empty where nothing is written.
        new_tokens: how many are written at most.
    """

    kind: str
    batches: Sequence[Batch]
    prompts: Sequence[Batch] = ()
    new_tokens: int = 24

    def first(self) -> "Sample":
        """One batch and one prompt of it, for a model that takes long."""
        return replace(self, batches=self.batches[:1], prompts=self.prompts[:1], new_tokens=min(self.new_tokens, 8))

    def counts(self) -> dict[str, int]:
        """Sequences, tokens that count, places of padding, prompts."""
        masks = [mask for batch in self.batches for name, mask in batch.items() if name.endswith("attention_mask")]
        tokens = sum(int(mask.sum()) for mask in masks)
        return {
            "sequences": sum(len(next(iter(batch.values()))) for batch in self.batches),
            "tokens": tokens,
            "padding": sum(mask.numel() for mask in masks) - tokens,
            "prompts": sum(len(next(iter(batch.values()))) for batch in self.prompts),
        }


def sample_of(model: nn.Module, tokenizer: Any, lines: Sequence[str] | None) -> Sample:
    """Of a text where there is one, read with the model's own tokenizer, else random ids.

    Raises:
        InteropError: no tokenizer to read the text with, or no line that has a token.
    """
    if lines is None:
        return random_sample(model)
    if tokenizer is None:
        raise InteropError("no tokenizer in the model's folder to read the text with")
    return text_sample(model, tokenizer, lines)


def random_sample(model: nn.Module, *, batches: int = 2, longest: int = _LONGEST, seed: int = 0) -> Sample:
    """Ids drawn from the vocabularies of a model's configuration, without the special ones."""
    config: Any = model.config
    draw = torch.Generator().manual_seed(seed)
    source, target = (_words(config, side) for side in ("source", "target"))
    length, target_length = _lengths(model, longest)

    def rows(words: Tensor, time: int) -> list[list[int]]:
        return [words[torch.randint(len(words), (_at_least_one(time * s),), generator=draw)].tolist() for s in _SHORTER]

    pairs = [(rows(source, length), rows(target, target_length)) for _ in range(batches)]
    return _sample("random ids", model, pairs, draw)


def text_sample(
    model: nn.Module, tokenizer: Any, lines: Sequence[str], *, batches: int = 4, longest: int = _LONGEST
) -> Sample:
    """The first lines of a text that are not empty, cut to `longest`; a decoder beside an encoder reads them too.

    Args:
        tokenizer: a `PairTokenizer` or one of transformers.

    Raises:
        InteropError: no line has a token.
    """
    length, target_length = _lengths(model, longest)
    wanted = [line for line in lines if line.strip()][: batches * len(_SHORTER)]
    read = [[_ids(side, line) for line in wanted] for side in sides(tokenizer)]
    rows = [(a[:length], b[:target_length]) for a, b in zip(*read, strict=True) if a and b]
    if not rows:
        raise InteropError("the text has no line with a token of the model's vocabulary")
    parts = [rows[i : i + len(_SHORTER)] for i in range(0, len(rows), len(_SHORTER))]
    return _sample("text", model, [tuple(map(list, zip(*part, strict=True))) for part in parts], torch.Generator())


def _sample(kind: str, model: nn.Module, pairs: Sequence[Sequence[Rows]], draw: torch.Generator) -> Sample:
    """Batches of (rows of the source, rows of the target); a model of one stack reads the source."""
    config: Any = model.config
    pad = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
    begin = config.decoder_start_token_id if config.is_encoder_decoder else None
    types = int(getattr(config, "type_vocab_size", 0) or 0)
    batches, prompts = [], []
    for source, target in pairs:
        batch = _padded(source, pad)
        if config.is_encoder_decoder:
            prompts.append(dict(batch))
            target_batch = _padded([[pad if begin is None else begin, *row[:-1]] for row in target], pad)
            batch |= {f"decoder_{name}": value for name, value in target_batch.items()}
        else:
            time = min(_PROMPT, (_positions(model, config) + 1) // 2, *map(len, source))
            prompts.append(_padded([row[:time] for row in source], pad))
            if types > 1:
                batch["token_type_ids"] = torch.randint(types, batch["input_ids"].shape, generator=draw)
        batches.append(batch)
    writes = _generates(model) and not (config.is_encoder_decoder and begin is None)
    return Sample(kind=kind, batches=batches, prompts=prompts if writes else (), new_tokens=_new_tokens(model, prompts))


def _padded(rows: list[list[int]], pad: int) -> dict[str, Tensor]:
    width = max(len(row) for row in rows)
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def _ids(tokenizer: Any, line: str) -> list[int]:
    if hasattr(tokenizer, "encode_each"):  # Subwords
        return list(tokenizer.encode([line])[0])
    return list(tokenizer(line, add_special_tokens=False)["input_ids"])


def _words(config: Any, side: str) -> Tensor:
    """The ids of one side without those that the configuration gives a part of their own."""
    own = getattr(config, "encoder_vocab_size", None) if side == "source" else None
    rows = own or config.vocab_size
    special = {v for n, v in config.to_dict().items() if n.endswith("_token_id") and isinstance(v, int)}
    return torch.tensor([i for i in range(rows) if i not in special] or [0])


def _lengths(model: nn.Module, longest: int) -> tuple[int, int]:
    """Tokens of a source, and of a target, which is shorter: a mix-up of the two is an error, not a number."""
    config: Any = model.config
    own = config.of("encoder") if hasattr(config, "of") and config.is_encoder_decoder else config
    first, second = (min(longest, _positions(model, c)) for c in (own, config))
    return first, min(second, max(1, first - 2))


def _new_tokens(model: nn.Module, prompts: Sequence[Batch]) -> int:
    config: Any = model.config
    read = 1 if config.is_encoder_decoder else max(prompt["input_ids"].shape[1] for prompt in prompts)
    return max(1, min(24, _positions(model, config) - read))


def longest_of(model: Any) -> int:
    """Tokens that a model of one stack has positions for."""
    return _positions(model, model.config)


def _positions(model: nn.Module, config: Any) -> int:
    """Tokens that have a position; RoBERTa's table counts from the row after its padding."""
    rows = int(getattr(config, "max_position_embeddings", None) or _LONGEST)
    pads = [
        table.padding_idx
        for name, table in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding)
    ]
    return rows - max((pad + 1 for pad in pads if pad is not None), default=0)


def _generates(model: Any) -> bool:
    return bool(getattr(model, "can_generate", lambda: False)())


def _at_least_one(time: float) -> int:
    return max(1, int(time))
