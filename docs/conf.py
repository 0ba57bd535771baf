"""Settings of Sphinx; `python docs/build_site.py` calls it on the pages that it prepares."""

import inspect
import re
from pathlib import Path

import yaml

import cocondenser_jax

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["repository-code"]

project = "cocondenser_jax"
author = "The cocondenser_jax authors"
copyright = author
version = release = cocondenser_jax.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.mathjax",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "index"
html_theme = "furo"
html_title = f"{project} {version}"
html_show_copyright = False
html_show_sourcelink = False  # to the copy of a page that is made for the site
html_favicon = "static/icon.svg"
highlight_language = "none"  # of blocks that name no language: commands, drawings, BibTeX
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0067a5", "color-brand-content": "#0067a5"},
    "dark_css_variables": {"color-brand-primary": "#6db3e8", "color-brand-content": "#6db3e8"},
    "footer_icons": [
        {"name": "Source code", "url": REPOSITORY, "html": "Source code", "class": ""}
    ],
    "top_of_page_buttons": ["view", "edit"],
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


def _link_source(app, pagename, templatename, context, doctree):
    """Links a page to its source in the repository, which has another name; none if generated."""
    source = (context.get("meta") or {}).get("source")
    if source:
        context["theme_source_view_link"] = f"{REPOSITORY}/blob/main/{source}"
        context["theme_source_edit_link"] = f"{REPOSITORY}/edit/main/{source}"


def linkcode_resolve(domain, info):
    """Returns where the code of a public name is; None for a field, and for another library's."""
    found = cocondenser_jax
    for part in info["fullname"].split("."):
        found = getattr(found, part, None)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return None
    found = inspect.unwrap(found)
    file = Path(inspect.getsourcefile(found))
    if not file.is_relative_to(ROOT):
        return None
    _, line = inspect.getsourcelines(found)
    return f"{REPOSITORY}/blob/main/{file.relative_to(ROOT).as_posix()}#L{line}"


def setup(app):
    """Registers what docs/build_site.py needs."""
    app.connect("autodoc-process-docstring", _drop_default_docstrings)
    app.connect("html-page-context", _link_source)
