"""A folder, or a name on the hub -> shape, tokenizer and weights of a model that is to be trained further.

It is one of isograd's own, or one of transformers' that `isograd import` takes, read without being written.
"""

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from isograd.convert.checkpoints.subwords import PairTokenizer, Subwords
from isograd.convert.checkpoints.tokenizers import SPECIAL, reads_text
from isograd.convert.checkpoints.vocabulary import load_tokenizer
from isograd.convert.pretrained import read_pretrained
from isograd.errors import DataError, RecipeError, UnknownPlacement, first_line
from isograd.files import read_json
from isograd.hub import from_pretrained, model_folder, model_place, snapshot
from isograd.lab.data.corpus import Reader
from isograd.lab.evaluate.loading import own_config, weights_in
from isograd.lab.train.optim import OPTIMIZER
from isograd.lab.train.run import Model, Run
from isograd.lab.train.tasks import TASKS
from isograd.models import IsogradConfig, IsogradModel, IsogradPreTrainedModel
from isograd.models.config import TERMS
from isograd.text import file_sha256

_HEADS = ("head.", "lm_head.", "next_sentence.", "dense.", "classifier.")  # of our models; none is a stack's
_SHAPE = ("config.json", "tokenizer.json")


@dataclass(frozen=True, kw_only=True)
class PreTrained:
    """A model in a folder or on the hub.

    Attributes:
        folder: of a model of isograd's; None for one of transformers'.
    """

    name: str
    folder: Path | None
    config: IsogradConfig

    @property
    def pad(self) -> int:
        """The id of the token that fills a batch; `begin` and `end` are those around a sequence."""
        return self._id("pad")

    @property
    def begin(self) -> int:
        return self._id("bos")

    @property
    def end(self) -> int:
        return self._id("eos")

    def _id(self, role: str) -> int:
        found: int | None = getattr(self.config, f"{role}_token_id")
        if found is None:
            raise DataError(f"{self.name}: no {role}_token_id in its config.json, which every sequence needs")
        return found

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Of a model of one stack.

        Raises:
            DataError: there is none, none that the `tokenizers` library runs, or another model's.
        """
        found = _tokenizer(self.name, self.folder)
        if len(found) > self.config.vocab_size:
            raise DataError(
                f"{self.name}: its tokenizer has {len(found)} tokens, and the model's table {self.config.vocab_size}"
                " rows; they are of two different runs"
            )
        return found

    @cached_property
    def translator(self) -> PairTokenizer:
        """Of an encoder-decoder: the vocabularies of both sides.

        Raises:
            DataError: there are none, or none that end a sentence as isograd's do.
        """
        found = load_tokenizer(self.folder or self.name)
        if isinstance(found, PairTokenizer):
            return found
        known = None if found is None else getattr(found, "backend_tokenizer", None)
        if known is None or any(known.token_to_id(token) is None for token in SPECIAL.values()):
            wanted = ", ".join(SPECIAL.values())
            raise DataError(f"{self.name}: its tokenizer is not one with {wanted}, which a translation is trained with")
        both = Subwords(_plain(known), known.get_vocab_size())
        return PairTokenizer(both, both)

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer as it encodes plain text."""
        return _plain(self.tokenizer.backend_tokenizer)

    @property
    def corpus_reader(self) -> Reader:
        """How it reads a text. A tokenizer of ours splits special tokens in a text, and has been trained by lines."""
        by_line = bool(getattr(self.tokenizer, "split_special_tokens", False))
        return Reader(tokenizer=self.reader, end=self.end, by_line=by_line)

    def masked_ids(self) -> tuple[dict[str, int], np.ndarray]:
        """Ids of <mask>, <s>, </s> and <pad>; and all that are none of these nor special otherwise.

        Raises:
            DataError: one is missing.
        """
        tokenizer = self.tokenizer
        if tokenizer.mask_token_id is None:
            raise DataError(f"{self.name}: its tokenizer has no mask token, which task=masked needs")
        special = {"mask": tokenizer.mask_token_id, "begin": self.begin, "end": self.end, "pad": self.pad}
        return special, np.setdiff1d(np.arange(len(tokenizer)), [*tokenizer.all_special_ids, *special.values()])

    def save_tokenizer(self, folder: Path) -> None:
        """As it is in the model's folder."""
        _tokenizer(self.name, self.folder).save_pretrained(folder)

    @cached_property
    def shape_sha256(self) -> str:
        """Of all but the weights."""
        if self.folder is None:
            return hashlib.sha256(json.dumps([self.config.to_diff_dict(), self.reader.to_str()]).encode()).hexdigest()
        return _together([self.folder / name for name in _SHAPE])

    @cached_property
    def sha256(self) -> str:
        """Of the weights too."""
        if self.folder is None:
            return _foreign(self.name, _stamp(self.name))[1]
        files = [self.folder / name for name in _SHAPE if (self.folder / name).is_file()]
        return _together([*files, *sorted(self.folder.glob("*.safetensors"))])

    @cached_property
    def stack(self) -> IsogradModel:
        """The pre-trained weights of the one stack without their head, in fp32, on the CPU.

        Raises:
            DataError: weights are missing or not finite, or there are others than those of a stack and its head.
        """
        found = self.loaded(IsogradModel)
        assert isinstance(found, IsogradModel)
        return found

    def loaded(self, cls: type[IsogradPreTrainedModel]) -> IsogradPreTrainedModel:
        """The weights in a model of this class, in fp32, on the CPU.

        Raises:
            DataError: as in `stack`; a model with another head.
        """
        found = self._own(cls) if self.folder else read_pretrained(self.name)[0].float()
        if cls is IsogradModel and not isinstance(found, cls):
            found = found.model
        if not isinstance(found, cls):
            raise DataError(f"{self.name}: is of {type(found).__name__}, and this task trains {cls.__name__}")
        bad = [name for name, weight in found.named_parameters() if not weight.isfinite().all()]
        if bad:
            raise DataError(f"{self.name}: weights are not finite, such as {bad[0]}; has its run diverged?")
        return found

    def _own(self, cls: type[IsogradPreTrainedModel]) -> IsogradPreTrainedModel:
        assert self.folder is not None
        found: IsogradPreTrainedModel
        found, others = weights_in(cls, self.folder, self.name, torch.float32, "the weights")
        heads = _HEADS if cls is IsogradModel else ()
        if strange := [key for key in others if not key.startswith(heads)]:
            raise DataError(f"{self.name}: holds weights that this shape has not, such as {strange[0]}")
        return found

    def moments(self, optimizer: str) -> dict[str, Any]:
        """What `training.keep_optimizer` left beside the model: the optimizer's state by the parameters' names.

        Raises:
            RecipeError: there is none, or another optimizer's.
        """
        path = None if self.folder is None else self.folder / OPTIMIZER
        if path is None or not path.is_file():
            raise RecipeError(
                f"model.optimizer_state=stored: no {OPTIMIZER} beside {self.name}; a run leaves it with"
                " training.keep_optimizer=true"
            )
        try:
            found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            kind, state = found["optimizer"], found["state"]
        except Exception as error:  # whatever a broken file leads torch to
            raise RecipeError(f"{path}: the optimizer's state cannot be read ({first_line(error)})") from error
        if kind != optimizer:
            raise RecipeError(f"{path} is the state of {kind}; set training.optimizer={kind}")
        return dict(state)

    def pair_tokenizer(self, length: int) -> PreTrainedTokenizerFast:
        """The tokenizer, which of itself makes <s> A </s> or <s> A </s> B </s>, as a fine-tuned model reads it."""
        types = ["token_type_ids"] if self.config.type_vocab_size else []
        inputs = {"model_input_names": ["input_ids", *types, "attention_mask"], "model_max_length": length}
        tokenizer = _tokenizer(self.name, self.folder, **inputs)
        begin, end = (tokenizer.convert_ids_to_tokens(i) for i in (self.begin, self.end))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} $B:1 {end}:1",
            special_tokens=[(begin, self.begin), (end, self.end)],
        )
        return tokenizer


