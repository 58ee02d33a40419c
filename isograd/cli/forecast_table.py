"""`isograd train RECIPE --dry-run` as tables: what will be built, what a device holds, what the training takes."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isograd.cli.console import output
from isograd.train.forecast import Forecast
from isograd.train.memory import PARTS
from isograd.train.run import Run, sharded_by
from isograd.train.zero import zero_of

_DECIMAL = ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
_COUNTED = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def print_forecast(found: Forecast) -> None:
    """Three tables, and the rates in a line."""
    console, run = output(), found.run
    console.print(f"[bold]{escape(run.name or run.task)}[/bold]  {escape(_shape(found))}")
    _print(console, "parameters", _parameters(found))
    sharded = "sharded" if sharded_by(run.training) else "replicated" if found.devices > 1 else "whole"
    each = "1 device" if found.devices == 1 else f"each of {found.devices} devices"
    _print(console, f"memory of {each}, {sharded}", _memory(found))
    _print(console, "training", _training(found))
    console.print(f"\n[bold]learning rate[/bold]  {rates_in_words(found)}")


def rates_in_words(found: Forecast) -> str:
    """The rate where the schedule turns, such as "0 in update 1, 0.0006 in update 750 (warm-up 750, polynomial)"."""
    t, warmup = found.run.training, found.run.warmup_in_words
    told = ", ".join(f"{rate:.3g} in update {step:,}" for step, rate in found.rates)
    return f"{told} ({warmup}, {t.decay})" if told else f"peak {t.lr:g}, {warmup}, {t.decay}"


def bytes_in_words(count: float) -> str:
    """Bytes as GiB or MiB.

    >>> bytes_in_words(80 * 2**30), bytes_in_words(3 * 2**20)
    ('80.0 GiB', '3.0 MiB')
    """
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _shape(found: Forecast) -> str:
    run, config = found.run, found.config
    layers = f"{config.encoder_layers} + " if config.encoder_layers else ""
    return (
        f"{config.placement}, {layers}{config.num_hidden_layers} layers, width {config.hidden_size},"
        f" {config.num_attention_heads} heads, feed-forward {config.intermediate_size},"
        f" vocabulary {_up_to(run)}{config.vocab_size:,}, {run.training.precision}"
    )


def _up_to(run: Run) -> str:
    """What is known of the vocabulary's size before data are read."""
    said = {None: "", "char": "of characters, taken as ", "subword-nmt": "of merges, taken as "}
    return said.get(run.vocabulary, "up to ")


def _parameters(found: Forecast) -> Iterable[tuple[str, str, str]]:
    for part in PARTS:
        if found.parts[part]:
            yield part, f"{found.parts[part]:,}", f"{found.parts[part] / found.parameters:6.2%}"
    yield "all", f"{found.parameters:,}", _counted(found.parameters)
    yield "without tables", f"{found.non_embedding:,}", _counted(found.non_embedding)


def _memory(found: Forecast) -> Iterable[tuple[str, str, str]]:
    m, t = found.memory, found.run.training
    zero = zero_of(t)
    kind = t.precision if zero and t.precision != "fp32" else "float32"
    gathered = t.fsdp or (zero and zero.stage == 3)
    again = "with" if t.gradient_checkpointing else "without"
    for name, count, note in (
        ("parameters", m.parameters, kind),
        ("gradients", m.gradients, kind),
        ("optimizer", m.optimizer, f"{t.optimizer}, and the parameters in float32" if zero else t.optimizer),
        ("these three", m.static, f"ZeRO {zero.stage}" if zero else "exact"),
        ("copies", m.copies, f"gathered, {t.precision}" if gathered else f"matrices in {t.precision}"),
        ("buckets", m.buckets, "gradients on their way"),
        ("activations", m.activations, f"{again} gradient checkpointing"),
        ("loss", m.loss, f"in chunks of {found.config.loss_chunk} rows"),
        ("at most, all", m.total, "an estimate"),
        ("calibration", m.calibration, f"before the first step{', on the host' if sharded_by(t) else ''}, float32"),
    ):
        if count:
            yield name, bytes_in_words(count), note


def _training(found: Forecast) -> Iterable[tuple[str, str, str]]:
    epochs = found.run.training.epochs
    by_rows = epochs and found.run.counts_rows  # how many there are, only the data say
    upper = "at most " if epochs else ""
    if by_rows:
        yield "epochs", f"{epochs:,}", "of rows not yet counted"
    else:
        yield "updates", f"{upper}{found.steps:,}", ""
    yield "tokens per update", f"{found.tokens_per_update:,}", ""
    yield "in one pass of a device", f"{found.run.micro_tokens(found.devices):,}", "tokens"
    if by_rows:
        return
    yield "tokens", f"{upper}{found.tokens:,}", _counted(found.tokens)
    yield "tokens per parameter", _ratio(found.tokens / found.parameters), ""
    yield "arithmetic", f"{found.flops:.3g} FLOP", _decimal(found.flops)


def _print(console: Console, title: str, lines: Iterable[tuple[str, str, str]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, title=None)
    table.add_column(min_width=24)
    table.add_column(justify="right", min_width=22)
    table.add_column(style="dim")
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(f"\n[bold]{title}[/bold]")
    console.print(table)


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(count: float) -> str:
    return _scaled(count, _COUNTED, "")


def _decimal(flops: float) -> str:
    return _scaled(flops, _DECIMAL, "FLOP")


def _scaled(count: float, units: Iterable[tuple[float, str]], of: str) -> str:
    return next((f"{count / unit:.3g} {letter}{of}" for unit, letter in units if count >= unit), "")
