"""One self-contained page: text, tables and pictures in one file, nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from hierfl.metrics.registry import in_percent

from .figures import caption


@dataclass
class Section:
    """A part of a page.

    Attributes:
        heading: above it.
        text: paragraphs.
        tables: (columns, rows) each.
        pictures: (what it shows, path of a png) each.
        after: paragraphs below.
    """

    heading: str
    text: Sequence[str] = ()
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = ()
    pictures: Sequence[tuple[str, Path]] = ()
    after: Sequence[str] = field(default=())


def render(title: str, about: str, sections: Sequence[Section]) -> str:
    """The page; whatever text it is given is shown as text."""
    return _template().render(title=title, about=about, sections=sections)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("hierfl.experiments.report", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"base64": lambda path: base64.b64encode(path.read_bytes()).decode(), "caption": caption}
    return environment.get_template("page.html.j2")


def format_value(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1%}" if in_percent(name) else f"{value:.4g}"
    return str(value)


def key_value_rows(table: Mapping[str, Any]) -> list[list[str]]:
    return [[name, format_value(name, value)] for name, value in table.items() if value is not None and value != ""]
