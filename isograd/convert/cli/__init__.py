"""Verbs that take models in and hand them out."""

VERBS = {
    "import": "export.import_hf",
    "export": "export.export",
    "graft": "surgery.graft",
    "init": "surgery.init",
}
