"""A trained translator beside its exports: do they write the same, and how fast?

    python benchmarks/decoding_export.py --model runs/multi30k-admin --data test2016.de --reference test2016.en
    python benchmarks/decoding_export.py --model runs/multi30k-admin --data test2016.de --sentences 16 --rounds 1

The model is exported as the nearest class of transformers and to CTranslate2 (float32 and int8), coefficients folded on
the way, and translates with isograd's search, by CTranslate2's rule (`early_stopping=True`) and by its own default, and
with transformers' `generate`. What is compared is what the same rule gives: the text of isograd's search beside
CTranslate2's, `generate` on our class beside `generate` on the native one. All run in one process, pinned to one
processor, on one thread, and take turns; time is CPU time of a turn over all sentences, sorting and padding included,
tokenizing left out.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from decode import read_lines
from step import machine, spread

Translate = Callable[[], list[list[int]]]


@dataclass(kw_only=True)
class Contestant:
    """Attributes: peer: whose translations are to be equal; None for the first of a rule."""

    name: str
    translate: Translate
    peer: str | None = None
    seconds: list[float] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list, repr=False)


def by_search(model: Any, sources: list[list[int]], beam: int, early: bool) -> Translate:
    from isograd.models.search import translate_ids

    def translate() -> list[list[int]]:
        best: list[list[int]] = [[]] * len(sources)
        for index, hypotheses in translate_ids(model, sources, beam=beam, early_stopping=early):
            best[index] = hypotheses[0].tokens[:-1]
        return best

    return translate


def by_generate(model: Any, sources: list[list[int]], beam: int, batch: int) -> Translate:
    import torch

    pad, end = model.config.pad_token_id, model.config.eos_token_id
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))

    def translate() -> list[list[int]]:
        best: list[list[int]] = [[]] * len(sources)
        for begin in range(0, len(order), batch):
            rows = order[begin : begin + batch]
            ids = torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(sources[row]) for row in rows], batch_first=True, padding_value=pad
            )
            found = model.generate(
                input_ids=ids,
                attention_mask=(ids != pad).long(),
                num_beams=beam,
                early_stopping=True,
                max_new_tokens=ids.shape[1] + 50,
                max_length=None,
            )
            for row, written in zip(rows, found[:, 1:].tolist(), strict=True):
                best[row] = written[: written.index(end)] if end in written else written
        return best

    return translate


def by_ctranslate2(
    folder: Path, sources: list[list[int]], beam: int, batch: int, tokenizer: Any, kind: str
) -> Translate:
    import ctranslate2

    from isograd.convert.checkpoints.vocabulary import pieces

    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)
    read, written = (pieces(side, side.vocab_size) for side in (tokenizer.source, tokenizer.target))
    rows = [[read[i] for i in source] for source in sources]
    index = {token: i for i, token in enumerate(written)}

    def translate() -> list[list[int]]:
        found = translator.translate_batch(rows, beam_size=beam, max_batch_size=batch)
        return [[index[token] for token in result.hypotheses[0]] for result in found]

    return translate


def sentences(data: str, languages: tuple[str, str], n: int) -> list[str]:
    """Of a file; "numbers:test": unseen number words."""
    if not data.startswith("numbers"):
        return read_lines(Path(data), n)
    from isograd.lab.data.pairs import find_pairs

    return list(find_pairs(data, *languages, role="valid").read().source[:n])


def contestants(options: argparse.Namespace, work: Path) -> tuple[list[Contestant], Any]:
    import torch
    import transformers

    from isograd.convert.ctranslate2 import export_ctranslate2
    from isograd.convert.export import export_folder
    from isograd.convert.folding import fold
    from isograd.lab.evaluate.loading import load_translation_model

    transformers.utils.logging.disable_progress_bar()
    model, tokenizer = load_translation_model(options.model, torch.float32)
    model = model.eval()
    sources = tokenizer.source.encode(sentences(options.data, tokenizer.languages, options.sentences))
    exported = export_folder(options.model, work / "native", to=options.to)
    native: Any = getattr(transformers, exported.form).from_pretrained(work / "native").eval()
    export_ctranslate2(model, tokenizer, work / "ct2")
    export_ctranslate2(model, tokenizer, work / "int8", quantization="int8")
    beam, batch = options.beam, options.batch
    first, placement = "isograd, early_stopping", model.config.placement
    return [
        Contestant(name=first, translate=by_search(model, sources, beam, True)),
        Contestant(
            name="isograd, folded", translate=by_search(fold(model, untie=True), sources, beam, True), peer=first
        ),
        Contestant(
            name="CTranslate2",
            translate=by_ctranslate2(work / "ct2", sources, beam, batch, tokenizer, "float32"),
            peer=first,
        ),
        Contestant(
            name="CTranslate2 int8",
            translate=by_ctranslate2(work / "int8", sources, beam, batch, tokenizer, "int8_float32"),
            peer=first,
        ),
        Contestant(name="isograd, its default", translate=by_search(model, sources, beam, False), peer=first),
        Contestant(name=f"generate, {placement}", translate=by_generate(model, sources, beam, batch)),
        Contestant(
            name=f"generate, {exported.form}",
            translate=by_generate(native, sources, beam, batch),
            peer=f"generate, {placement}",
        ),
    ], tokenizer


def table(rows: Sequence[Contestant], texts: dict[str, list[str]], bleu: dict[str, float]) -> list[str]:
    """Median CPU seconds, times as fast as the first contestant within a round, equal texts, BLEU."""
    lines = [f"{'':42}{'CPU s':>8}{'as fast':>9}{'min..max':>14}{'equal':>10}{'BLEU':>10}"]
    for row in rows:
        factor, ends = spread([a / b for a, b in zip(rows[0].seconds, row.seconds, strict=True)])
        equal = ""
        if row.peer:
            equal = f"{sum(a == b for a, b in zip(texts[row.name], texts[row.peer], strict=True))}/{len(row.ids)}"
        lines.append(
            f"{row.name:42}{statistics.median(row.seconds):8.2f}{factor:>9}{ends:>14}{equal:>10}{bleu[row.name]:10.4f}"
        )
    return lines


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a trained run, or its model")
    parser.add_argument("--data", required=True, metavar="FILE", help="source sentences, plain or gz; or numbers:test")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="their translations, for BLEU")
    parser.add_argument("--to", default="auto", metavar="NAME", help="the class of transformers")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch of CTranslate2 and generate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processor", type=int, default=(os.cpu_count() or 1) - 1, help="the one to pin to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.processor})
    import sacrebleu
    import torch

    torch.set_num_threads(1)
    about = machine() | {"ctranslate2": version("ctranslate2")}
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    with tempfile.TemporaryDirectory() as work:
        rows, tokenizer = contestants(options, Path(work))
        for row in rows:
            row.ids = row.translate()  # not measured
        for _ in range(options.rounds):
            for row in rows:
                before = time.process_time()
                row.translate()
                row.seconds.append(time.process_time() - before)
    texts = {row.name: tokenizer.target.decode(row.ids) for row in rows}
    references = read_lines(options.reference, options.sentences) if options.reference else None
    bleu = {
        name: sacrebleu.corpus_bleu(text, [references]).score if references else float("nan")
        for name, text in texts.items()
    }
    print(f"{len(rows[0].ids)} sentences, beam {options.beam}, {options.rounds} rounds")
    print("\n".join(table(rows, texts, bleu)))
    if options.json:
        told = [{"name": row.name, "seconds": row.seconds, "bleu": bleu[row.name]} for row in rows]
        options.json.write_text(json.dumps({"machine": about, "results": told, "texts": texts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
