"""Lines in, lines out in their order, whatever they are searched with."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from isograd.convert.checkpoints.subwords import PairTokenizer, train_subwords
from isograd.errors import DataError
from isograd.lab.evaluate.scores import score
from isograd.lab.evaluate.translation import TranslatedLine, Translator, evaluate
from isograd.models.search import Hypothesis
from tests.build import model
from tests.evaluate.small import LINES, LONGEST, saved

LONG = "ein " * 30


def texts(found: Iterator[TranslatedLine]) -> list[str]:
    return [translation.text for translation in found]


def test_alone_or_together(translator: Translator) -> None:
    """A line's translation depends neither on its neighbours nor on the window or the batch."""
    alone = [next(translator.translate([line])) for line in LINES]
    assert len({translation.text for translation in alone}) == len(LINES)
    for options in ({}, {"window": 2}, {"tokens": 1}, {"tokens": 400, "window": 4}):
        together = list(translator.translate(LINES, **options))
        assert [t.text for t in together] == [t.text for t in alone]
        assert [t.line for t in together] == [1, 2, 3, 4, 5, 6]
        for mine, theirs in zip(together, alone, strict=True):
            assert mine.score == pytest.approx(theirs.score, abs=1e-5) and mine.tokens == theirs.tokens


def test_the_foil_of_order(translator: Translator) -> None:
    """What is found comes longest first, and is the same in order."""
    found = list(translator.translate_all(LINES, first=11))
    assert [t.line for t in found] == [12, 14, 16, 11, 13, 15]
    assert [t.text for t in sorted(found, key=lambda t: t.line)] == texts(translator.translate(LINES))


def test_options_reach_the_search(translator: Translator) -> None:
    default = list(translator.translate(LINES))
    for options in ({"beam": 1}, {"length_penalty": 0.0}, {"extra": 3, "stretch": 0.0}):
        assert list(translator.translate(LINES, **options)) != default, options
    assert all(t.tokens <= 4 for t in translator.translate(LINES, extra=3, stretch=0.0))


@pytest.mark.parametrize(
    "options", [{"beam": 0}, {"tokens": 0}, {"extra": -1}, {"length_penalty": math.nan}, {"length_penalty": 51}]
)
def test_options_out_of_range(translator: Translator, options: dict[str, Any]) -> None:
    """Refused at the call, before a line is read."""
    with pytest.raises(ValueError, match=next(iter(options))):
        translator.translate(LINES, **options)
    with pytest.raises(TypeError, match="beams"):
        translator.translate(LINES, beams=3)


def test_a_window_is_all_that_is_read_ahead(translator: Translator) -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number, line in enumerate(LINES):
            read.append(number)
            yield line

    found = translator.translate(lines(), window=2)
    assert not read
    next(found)
    assert read == [0, 1]


def test_lines_that_fail_leave_the_others_alone(translator: Translator) -> None:
    good = texts(translator.translate(LINES[:2]))
    found = list(translator.translate([LINES[0].encode(), b"\xfcber", LONG, LINES[1]]))
    assert [t.text for t in found] == [good[0], "", "", good[1]]
    assert [t.failure for t in found] == [
        None,
        "not UTF-8 (byte 0xfc)",
        f"120 tokens, and the model reads {LONGEST} at most",
        None,
    ]


def test_the_longest_line(translator: Translator, tmp_path: Path) -> None:
    """The model reads </s>, too; one without a table of positions reads any length."""
    just, over = "a" * (LONGEST - 1), "a" * LONGEST
    assert [t.failure is None for t in translator.translate([just, over])] == [True, False]
    endless = Translator.load(saved(tmp_path, position_embedding_type="sinusoidal"))
    assert [t.failure for t in endless.translate([just, over])] == [None, None]


def test_a_search_that_fails_names_its_line(translator: Translator) -> None:
    """The batch's other lines are translated all the same."""
    good = texts(translator.translate(LINES))
    (digit,) = translator.tokenizer.source.encode(["9"])[0][:1]
    with torch.no_grad():
        translator.model.encoder.embedding.tokens.weight[digit] = math.nan
    found = list(translator.translate([*LINES[:3], "9 hunde", *LINES[3:]]))
    assert [t.text for t in found] == [*good[:3], "", *good[3:]]
    assert [t.line for t in found if t.failure] == [4]
    assert "not finite" in (found[3].failure or "")


def test_a_search_without_room(translator: Translator) -> None:
    """Of a line's failure, not of the program's; the next search is as before."""
    (found,) = translator.translate(LINES[:1], beam=10**11)
    assert "not enough memory" in (found.failure or "") and found.text == ""
    assert next(translator.translate(LINES[:1])).text


