"""lm-evaluation-harness' model class, in batches of equal work; and the harness without its own printing.

Importing this needs lm-eval; without it the error names the extra.
"""

import io
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from isograd.errors import DataError

try:  # every name of the harness is imported here, so that its absence is said in one way
    import lm_eval.tasks
    import lm_eval.utils
    from datasets import Dataset as Dataset
    from lm_eval.api.group import Group as Group
    from lm_eval.api.metrics import unweighted_mean_stderr as unweighted_mean_stderr
    from lm_eval.api.model import CacheHook
    from lm_eval.evaluator import evaluate as evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager as TaskManager
except ImportError as missing:
    raise ImportError(
        f"zero-shot tasks need {missing.name}; pip install 'isograd[eval]'", name=missing.name
    ) from missing

DEFINITIONS = Path(lm_eval.tasks.__file__).parent
Progress = Callable[[int, int], None]  # requests done, and all of them
Request = tuple[tuple[str, str], list[int], list[int]]  # context and continuation; the tokens of each

PLACES = {"cpu": 1 << 10, "cuda": 1 << 15}  # tokens of a batch; a core's cache holds what they become
LOGITS = {"cpu": 1 << 26, "cuda": 1 << 29}  # numbers in the logits of a batch; the harness holds them twice


class Scorer(HFLM):
    """The harness' own, where a batch is a number of tokens unless `batch` says how many texts it is.

    Attributes:
        progress: called with the texts of a call that are scored, and of their number.
        texts: scored so far.
        truncated: those longer than what the model reads: what stands before is cut off on its left.
        pieced: those of them where what is scored is longer, and is scored piece by piece.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch: int | None = None, prefix: int | None = None) -> None:
        """
        Args:
            batch: texts in a batch; None takes as many as have `PLACES` tokens together.
            prefix: the token that stands in place of an empty context; None leaves it to the harness: <s>, else </s>.
        """
        super().__init__(
            pretrained=model,
            backend="causal",
            tokenizer=tokenizer,
            batch_size=batch or "auto",
            softmax_dtype="float32",  # of bf16 logits too
            prefix_token_id=prefix,
        )
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        rows = model.get_input_embeddings().weight.shape[0]
        self.places = max(1, min(PLACES[kind], LOGITS[kind] // rows))
        self.progress: Progress | None = None  # called for every answer
        self.texts = self.truncated = self.pieced = 0
        self._next = self._count = 0

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: Sequence[Request], disable_tqdm: bool = False, **options: Any) -> Any:
        """The harness', where one text to be scored may be longer than what the model reads."""
        pieces = [self._pieces(request) for request in requests]
        parts = [part for piece in pieces for part in piece]
        self.texts += len(requests)
        self.pieced += sum(len(piece) > 1 for piece in pieces)
        self.truncated += sum(len(context) + len(rest) > self.max_length + 1 for _, context, rest in requests)
        self.set_cache_hook(_Counter(len(parts), self.progress))
        with torch.inference_mode():
            answers = super()._loglikelihood_tokens(parts, disable_tqdm=True, **options)
        if any(math.isnan(value) for value, _ in answers):  # the first of the choices would be taken for the likeliest
            raise DataError("the model's log-likelihoods are not numbers; has its run diverged?")
        rest = iter(answers)
        return [_joined(list(islice(rest, len(piece)))) for piece in pieces]

    def _pieces(self, request: Request) -> list[Request]:
        """log p(c | x) = sum of log p(c_i | x, c_1 .. c_(i-1)), each piece with as much before it as is read."""
        texts, context, rest = request
        if len(rest) <= self.max_length:
            return [request]
        size = max(1, self.max_length // 2)
        return [(texts, context + rest[:i], rest[i : i + size]) for i in range(0, len(rest), size)]

    def _batch_scheduler(self, pos: int, n_reordered_requests: Sequence[Request]) -> int:
        """How many texts the batch has that text `pos` is in; they come sorted, the longest first."""
        if pos == 0 or pos == self._next:
            _, context, continuation = n_reordered_requests[pos]
            length = min(len(context) + len(continuation), self.max_length)
            self._count = max(1, self.places // length)
            self._next = pos + self._count
        return self._count


def _joined(answers: list[tuple[float, bool]]) -> tuple[float, bool]:
    if len(answers) == 1:
        return answers[0]
    return sum(value for value, _ in answers), all(greedy for _, greedy in answers)


class _Counter(CacheHook):
    """The harness tells its cache of every answer."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        super().__init__(None)
        self.done, self.total, self.progress = 0, total, progress

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        self.done += 1
        if self.progress and (self.done % 64 == 0 or self.done == self.total):
            self.progress(self.done, self.total)


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Without the harness' bars and notices on stdout and stderr, and with each template of a prompt compiled once.

    The harness compiles its templates anew for every document: of BLiMP that takes longer than a small model does.
    """
    disabled = logging.root.manager.disable
    alone, environment = os.environ.get("DISABLE_MULTIPROC"), lm_eval.utils.env
    compiled = environment.from_string
    logging.disable(logging.WARNING)
    environment.from_string = cache(compiled)
    os.environ["DISABLE_MULTIPROC"] = "1"  # a perplexity's standard error is a bootstrap, else in a pool of processes
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
        environment.from_string = compiled
        os.environ.pop("DISABLE_MULTIPROC", None)
        if alone is not None:
            os.environ["DISABLE_MULTIPROC"] = alone
