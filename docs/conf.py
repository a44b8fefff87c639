"""Sphinx: MyST pages, and a page of each module, which ``site_pages`` writes before Sphinx looks for pages."""

import importlib.metadata
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import site_pages

project = "hierfl"
author = "The hierfl founders"
release = importlib.metadata.version("hierfl")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "hierfl"
html_show_sourcelink = False
exclude_patterns = ["_build"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
napoleon_use_ivar = True
# Addresses of other projects' objects are in inventories.toml: a build needs no network.
intersphinx_mapping = site_pages.write_inventories()
suppress_warnings = ["ref.python"]  # two dataclasses may both have a field n


def plain_docstrings(app, what, name, obj, options, lines):
    """Docstrings here are plain text: stars and bars are themselves, and what is indented after a colon is literal."""
    for number, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
        lines[number] = "``".join(parts)
        following = lines[number + 1 : number + 3]
        indented = len(following) == 2 and not following[0].strip() and following[1].startswith("    ")
        if indented and line.endswith(":") and not line.endswith("::"):
            lines[number] += ":"
    literal = False
    for number, line in enumerate(lines):
        if line.endswith("::"):
            literal = True
        elif line.strip() and not line.startswith(" "):
            literal = False
        if literal:
            lines[number] = re.sub(r"\\([*|])", r"\1", line)


def list_modules(app, name, content):
    """The reference is shown as a list of links."""
    if name == "reference":
        content[0] = site_pages.linked(content[0])


def forward(app, error):
    """Old addresses lead to the new ones."""
    if error is None and app.builder.name == "html":
        site_pages.write_forwarding_pages(Path(app.outdir))


def setup(app):
    """Docstrings are changed before napoleon reads them."""
    site_pages.write_api_pages()
    app.connect("autodoc-process-docstring", plain_docstrings, priority=100)
    app.connect("source-read", list_modules)
    app.connect("build-finished", forward)
