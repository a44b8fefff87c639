"""Sphinx: MyST pages, and a reference whose modules are listed (an editable install hides three of the four floors)."""

import importlib.metadata
import re

project = "hierfl"
author = "The hierfl founders"
release = importlib.metadata.version("hierfl")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "hierfl"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
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


def setup(app):
    """Before napoleon reads them."""
    app.connect("autodoc-process-docstring", plain_docstrings, priority=100)
