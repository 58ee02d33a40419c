"""Models of other libraries in, isograd's models out: both directions side by side, measured by one parity report."""

from typing import TYPE_CHECKING

from isograd.doors import doors

if TYPE_CHECKING:
    from isograd.convert.export import export_folder
    from isograd.convert.folding import fold
    from isograd.convert.parity import ParityReport, Runner, measure
    from isograd.convert.pretrained import from_transformers, import_pretrained, to_transformers

__getattr__ = doors(__name__)

__all__ = [
    "ParityReport",
    "Runner",
    "export_folder",
    "fold",
    "from_transformers",
    "import_pretrained",
    "measure",
    "to_transformers",
]
