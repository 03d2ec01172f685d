"""The documentation site: `python -m sphinx -W -b html docs build/site`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "gflow"
author = "gflow"
copyright = ""
html_show_copyright = html_show_sphinx = False

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "house_docstrings",
    "mlir_lexer",
    "notebooks",
]
exclude_patterns = ["site"]
nitpicky = False

# Markdown: anchors as GitHub makes them, so that a link works in the repository and on the site
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "fieldlist"]

# docstrings say `name` for code, and name a parameter's meaning, not its type, in prose
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "gflow"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "monokai"
