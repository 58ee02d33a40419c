"""Verbs that train, evaluate and compare, and that show what came of it."""

VERBS = {
    "compare": "compare.compare",
    "study": "study.study",
    "train": "train.train",
    "report": "report.report",
    "open": "report.open_page",
    "explain": "explain.explain",
    "diagnose": "diagnose.diagnose",
    "replay": "replay.replay",
    "headroom": "headroom.headroom",
    "transfer": "transfer.transfer",
    "init-recipe": "train.init_recipe",
    "recipes": "train.list_recipes",
    "translate": "translation.translate",
    "evaluate translation": "translation.evaluate",
    "evaluate classification": "compare.classification",
    "evaluate zero-shot": "zero_shot.zero_shot",
}
