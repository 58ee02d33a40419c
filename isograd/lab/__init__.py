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

__getattr__ = doors(
    __name__,
    {
        "Boundary": "isograd.lab.study.boundary",
        "Model": "isograd.lab.train.run",
        "PairsSection": "isograd.lab.train.tasks.translation",
        "RateSearch": "isograd.lab.study.boundary",
        "Run": "isograd.lab.train.run",
        "TextData": "isograd.lab.train.tasks.language",
        "TextTraining": "isograd.lab.train.tasks.language",
        "TranslationModel": "isograd.lab.train.tasks.translation",
        "TranslationRun": "isograd.lab.train.tasks.translation",
        "TranslationTraining": "isograd.lab.train.tasks.translation",
        "compare": "isograd.lab.study.compare",
        "constant_scores": "isograd.lab.evaluate.classification",
        "draw": "isograd.lab.report.pages.runs",
        "load_causal_model": "isograd.lab.evaluate.loading",
        "load_corpus": "isograd.lab.data.corpus",
        "load_glue": "isograd.lab.data.glue",
        "load_parallel": "isograd.lab.data.parallel",
        "load_run": "isograd.lab.train.recipe",
        "load_study": "isograd.lab.study.plan",
        "load_task": "isograd.lab.train.train",
        "load_tasks": "isograd.lab.evaluate.harness_tasks",
        "next_rate": "isograd.lab.study.boundary",
        "on_ray": "isograd.lab.study.engine.on_ray",
        "plan": "isograd.lab.study.compare",
        "run_cells": "isograd.lab.study.engine.runner",
        "write_report": "isograd.lab.report.pages.runs",
        "zero_shot": "isograd.lab.evaluate.zero_shot",
    },
)

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
