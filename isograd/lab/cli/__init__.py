"""Verbs that train, evaluate and compare, and that show what came of it."""

VERBS = {
    "compare": "compare.compare",
    "study": "study.study headroom.headroom",
    "train": "train.train train.init_recipe",
    "report": "report.report",
    "explain": "explain.explain",
    "replay": "replay.replay",
    "transfer": "transfer.transfer",
    "show": "recipes.show_recipe",
    "translate": "translation.translate",
    "evaluate": "translation.evaluate compare.classification zero_shot.zero_shot",
}