def find_pretrained(name: str) -> PreTrained:
    """Shape and tokenizer, without the weights.

    Args:
        name: the folder of a run or of a model, or a model's name on the Hugging Face hub.

    Raises:
        DataError, ModelError, InteropError: no model there, or none that has a counterpart here.
    """
    folder = model_place(name)
    if not is_own(name, folder):
        return PreTrained(name=name, folder=None, config=_foreign(name, _stamp(name))[0])
    folder = folder or model_folder(name)
    try:
        own_config(folder / "config.json")
        config: IsogradConfig = from_pretrained(IsogradConfig, folder)
    except (OSError, ValueError, TypeError, KeyError, UnknownPlacement) as error:
        raise DataError(f"{name}: its config.json cannot be read ({first_line(error)})") from error
    return PreTrained(name=name, folder=folder, config=config)


# keys that a recipe may set as it likes, with the model's value where it does not
FREE = (
    "model.dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.embedding_dropout",
    "data.length",
    "pairs.longest",
    "pairs.source",
    "pairs.target",
    "pairs.tokenized",
)
_OF_PAIRS = ("encoder_layers", "share_embeddings")


def keys_of(model: PreTrained, task: str, known: Sequence[str]) -> dict[str, Any]:
    """What a recipe of this task would say of the model: dotted key -> value, of its shape and its vocabulary.

    Raises:
        RecipeError: a model of another task.
    """
    _must_be_of(model, task)
    longest = model.config.max_position_embeddings
    words = {"model": _shape_keys(model.config)}
    if "data.level" in known:
        words["data"] = {"level": "model", "vocab_size": model.config.vocab_size, "length": min(32, longest)}
    if "pairs.vocabulary" in known:
        words["pairs"] = _pair_keys(model) | {"longest": min(250, max(1, longest - 53))}
    return {
        key: words[section][name]
        for key in known
        for section, _, name in [key.partition(".")]
        if name in words.get(section, {})
    }


