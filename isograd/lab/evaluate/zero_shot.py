"""A causal language model -> accuracies on zero-shot tasks, by lm-evaluation-harness' own rules.

Importing this needs lm-eval; without it the error names the extra.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, Literal

from isograd.errors import DataError, first_line
from isograd.lab.evaluate.harness import Scorer, evaluate, quiet_harness, unweighted_mean_stderr
from isograd.lab.evaluate.loading import empty_context

AgainstChance = Literal["above chance", "at chance", "below chance"]

ACCURACIES = ("acc", "acc_norm")
FIELDS = ("field", "linguistics_term")  # of BLiMP's documents: 4 kinds and 12 phenomena of its 67 paradigms
BOOTSTRAP = 1000  # resamples, for perplexities alone: an accuracy's standard error is a formula


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one task.

    Attributes:
        value: an accuracy is between 0 and 1; a perplexity has no chance level.
        stderr: the harness'; None of a single document.
        chance: the accuracy of a guess: the mean of 1 / choices; 0 where a word is asked for.
        n: documents.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("verdict",)

    task: str
    metric: str
    value: float
    stderr: float | None
    chance: float | None
    n: int

    @property
    def verdict(self) -> AgainstChance | None:
        """Of two standard errors around the accuracy; where all or none are right, of the error that chance has.

        >>> of = {"task": "piqa", "metric": "acc", "stderr": 0.01, "chance": 0.5, "n": 1838}
        >>> [Score(value=value, **of).verdict for value in (0.53, 0.51, 0.47)]
        ['above chance', 'at chance', 'below chance']
        >>> [Score(**(of | {"value": 0.0, "stderr": 0.0, "n": n})).verdict for n in (4, 100)]
        ['at chance', 'below chance']
        """
        if self.chance is None or self.stderr is None:
            return None
        error = self.stderr or math.sqrt(self.chance * (1 - self.chance) / self.n)
        if self.value - 2 * error > self.chance:
            return "above chance"
        return "below chance" if self.value + 2 * error < self.chance else "at chance"


@dataclass(kw_only=True)
class ZeroShot:
    """What was found.

    Attributes:
        scores: of every task, in the order of the tasks; of a group its mean.
        details: of a group, under "task" its members; of BLiMP also "field" and "linguistics_term", means of members.
        failures: tasks without a score, and why.
        versions: the harness' of each task.
        prefix: the token that stands in place of an empty context.
        texts, truncated, pieced: see `Scorer`.
    """

    scores: list[Score] = field(default_factory=list)
    details: dict[str, dict[str, list[Score]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    texts: int = 0
    truncated: int = 0
    pieced: int = 0
    prefix: str = ""


def zero_shot(
    model: Any,
    tokenizer: Any,
    tasks: Mapping[str, Any],
    *,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> ZeroShot:
    """Score every task; one that the model cannot read does not stop the others.

    Args:
        tasks: of `isograd.lab.evaluate.harness_tasks.load_tasks`.
        limit: documents per task (of BLiMP per paradigm): the first ones.
        seed: with `limit`: draws the documents.
        batch: texts in a batch; None: by tokens, see `Scorer`.
        progress: called with the task, and how many of its texts are scored.
    """
    found = ZeroShot()
    with quiet_harness():
        scorer = Scorer(model, tokenizer, batch=batch, prefix=empty_context(model.config, tokenizer))
    found.prefix = tokenizer.convert_ids_to_tokens(scorer.prefix_token_id)
    began = time.perf_counter()
    for name, task in tasks.items():
        scorer.progress = (lambda done, all_, name=name: progress(name, done, all_)) if progress else None
        try:
            _score(name, task, scorer, limit, seed, found)
        except DataError as error:
            found.failures[name] = str(error)
    found.seconds = time.perf_counter() - began
    found.texts, found.truncated, found.pieced = scorer.texts, scorer.truncated, scorer.pieced
    return found


def _score(name: str, task: Any, scorer: Scorer, limit: int | None, seed: int | None, found: ZeroShot) -> None:
    """Run the harness on one task or group, and add what it says."""
    members = {one.task_name: one for one in task.get_all_tasks()} if hasattr(task, "get_all_tasks") else {name: task}
    for one in members.values():
        if one.get_config("num_fewshot") is None:
            one.set_config("num_fewshot", 0)
        one.set_fewshot_seed(seed or 0)
    samples = _drawn(members, limit, seed) if limit and seed is not None else None
    try:
        with quiet_harness():
            results = evaluate(
                scorer,
                {"tasks": members, "groups": {} if name in members else {name: task}},
                limit=None if samples else limit,
                samples=samples,
                bootstrap_iters=BOOTSTRAP,
                log_samples=False,
            )
    except DataError:
        raise
    except Exception as error:  # of the harness' templates and functions, met with a row that is not as they expect
        raise DataError(f"the harness failed ({type(error).__name__}: {first_line(error)})") from error
    chances = {key: _chance(one) for key, one in members.items()}
    of_members = [s for key in members for s in _scores(key, results["results"][key], chances[key])]
    found.versions[name] = results["versions"][name]
    if name in members:
        found.scores += of_members
        return
    found.scores += _scores(name, results["results"][name], _mean_chance(chances.values()))
    found.details[name] = {"task": of_members, **_kinds(members, of_members)}


def _drawn(members: Mapping[str, Any], limit: int, seed: int) -> dict[str, list[int]]:
    """Numbers of documents, `limit` of each task."""
    sizes = {name: len(task.eval_docs) for name, task in members.items()}
    return {n: sorted(random.Random(f"{seed} {n}").sample(range(size), min(limit, size))) for n, size in sizes.items()}


def _chance(task: Any) -> float | None:
    """The mean of 1 / choices; 0 of a task that asks for a text, None where nothing is chosen or asked for."""
    if task.OUTPUT_TYPE == "multiple_choice":
        return fmean(1 / count for count in Counter(request.doc_id for request in task.instances).values())
    return 0.0 if task.OUTPUT_TYPE == "loglikelihood" else None


def _mean_chance(chances: Iterable[float | None]) -> float | None:
    """None where one of them has none."""
    given = list(chances)
    known = [chance for chance in given if chance is not None]
    return fmean(known) if len(known) == len(given) else None


def _scores(task: str, found: Mapping[str, Any], chance: float | None) -> list[Score]:
    """The harness' keys are "acc,none" and "acc_stderr,none": a metric, and a filter of what was generated."""
    scores = []
    for key, value in found.items():
        metric, comma, filtered = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        stderr = found.get(f"{metric}_stderr,{filtered}")
        scores.append(
            Score(
                task=task,
                metric=metric if filtered == "none" else f"{metric} ({filtered})",
                value=float(value),
                stderr=None if stderr is None or isinstance(stderr, str) else float(stderr),
                chance=chance if metric in ACCURACIES else None,
                n=found["sample_len"],
            )
        )
    return scores


def _kinds(members: Mapping[str, Any], scores: Sequence[Score]) -> dict[str, list[Score]]:
    """Means of the members of each kind, as the harness takes a group's: every member weighs the same."""
    kinds: dict[str, dict[str, list[Score]]] = {name: {} for name in FIELDS}
    for score in scores:
        document = members[score.task].eval_docs[0]
        for name in FIELDS:
            if (
                name in document
            ):  # "/": one of BLiMP's paradigms is of "syntax/semantics", the others "syntax_semantics"
                kinds[name].setdefault(document[name].replace("/", "_"), []).append(score)
    return {name: [_mean(kind, of) for kind, of in sorted(by.items())] for name, by in kinds.items() if by}


def _mean(kind: str, scores: Sequence[Score]) -> Score:
    errors = [score.stderr for score in scores if score.stderr is not None]
    return Score(
        task=kind,
        metric=scores[0].metric,
        value=fmean(score.value for score in scores),
        stderr=float(unweighted_mean_stderr(errors)) if len(errors) == len(scores) else None,
        chance=_mean_chance(score.chance for score in scores),
        n=sum(score.n for score in scores),
    )