def test_empty_lines_and_line_ends(translator: Translator) -> None:
    plain = texts(translator.translate(LINES[:1]))[0]
    given = ["", "  \n", f"{LINES[0]}\n", f"{LINES[0]}\r\n", b"\n", b"\xef\xbb\xbf" + LINES[0].encode() + b"\r\n"]
    assert texts(translator.translate(given)) == ["", "", plain, plain, "", plain]
    assert all(t.failure is None for t in translator.translate(given))
    assert list(translator.translate([])) == []


def test_a_translation_is_one_line(translator: Translator) -> None:
    """Byte-level vocabularies hold line feeds, which a model may write."""
    vocabulary = train_subwords(LINES, "bpe", 300)
    ids = [vocabulary.tokenizer.token_to_id(piece) for piece in ("a", "Ċ", "č", "Ċ", "b")]
    assert vocabulary.decode([ids]) == ["a\n\r\nb"]
    written = Translator(translator.model, PairTokenizer(vocabulary, vocabulary))._written(1, Hypothesis(ids, 0.0, []))
    assert written.text == "a b"


def test_half_precision(translator: Translator, folder: Path) -> None:
    half = Translator.load(folder, precision="bf16")
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    for mine, theirs in zip(half.translate(LINES, beam=1), translator.translate(LINES, beam=1), strict=True):
        assert mine.score == pytest.approx(theirs.score, abs=0.1)


def test_a_run_or_its_model(translator: Translator, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "run/model")
    (tmp_path / "run/run.json").write_text("{}")
    for name in (tmp_path / "run", tmp_path / "run/model", str(tmp_path / "run")):
        assert texts(Translator.load(name).translate(LINES)) == texts(translator.translate(LINES))
    assert not translator.tokenized and Translator.load(saved(tmp_path / "moses", tokenized=True)).tokenized


def test_what_is_no_translation_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nosuch: no such folder$"):
        Translator.load("nosuch")
    with pytest.raises(DataError, match="nosuch/model: no such folder here, and on the hub it cannot be loaded"):
        Translator.load("nosuch/model")
    with pytest.raises(DataError, match=r"no config.json here or in model/"):
        Translator.load(tmp_path)
    model().save_pretrained(tmp_path / "language")
    with pytest.raises(DataError, match=r"no translation.json in the model's folder"):
        Translator.load(tmp_path / "language")
    shutil.copy(folder / "translation.json", tmp_path / "language")
    with pytest.raises(DataError, match=r"tokenizer.json: no such file"):
        Translator.load(tmp_path / "language")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "language")
    with pytest.raises(DataError, match=r"the model cannot be loaded .an encoder-decoder needs encoder_layers"):
        Translator.load(tmp_path / "language")


def test_broken_models(folder: Path, tmp_path: Path) -> None:
    """A weight that is missing would be drawn at random without a word."""
    broken = tmp_path / "broken"

    def copied() -> Path:
        shutil.rmtree(broken, ignore_errors=True)
        return Path(shutil.copytree(folder, broken))

    weights = load_file(copied() / "model.safetensors")
    name = "encoder.layers.0.ffn.branch.out.weight"
    save_file({k: v for k, v in weights.items() if k != name}, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=f"weights are missing, such as {name}"):
        Translator.load(broken)
    (copied() / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is damaged or cut off"):
        Translator.load(broken)
    (copied() / "config.json").write_text("[]")
    with pytest.raises(DataError, match="model_type is None"):
        Translator.load(broken)
    config = json.loads((copied() / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"model_type": "marian"}))
    with pytest.raises(DataError, match="model_type is 'marian', expected 'isograd'"):
        Translator.load(broken)
    vocabulary = train_subwords(LINES, "bpe", 300)
    PairTokenizer(vocabulary, vocabulary).save(copied())
    with pytest.raises(DataError, match=r"the source vocabulary has \d+ ids, the model's table \d+ rows"):
        Translator.load(broken)


def test_evaluation(translator: Translator) -> None:
    """The scores are those of what `translate` writes, line by line."""
    references = [*texts(translator.translate(LINES[:3])), *LINES[3:]]
    told: list[int] = []
    done = evaluate(translator, LINES, references, progress=told.append)
    assert done.scores == score(texts(translator.translate(LINES)), references, tokenized=False, language="en")
    assert done.scores.exact_match == 50 and [t.line for t in done.translations] == told == [1, 2, 3, 4, 5, 6]
    assert done.lines_per_second == 6 / done.seconds > 0
    assert done.tokens_per_second * done.seconds == pytest.approx(sum(t.tokens for t in done.translations))
    assert not done.failures
    assert evaluate(translator, [*LINES, LONG], [*references, "x"]).failures[0].line == 7
    with pytest.raises(DataError, match="6 sources for 5 references"):
        evaluate(translator, LINES, references[:5])


def test_tokenised_models_are_scored_as_such(tmp_path: Path) -> None:
    """Their translations are put together before BLEU sees them."""
    moses = Translator.load(saved(tmp_path, tokenized=True))
    assert "detokenised" in evaluate(moses, LINES, LINES).scores.text["bleu"]
