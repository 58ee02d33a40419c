"""Sphinx: `make docs` builds the site of these pages into docs/_build/html. Nothing is fetched, warnings are errors."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(Path(__file__).parents[1])]

import isograd  # noqa: E402

project = "isograd"
version = release = isograd.__version__
copyright = "the isograd authors"  # noqa: A001  # Sphinx's name for it

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "docstrings",
    "site_pages",
    "tables",
    "llms",
    "links",
]
exclude_patterns = ["_build", "_ext", "_static", "images"]
highlight_language = "text"

html_theme = "furo"
html_title = "isograd"
html_static_path = ["_static"]
html_css_files = ["isograd.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_theme_options = {"top_of_page_buttons": [], "navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp, .go"
pygments_style = "friendly"
pygments_dark_style = "native"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

# What tutorials start prints for a page, not for a terminal: no bars, no colours, wide enough for its tables.
os.environ |= {"TQDM_DISABLE": "1", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # the command isograd
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
