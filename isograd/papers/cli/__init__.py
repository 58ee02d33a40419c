"""Verbs of the papers: their items, their claims, models of their own code."""

VERBS = {
    "reproduce": "reproduce.reproduce",
    "theory": "theory.theory",
    "import fairseq": "imports.import_fairseq",
    "import torch": "imports.import_torch",
}