def _must_be_of(model: PreTrained, task: str) -> None:
    kinds = {TASKS[name].stacks: name for name in ("language", "masked", "translation")}
    stacks = model.config.stacks()
    if stacks != TASKS[task].stacks:
        words: dict[tuple[str, ...], str] = {("decoder",): "reads from left to right", ("encoder",): "reads both ways"}
        kind = words.get(stacks, "is an encoder-decoder")
        raise RecipeError(f"model.from={model.name} {kind}, and this is task={task}; set task={kinds[stacks]}")


def _shape_keys(config: IsogradConfig) -> dict[str, Any]:
    scale = config.scale_embedding
    said = {name: getattr(config, TERMS.get(name, name), None) for name in (*Model.__dataclass_fields__, *_OF_PAIRS)}
    rotary = config.position_embedding_type == "rotary"
    return {name: value for name, value in said.items() if name not in ("from_", "optimizer_state")} | {
        "kv_heads": config.key_value_heads,
        "head_dim": config.head_size,
        "rope": said["rope"] if rotary else None,
        "scale_embedding": scale is True or (scale is not False and scale != 1.0),
        "encoder_placement": (config.encoder_options or {}).get("placement"),
        "init": config.scheme(),
    }


def _pair_keys(model: PreTrained) -> dict[str, Any]:
    both = model.translator
    source, target = both.languages
    facts = {"vocabulary": "model", "vocab_size": model.config.vocab_size, "joint": both.joint}
    return facts | {"source": source, "target": target, "tokenized": both.tokenized}


