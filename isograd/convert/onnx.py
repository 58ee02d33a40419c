"""Any model of isograd as ONNX graphs, whatever its placement: the layers themselves are traced, nothing is folded.

    export_onnx(model, "model-onnx")
    OnnxModel("model-onnx")(input_ids)                    logits, by onnxruntime

| model | file | inputs -> output |
| --- | --- | --- |
| causal, masked, classifier | `model.onnx` | `input_ids`, `attention_mask` (`token_type_ids`) -> `logits` |
| encoder-decoder | `encoder_model.onnx` | `input_ids`, `attention_mask` -> `last_hidden_state` |
| | `decoder_model.onnx` | `input_ids`, `encoder_hidden_states`, `encoder_attention_mask` -> `logits` |

Batch and time are free in all of them; the numbers are float32. There is no cache: the graphs score text, or take one
step of a search over all tokens so far.
"""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isograd.convert.checkpoints.folder import Source, Written
from isograd.convert.checkpoints.vocabulary import save_tokenizer
from isograd.convert.parity import LIMITS, ParityReport, Runner, hashes, measure, until
from isograd.convert.sample import Batch, Sample
from isograd.errors import InteropError, needed
from isograd.files import new_folder
from isograd.models import (
    IsogradConfig,
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
    IsogradPreTrainedModel,
)

OPSET = 20  # the first with a GELU of its own
MODEL, ENCODER, DECODER = "model.onnx", "encoder_model.onnx", "decoder_model.onnx"
HEADS = (IsogradForCausalLM, IsogradForMaskedLM, IsogradForSequenceClassification)


@dataclass(frozen=True)
class Graph:
    """One file: what is traced, on which inputs (name -> example), under which names its axes go."""

    file: str
    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, tuple[str, str]]
    output: str


def export_onnx(model: IsogradPreTrainedModel, folder: str | Path, *, tokenizer: Any = None) -> Path:
    """Write the graphs, the configuration and the tokenizer into a new folder; the model stays as it is.

    Raises:
        InteropError: a model without a head, or a folder that is there already.
        ImportError: onnx or onnxscript is missing; the message names the extra.
    """
    needed("export", "onnx", "onnxscript")
    traced = copy.deepcopy(model).to("cpu", torch.float32).eval()
    traced.set_attn_implementation("eager")  # one graph for every mask: sdpa's asks whether there is padding at all
    with new_folder(folder) as part:
        for graph in _graphs(traced):
            _write(graph, part)
        model.config.save_pretrained(part)
        if tokenizer is not None:
            save_tokenizer(tokenizer, part)
    return Path(folder)


def write(source: Source, folder: Path) -> Written:
    """ONNX graphs of any placement, in float32."""
    export_onnx(source.model, folder, tokenizer=source.tokenizer)
    report = measure_onnx(source.model, folder, source.sample, **source.facts)
    use = "from isograd.convert.onnx import OnnxModel\n\nlogits = OnnxModel(FOLDER)(input_ids, attention_mask)"
    notes = ("The graphs are plain ONNX (no cache): onnxruntime runs them without isograd.",)
    return Written(to="onnx", form="ONNX", library="onnx", use=use, report=report, notes=notes)


def measure_onnx(
    model: IsogradPreTrainedModel, folder: str | Path, sample: Sample | None = None, **facts: Any
) -> ParityReport:
    """The model against the folder that `export_onnx` wrote from it, in float32: logits, greedy outputs.

    Args:
        sample: None draws random ids.
        facts: of `measure`.
    """
    return measure(
        {"fp32": model},
        {"fp32": _runner(OnnxModel(folder), model.config)},
        sample,
        about=f"{type(model).__name__} ({model.config.placement}) and its ONNX graphs",
        limits={"fp32": LIMITS["fp32"]},
        beams=(1,),
        files=hashes(folder),
        versions={name: version(name) for name in ("onnx", "onnxruntime")},
        **facts,
    )


