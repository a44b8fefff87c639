"""One self-contained page: text, tables and pictures in one file, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from hierfl.metrics.registry import in_percent

from .figures import caption

#: rows from which on a table can be sorted, and scrolls in a box of its own
SORTED_ROWS = 10
#: pixels of the page for an inch of a picture, at which names of its rows can be read; pixels for an inch in its file
PIXELS, PICTURE_DPI = 76, 150
#: sorts a table's rows by the column whose heading is pressed: numbers as numbers, empty cells last
SCRIPT = """
for (const table of document.querySelectorAll("table.sorted")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    const number = text => Number(text.replace(/[,%]/g, ""));
    const rows = [...table.tBodies[0].rows].map(row => [row.cells[column].textContent, row]);
    const full = rows.filter(([text]) => text !== ""), numbers = full.every(([text]) => !isNaN(number(text)));
    const order = new Intl.Collator(undefined, {numeric: true}).compare;
    full.sort(([a], [b]) => (up ? 1 : -1) * (numbers ? number(a) - number(b) : order(a, b)));
    const empty = rows.filter(([text]) => text === "");
    table.tBodies[0].append(...[...full, ...empty].map(([, row]) => row));
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  }));
}
"""
#: what a browser may do with the page: show its pictures, and run this script and no other
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
)


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


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The page; whatever text it is given is shown as text."""
    return _template().render(
        title=title, about=subtitle, sections=sections, script=SCRIPT, policy=POLICY, sorted_rows=SORTED_ROWS
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("hierfl.experiments.report", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {
        "base64": lambda path: base64.b64encode(path.read_bytes()).decode(), "caption": caption,
        "pixels": legible_width,
    }  # fmt: skip
    return environment.get_template("page.html.j2")


def legible_width(path: Path) -> int:
    """Pixels of a page in which the text of a picture can be read: its inches, from the head of the png."""
    head = path.read_bytes()[16:20]
    return round(PIXELS * struct.unpack(">I", head)[0] / PICTURE_DPI)


def format_value(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1%}" if in_percent(name) else f"{value:.4g}"
    return str(value)


def key_value_rows(table: Mapping[str, Any]) -> list[list[str]]:
    return [[name, format_value(name, value)] for name, value in table.items() if value is not None and value != ""]
