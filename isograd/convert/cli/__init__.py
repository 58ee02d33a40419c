"""Verbs that take models in and hand them out."""

VERBS = {
    "import hf": "export.import_hf",
    "export": "export.export",
    "fold": "export.fold",
    "graft": "surgery.graft",
    "init": "surgery.init",
}
