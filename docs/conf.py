"""The documentation site: `python -m sphinx -W -b html docs build/site`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "gflow"
_about = (Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8")
version = release = re.findall(r'^version = "(.+)"$', _about, re.MULTILINE)[0]
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
html_title = f"gflow {version}"
# scripts/versioned_docs.py builds several versions beside each other, and says which
templates_path = ["site/templates"]
html_context = {
    "version_shown": os.environ.get("GFLOW_DOCS_VERSION", ""),
    "versions": [v for v in os.environ.get("GFLOW_DOCS_VERSIONS", "").split(",") if v],
}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "monokai"
