"""Verbs of the papers: their items, their claims, models of their own code."""

VERBS = {
    "reproduce": "reproduce.reproduce theory.theory",
    "import": "imports.import_fairseq imports.import_torch",
}
