"""Settings of Sphinx; `python docs/build_site.py` calls it on the pages that it prepares."""

import re
from pathlib import Path

import yaml

import cocondenser_jax

CITATION = Path(__file__).parents[1] / "CITATION.cff"
REPOSITORY = yaml.safe_load(CITATION.read_text(encoding="utf-8"))["repository-code"]

project = "cocondenser_jax"
author = "The cocondenser_jax authors"
copyright = author
version = release = cocondenser_jax.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.mathjax",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "index"
html_theme = "furo"
html_title = f"{project} {version}"
html_show_copyright = False
html_favicon = "static/icon.svg"
highlight_language = "none"  # of blocks that name no language: commands, drawings, BibTeX
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0067a5", "color-brand-content": "#0067a5"},
    "dark_css_variables": {"color-brand-primary": "#6db3e8", "color-brand-content": "#6db3e8"},
    "footer_icons": [
        {"name": "Source code", "url": REPOSITORY, "html": "Source code", "class": ""}
    ],
}
html_static_path = ["static"]
html_css_files = ["site.css"]
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = True
smartquotes = False  # two hyphens begin a flag


def _drop_default_docstrings(app, what, name, obj, options, lines):
    """Empties the docstrings that Python and Flax give to fields and methods of every class."""
    if lines and re.match(r"Alias for field number|Initialize self", lines[0]):
        lines.clear()


def setup(app):
    """Registers what docs/build_site.py needs."""
    app.connect("autodoc-process-docstring", _drop_default_docstrings)