def continued(run: Run, longest: int, *, next_sentence: bool = False) -> IsogradConfig:
    """The configuration of the model that a run trains further, with the recipe's dropout.

    Args:
        longest: tokens of a sequence.
        next_sentence: whether the data are pairs of segments.

    Raises:
        RecipeError: sequences that it has no positions for, or no second head.
    """
    assert run.pretrained is not None
    config = copy.deepcopy(find_pretrained(run.pretrained).config)
    most = config.max_position_embeddings
    if longest > most:
        raise RecipeError(
            f"{run.length_key}={run.places} makes sequences of {longest} tokens, and model.from={run.pretrained} has"
            f" {most} positions; set {run.length_key}={max(1, run.places - longest + most)}"
        )
    if next_sentence and not (config.next_sentence and config.type_vocab_size):
        raise RecipeError(
            f"data.packing=segment-pair trains a second head, which model.from={run.pretrained} does not have;"
            " set data.packing=full-sentences"
        )
    for key in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout"):
        setattr(config, TERMS.get(key, key), getattr(run.model, key))
    return config


def find_one_stack(name: str) -> PreTrained:
    """`find_pretrained` of a model that reads one text, all that its sequences need found.

    Raises:
        DataError: as there; an encoder-decoder; no tokenizer.
    """
    found = find_pretrained(name)
    if found.config.is_encoder_decoder:
        raise DataError(f"{name}: is an encoder-decoder; fine-tuning takes a model of one stack, masked or causal")
    _ = found.pad, found.begin, found.end, found.tokenizer
    return found


def is_own(name: str, folder: Path | None) -> bool:
    """Whether its configuration is one of isograd's; what cannot be read is refused as one.

    Raises:
        DataError: a name on the hub that has none.
    """
    try:
        content = read_json(_config_file(name) if folder is None else folder / "config.json")
    except (OSError, ValueError):
        return True
    return not isinstance(content, dict) or content.get("model_type") in (None, IsogradConfig.model_type)


def _config_file(name: str) -> Path:
    try:
        return snapshot(name, ["config.json"]) / "config.json"
    except Exception as error:  # the hub raises many kinds; a user needs one line
        raise DataError(
            f"{name}: no such folder here, and on the hub it cannot be loaded: {first_line(error)}"
        ) from error


@lru_cache(maxsize=8)
def _foreign(name: str, stamp: tuple[tuple[str, int], ...]) -> tuple[IsogradConfig, str]:
    """Configuration, and the digest of the weights, of a model of transformers' that is read here; not the model."""
    model, _ = read_pretrained(name)
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().float().contiguous().numpy())
    return model.config, digest.hexdigest()


def _stamp(name: str) -> tuple[tuple[str, int], ...]:
    """What tells that the files of a folder have changed since."""
    folder = model_place(name)
    return () if folder is None else tuple((p.name, p.stat().st_mtime_ns) for p in sorted(folder.iterdir()))


def _tokenizer(name: str, folder: Path | None, **inputs: Any) -> PreTrainedTokenizerFast:
    if folder is None:
        found = load_tokenizer(model_place(name) or name)
        if found is None:
            raise DataError(f"{name}: no tokenizer in the model's folder")
        if getattr(found, "backend_tokenizer", None) is None:
            raise DataError(f"{name}: its tokenizer ({type(found).__name__}) has no tokenizer.json, as fast ones have")
        for key, value in inputs.items():
            setattr(found, key, value)
        found.init_kwargs |= inputs
        return found
    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{name}: no tokenizer.json in the model's folder")
    try:
        own: PreTrainedTokenizerFast = from_pretrained(PreTrainedTokenizerFast, folder, **inputs)
        return own
    except Exception as error:  # of JSON, of a key, and what the tokenizers library raises, which is an Exception
        raise DataError(f"{name}: its tokenizer cannot be loaded ({first_line(error)})") from error


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Without the cutting and filling that a tokenizer.json may ask for."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return reads_text(tokenizer)


def _together(files: list[Path]) -> str:
    return hashlib.sha256(json.dumps([file_sha256(file) for file in files]).encode()).hexdigest()
