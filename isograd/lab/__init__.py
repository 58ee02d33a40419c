"""What trains and compares: data, training, evaluation, studies, reports, recipes, statistics."""

from typing import TYPE_CHECKING

from isograd.doors import doors

if TYPE_CHECKING:
    from isograd.lab.data.corpus import load_corpus
    from isograd.lab.data.glue import load_glue
    from isograd.lab.data.parallel import load_parallel
    from isograd.lab.evaluate.classification import constant_scores
    from isograd.lab.evaluate.harness_tasks import load_tasks
    from isograd.lab.evaluate.loading import load_causal_model
    from isograd.lab.evaluate.zero_shot import zero_shot
    from isograd.lab.report.pages.runs import draw, write_report
    from isograd.lab.study.boundary import Boundary, RateSearch, next_rate
    from isograd.lab.study.compare import compare, plan
    from isograd.lab.study.engine.on_ray import on_ray
    from isograd.lab.study.engine.runner import run_cells
    from isograd.lab.study.plan import load_study
    from isograd.lab.train.recipe import load_run
    from isograd.lab.train.run import Model, Run
    from isograd.lab.train.tasks.language import TextData, TextTraining
    from isograd.lab.train.tasks.translation import PairsSection, TranslationModel, TranslationRun, TranslationTraining
    from isograd.lab.train.train import load_task

__getattr__ = doors(__name__)

__all__ = [
    "Boundary",
    "Model",
    "PairsSection",
    "RateSearch",
    "Run",
    "TextData",
    "TextTraining",
    "TranslationModel",
    "TranslationRun",
    "TranslationTraining",
    "compare",
    "constant_scores",
    "draw",
    "load_causal_model",
    "load_corpus",
    "load_glue",
    "load_parallel",
    "load_run",
    "load_study",
    "load_task",
    "load_tasks",
    "next_rate",
    "on_ray",
    "plan",
    "run_cells",
    "write_report",
    "zero_shot",
]
