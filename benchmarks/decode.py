"""Beam search beside transformers' `generate`: the same weights, the same sentences, one thread each.

    python benchmarks/decode.py --data test2016.de --reference test2016.en
    python benchmarks/decode.py --data test2016.de --model runs/multi30k --json decode.json
    python benchmarks/decode.py --data test2016.de --sentences 64 --rounds 2      does it run?

The peer is MarianMTModel for a post-ln model, and PegasusForConditionalGeneration, its pre-ln twin, for a pre-ln one,
with the weights of ours. isograd sorts the sentences by length and cuts batches by tokens; the peer gets them in the
order of the file, `--batch` at a time, as its users would. Every contestant lives in its own process, pinned to one
processor, and they take turns; a turn translates all sentences once. A ratio is formed within a round; the table shows
its median over the rounds and its smallest and largest value. "equal" is the share of best hypotheses that are those
of isograd in the first dtype. `generate` goes on, by default, where a better hypothesis could still be found; with
early_stopping=True it stops when isograd does, and is shown once, for the last `--batch`.

With `--model` (ReLU, positions added to the embedding, one table for both languages) sentences end where the model ends
them. Without it the weights are random (post-ln, d 256, 6 + 6 layers, 8000 words), sentences are random words of the
lengths in `--data`, and each hypothesis ends at the length of its line in `--reference` (of its source, without one):
eos is made improbable in the weights, and forced at that length on both sides.
"""

import argparse
import gzip
import itertools
import json
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from step import machine, spread