class OnnxModel:
    """The graphs of a folder, run by onnxruntime; takes and gives torch's tensors."""

    def __init__(self, folder: str | Path, *, threads: int = 1) -> None:
        (runtime,) = needed("export", "onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self.sessions = {
            name: runtime.InferenceSession(Path(folder) / name, options, providers=["CPUExecutionProvider"])
            for name in (MODEL, ENCODER, DECODER)
            if (Path(folder) / name).is_file()
        }

    def __call__(
        self,
        input_ids: Tensor,  # (batch, time)
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits, as the model's own call gives them."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        given = {"input_ids": input_ids, "attention_mask": mask}
        if MODEL in self.sessions:
            if any(field.name == "token_type_ids" for field in self.sessions[MODEL].get_inputs()):
                given["token_type_ids"] = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            return self._run(MODEL, given)
        if decoder_input_ids is None:
            raise ValueError("an encoder-decoder needs decoder_input_ids")
        memory = self._run(ENCODER, given)
        read = {"input_ids": decoder_input_ids, "encoder_hidden_states": memory, "encoder_attention_mask": mask}
        return self._run(DECODER, read)

    def _run(self, name: str, inputs: dict[str, Tensor]) -> Tensor:
        (out,) = self.sessions[name].run(None, {key: value.numpy() for key, value in inputs.items()})
        return torch.from_numpy(out)


def _runner(graphs: OnnxModel, config: IsogradConfig) -> Runner:
    begin = config.decoder_start_token_id if config.is_encoder_decoder else None

    def logits(batch: Batch) -> Tensor:
        return graphs(**{name: value for name, value in batch.items() if name != "decoder_attention_mask"})

    def generate(prompt: Batch, beams: int, new_tokens: int) -> list[list[int]]:
        """The most probable token, again and again; the graphs have no cache, so all of them are read each time."""
        ids = prompt["input_ids"]
        tokens = ids if begin is None else ids.new_full((len(ids), 1), begin)
        read = tokens.shape[1]
        for _ in range(new_tokens):
            out = graphs(tokens) if begin is None else graphs(ids, prompt["attention_mask"], tokens)
            tokens = torch.cat([tokens, out[:, -1:].argmax(dim=-1)], dim=1)
        return [until(config.eos_token_id, row) for row in tokens[:, read:].tolist()]

    return Runner(logits=logits, generate=generate)


class _Logits(nn.Module):
    """A model of one stack as a function of tensors."""

    def __init__(self, model: IsogradPreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        cache = {"use_cache": False} if isinstance(self.model, IsogradForCausalLM) else {}
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types, **cache).logits
        return logits


class _Encoder(nn.Module):
    def __init__(self, model: IsogradForSeq2SeqLM) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        memory: Tensor = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        return memory


class _Decoder(nn.Module):
    def __init__(self, model: IsogradForSeq2SeqLM) -> None:
        super().__init__()
        self.decoder, self.lm_head = model.decoder, model.lm_head

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor) -> Tensor:
        outputs = self.decoder(
            input_ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            use_cache=False,
        )
        logits: Tensor = self.lm_head(outputs.last_hidden_state)
        return logits


def _graphs(model: IsogradPreTrainedModel) -> list[Graph]:
    ids = torch.zeros(2, 3, dtype=torch.long)  # no length of 0 or 1: those would be taken for constants
    there, text = torch.ones_like(ids), ("batch", "time")
    if isinstance(model, IsogradForSeq2SeqLM):
        memory = torch.zeros(2, 4, model.encoder.config.hidden_size)
        source = ("batch", "source")
        own = {"input_ids": source, "attention_mask": source}
        reads = {"input_ids": text, "encoder_hidden_states": source, "encoder_attention_mask": source}
        seen = {"input_ids": ids, "encoder_hidden_states": memory, "encoder_attention_mask": there.new_ones(2, 4)}
        return [
            Graph(ENCODER, _Encoder(model), {"input_ids": ids, "attention_mask": there}, own, "last_hidden_state"),
            Graph(DECODER, _Decoder(model), seen, reads, "logits"),
        ]
    if not isinstance(model, HEADS):
        raise InteropError(
            f"{type(model).__name__} has no head whose logits ONNX could give; load it as a model with one"
        )
    inputs = {"input_ids": ids, "attention_mask": there}
    if model.config.type_vocab_size:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    return [Graph(MODEL, _Logits(model), inputs, dict.fromkeys(inputs, text), "logits")]


def _write(graph: Graph, folder: Path) -> None:
    axes = {name: dict(enumerate(names)) for name, names in graph.axes.items()}
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph.module.eval(),
            tuple(graph.inputs.values()),
            input_names=list(graph.inputs),
            output_names=[graph.output],
            dynamic_shapes=axes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(folder / graph.file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's words about itself: that torchvision is absent, and that two inputs share an axis."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
