"""One self-contained page: text, tables and pictures in one file, nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from .figures import caption

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #59636e; --paper: #fff; --line: #d9dee3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --quiet: #9aa4ae; --paper: #16191d; --line: #343a41; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { max-width: 46rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; }
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; }
figure img { width: 100%; height: auto; background: #fff; border-radius: 6px; border: 1px solid var(--line); }
figcaption { color: var(--quiet); font-size: .85rem; }
"""


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
    """The page."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # (a page without an icon is asked for one)
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n<body>',
        f"<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>",
    ]
    for section in sections:
        parts.append(f"<section>\n<h2>{escape(section.heading)}</h2>")
        parts += [f"<p>{escape(text)}</p>" for text in section.text]
        for columns, rows in section.tables:
            head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
            body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            parts.append(
                f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
            )
        if section.pictures:
            parts.append('<div class="pictures">')
            for name, path in section.pictures:
                data = base64.b64encode(path.read_bytes()).decode()
                parts.append(
                    f'<figure><img alt="{escape(name)}" src="data:image/png;base64,{data}">'
                    f"<figcaption>{escape(caption(name, path))}</figcaption></figure>"
                )
            parts.append("</div>")
        parts += [f"<p>{escape(text)}</p>" for text in section.after]
        parts.append("</section>")
    return "\n".join([*parts, "</body>\n</html>\n"])


def format_value(name: str, value: Any) -> str:
    if isinstance(value, float):
        share = name.endswith(("accuracy", "coverage90", "accuracy_pooled"))
        return f"{value:.1%}" if share else f"{value:.4g}"
    return str(value)


def key_value_rows(table: Mapping[str, Any]) -> list[list[str]]:
    return [[name, format_value(name, value)] for name, value in table.items() if value is not None and value != ""]