SHAPE: dict[str, Any] = {
    "vocab_size": 8000,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "encoder_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "max_position_embeddings": 256,
    "hidden_act": "relu",
    "placement": "post-ln",
    "position_embedding_type": "sinusoidal",
    "scale_embedding": True,
    "share_encoder_embeddings": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is translated: ids with eos, and the forced number of tokens before eos (None: the model ends)."""

    sources: list[list[int]]
    lengths: list[int] | None
    model: str | None
    beam: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Contestant:
    name: str
    batch: int | None  # None: isograd
    bf16: bool
    early: bool = False  # early_stopping=True: stops when `beam` hypotheses are finished, as isograd does


@dataclass(kw_only=True)
class Result:
    contestant: Contestant
    seconds: list[float] = field(default_factory=list)  # CPU, one per round
    best: list[list[int]] = field(default_factory=list, repr=False)


Translate = Callable[[], list[list[int]]]


def ours(model: Any, work: Work) -> Translate:
    from isograd.models.search import translate_ids

    def translate() -> list[list[int]]:
        best: list[list[int]] = [[]] * len(work.sources)
        forced: dict[str, Any] = {} if work.lengths is None else {"lengths": work.lengths, "extra": 0}
        found = translate_ids(model, work.sources, beam=work.beam, tokens=work.tokens, **forced)
        for index, hypotheses in found:
            best[index] = hypotheses[0].tokens
        return best

    return translate


def theirs(model: Any, work: Work, batch: int, early: bool) -> Translate:
    """`generate` in file order; its tokens up to the first eos after the start token."""
    import torch

    peer, config = peer_of(model), model.config
    pad, eos = config.pad_token_id, config.eos_token_id

    def translate() -> list[list[int]]:
        best = []
        for begin in range(0, len(work.sources), batch):
            rows = [torch.tensor(ids) for ids in work.sources[begin : begin + batch]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            lengths = None if work.lengths is None else torch.tensor(work.lengths[begin : begin + batch])
            longest = min(ids.shape[1] + 51, config.max_position_embeddings - 1)
            out = peer.generate(
                input_ids=ids,
                attention_mask=(ids != pad).long(),
                num_beams=work.beam,
                early_stopping=early,
                suppress_tokens=[pad],
                max_new_tokens=longest if lengths is None else int(lengths.max()) + 1,
                logits_processor=[] if lengths is None else [end_at(lengths.repeat_interleave(work.beam), eos)],
            )
            best += [[*row[: row.index(eos)], eos] if eos in row else row for row in out[:, 1:].tolist()]
        return best

    return translate


def end_at(lengths: Any, eos: int) -> Any:
    """The processor that forces eos behind that many tokens, at its own log-probability."""
    import torch
    from transformers import LogitsProcessor

    class EndAt(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            rows = lengths <= input_ids.shape[1] - 1  # the start token is among them
            if rows.any():
                kept = scores[rows, eos]
                scores[rows] = -torch.inf
                scores[rows, eos] = kept
            return scores

    return EndAt()


def peer_of(model: Any) -> Any:
    """transformers' model of the same function, with the same weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

    c = model.config
    wanted = {"norm": "layernorm", "norm_eps": 1e-5, "bias": True, "embedding_norm": False, "hidden_act": "relu"}
    wanted |= {"share_encoder_embeddings": True}
    unlike = [f"{k}={getattr(c, k)}" for k, v in wanted.items() if getattr(c, k) != v]
    if c.placement not in ("post-ln", "pre-ln") or c.position_embedding_type in ("rotary", "none") or unlike:
        raise SystemExit(f"transformers has no {c.placement} model with {c.position_embedding_type} positions {unlike}")
    post = c.placement == "post-ln"
    config = (MarianConfig if post else PegasusConfig)(
        vocab_size=c.vocab_size,
        d_model=c.hidden_size,
        encoder_layers=c.encoder_layers,
        decoder_layers=c.num_hidden_layers,
        encoder_attention_heads=c.num_attention_heads,
        decoder_attention_heads=c.num_attention_heads,
        encoder_ffn_dim=c.intermediate_size,
        decoder_ffn_dim=c.intermediate_size,
        activation_function=c.hidden_act,
        max_position_embeddings=c.max_position_embeddings,
        scale_embedding=c.scale_embedding,
        pad_token_id=c.pad_token_id,
        eos_token_id=c.eos_token_id,
        bos_token_id=c.bos_token_id,
        decoder_start_token_id=c.decoder_start_token_id,
        forced_eos_token_id=None,
        **({"decoder_vocab_size": c.vocab_size} if post else {}),
    )
    peer: Any = (MarianMTModel if post else PegasusForConditionalGeneration)(config).eval()
    positions = torch.arange(c.max_position_embeddings)[None] + c.position_offset
    state = {"final_logits_bias": torch.zeros(1, c.vocab_size), "lm_head.weight": model.lm_head.weight.float()}
    state["model.shared.weight"] = state["lm_head.weight"]
    for tower in ("encoder", "decoder"):
        own = getattr(model, tower)
        state[f"model.{tower}.embed_positions.weight"] = own.embedding.positions(positions)[0].float()
        for name, value in own.state_dict().items():
            if not name.startswith("embedding.positions"):
                state[f"model.{tower}.{_their_name(name)}"] = value.float()
    peer.load_state_dict(state)
    return peer.to(model.dtype)


def _their_name(name: str) -> str:
    parts = {
        r"^norm\.": "layer_norm.",
        r"embedding\.tokens\.": "embed_tokens.",
        r"attn\.branch\.(q|k|v)\w+\.": r"self_attn.\1_proj.",
        r"cross\.branch\.(q|k|v)\w+\.": r"encoder_attn.\1_proj.",
        r"attn\.branch\.out\.": "self_attn.out_proj.",
        r"cross\.branch\.out\.": "encoder_attn.out_proj.",
        r"attn\.(pre|post)\.": "self_attn_layer_norm.",
        r"cross\.(pre|post)\.": "encoder_attn_layer_norm.",
        r"ffn\.(pre|post)\.": "final_layer_norm.",
        r"ffn\.branch\.into\.": "fc1.",
        r"ffn\.branch\.out\.": "fc2.",
    }
    for pattern, other in parts.items():
        name = re.sub(pattern, other, name)
    return name


def build(path: str | None) -> Any:
    """The trained model, or a random one that hardly ever writes eos."""
    import torch

    from isograd.evaluate.loading import load_translation_model
    from isograd.models import IsogradConfig, IsogradForSeq2SeqLM

    if path is not None:
        return load_translation_model(path, torch.float32)[0].eval()
    torch.manual_seed(0)
    model = IsogradForSeq2SeqLM(IsogradConfig(**SHAPE)).eval()
    with torch.no_grad():
        offset = torch.randn(SHAPE["hidden_size"])
        model.decoder.layers[-1].ffn.post.bias.copy_(offset)  # W h has W b in it:
        model.lm_head.weight[SHAPE["eos_token_id"]] = -offset  # -|b|^2 at eos
    return model


def compete(connection: Any, contestant: Contestant, work: Work, threads: int, processor: int | None) -> None:
    """Builds, sends the best hypotheses of a turn that is not measured, then one turn for every True received."""
    if processor is not None:
        os.sched_setaffinity(0, {processor})
    import torch

    torch.set_num_threads(threads)
    model = build(work.model).to(torch.bfloat16 if contestant.bf16 else torch.float32)
    translate = (
        ours(model, work) if contestant.batch is None else theirs(model, work, contestant.batch, contestant.early)
    )
    connection.send(translate())
    while connection.recv():
        before = time.process_time()
        translate()
        connection.send(time.process_time() - before)


def measure(contestants: Sequence[Contestant], work: Work, options: argparse.Namespace) -> list[Result]:
    context = multiprocessing.get_context("spawn")
    processor = options.processor if options.threads == 1 and hasattr(os, "sched_setaffinity") else None
    lines, results = [], []
    for contestant in contestants:
        mine, its = context.Pipe()
        process = context.Process(target=compete, args=(its, contestant, work, options.threads, processor), daemon=True)
        process.start()
        its.close()
        results.append(Result(contestant=contestant, best=mine.recv()))
        lines.append((mine, process))
    for _ in range(options.rounds):
        for (line, _), result in zip(lines, results, strict=True):
            line.send(True)
            result.seconds.append(line.recv())
    for line, process in lines:
        line.send(False)
        process.join()
    return results


def table(results: Sequence[Result]) -> list[str]:
    """Times, and how many times faster isograd is than each contestant of the same dtype."""
    lines = [f"{'':28}{'CPU s':>8}{'isograd is':>16}{'min..max':>13}{'equal':>8}"]
    for result in results:
        own = next(r for r in results if r.contestant.batch is None and r.contestant.bf16 == result.contestant.bf16)
        factor, ends = spread([a / b for a, b in zip(result.seconds, own.seconds, strict=True)])
        equal = statistics.fmean(a == b for a, b in zip(result.best, results[0].best, strict=True))
        lines.append(
            f"{result.contestant.name:28}{statistics.median(result.seconds):8.2f}{factor + ' x as fast':>16}{ends:>13}"
            f"{equal:8.3f}"
        )
    return lines


def read_lines(path: Path, n: int) -> list[str]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [line.strip() for line in itertools.islice(lines, n)]


def make_work(options: argparse.Namespace) -> Work:
    lines = read_lines(options.data, options.sentences)
    lengths = None
    if options.model:
        import torch

        from isograd.evaluate.loading import load_translation_model

        sources = load_translation_model(options.model, torch.float32)[1].source.encode(lines)
    else:
        import random

        draw = random.Random(0)
        reference = read_lines(options.reference or options.data, options.sentences)
        sources = [[*(draw.randrange(4, SHAPE["vocab_size"]) for _ in _words(line)), 2] for line in lines]
        lengths = [max(len(_words(line)), 1) for line in reference]
    return Work(sources=sources, lengths=lengths, model=options.model, beam=options.beam, tokens=options.tokens)


def _words(line: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", line)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="source sentences, plain or gz")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="their translations, for lengths only")
    parser.add_argument("--model", metavar="FOLDER", help="a trained run, or its model")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 32], help="sentences per call of generate")
    parser.add_argument("--tokens", type=int, default=8192, help="isograd's bound on sentences * beam * length")
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor", type=int, default=(os.cpu_count() or 1) - 1, help="the one to pin to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    work = make_work(options)
    contestants = []
    for dtype in options.dtype:
        bf16 = dtype == "bf16"
        contestants.append(Contestant(name=f"isograd {dtype}", batch=None, bf16=bf16))
        contestants += [Contestant(name=f"generate {dtype}, batch {n}", batch=n, bf16=bf16) for n in options.batch]
        contestants.append(
            Contestant(name="  with early_stopping=True", batch=options.batch[-1], bf16=bf16, early=True)
        )
    print(
        f"{len(work.sources)} sentences, mean length {statistics.fmean(map(len, work.sources)):.1f}, beam {work.beam},"
        f" {'trained model' if work.model else 'random weights, forced lengths'}, {options.threads} thread,"
        f" {options.rounds} rounds"
    )
    results = measure(contestants, work, options)
    print("\n".join(table(results)))
    if options.json:
        rows = [{"contestant": asdict(r.contestant), "seconds": r.seconds} for r in results]
        report = {"machine": about, "beam": work.beam, "sentences": len(work.sources), "results": rows}
        options.json.write_text(json.dumps(report | {"forced": work.lengths is not None}, indent=1) + "\n")


if __name__ == "__main__":
    main()
