"""One self-contained page of a run or a comparison: text, tables and pictures in one file, nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import folder as folders

if TYPE_CHECKING:
    from .compare import Comparison

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
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
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


def html(title: str, about: str, sections: Sequence[Section]) -> str:
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
                    f"<figcaption>{escape(name)}</figcaption></figure>"
                )
            parts.append("</div>")
        parts += [f"<p>{escape(text)}</p>" for text in section.after]
        parts.append("</section>")
    return "\n".join([*parts, "</body>\n</html>\n"])


def _pictures(folder: Path) -> list[tuple[str, Path]]:
    """The single pictures of a folder; what joins several is left out."""
    found = sorted((folder / "figures").glob("*.png"))
    return [(path.stem.replace("-", " "), path) for path in found if path.stem not in ("overview", "features")]


def _value(name: str, value: Any) -> str:
    if isinstance(value, float):
        share = name.endswith(("accuracy", "coverage90", "accuracy_pooled"))
        return f"{value:.1%}" if share else f"{value:.4g}"
    return str(value)


def _flat(table: Mapping[str, Any]) -> list[list[str]]:
    return [[name, _value(name, value)] for name, value in table.items() if value is not None and value != ""]


def of_run(folder: Path) -> Path:
    """Writes ``report.html`` of a finished run: what came out, pictures, configuration, versions and cost."""
    config, summary = folders.read_config(folder), folders.read_json(folder / "summary.json")
    title = f"{summary['method']} on {summary['data']}"
    about = f"{summary['clients']} clients, {summary['split']}, {summary['rounds']} rounds, seed {summary['seed']}."
    kinds = {"pm": "personal, at the posterior mean", "pm_draws": "personal, averaged over draws", "gm": "global"}
    names = [
        n
        for n in ("accuracy", "nll", "brier", "ece", "rmse", "crps", "coverage90")
        if summary.get(f"pm_{n}") is not None
    ]
    rows = []
    for when, numbers in (("last round", summary), ("best by validation", summary.get("best") or {})):
        for kind, what in kinds.items():
            values = [numbers.get(f"{kind}_{name}") for name in names]
            if any(v is not None for v in values):
                shown = ["" if v is None else _value(name, v) for name, v in zip(names, values, strict=True)]
                rows.append([what, when, *shown])
    rest = {k: v for k, v in summary.items() if not k.startswith(("pm_", "gm_")) and k not in ("best", "versions")}
    sections = [
        Section("Test data", tables=[(["model", "when", *names], rows)] if rows else ()),
        Section("Pictures", pictures=_pictures(folder)),
        Section("All else that came out", tables=[(["what", "value"], _flat(rest))]),
        Section(
            "Configuration",
            tables=[(["option", "value"], _flat(config["run"])), (["setting", "value"], _flat(config["settings"]))],
        ),
        Section("Versions", tables=[(["package", "version"], _flat(summary["versions"]))]),
    ]
    folders.write_text(folder / "report.html", html(title, about, sections))
    return folder / "report.html"


def of_comparison(found: Comparison, folder: Path) -> Path:
    """Writes ``report.html`` of a comparison into its folder."""
    from .compare import heading, shown

    sections = []
    for name, one in zip(("Gains", "Who gains", "Leave-one-out"), shown(found), strict=False):
        kind = {"Gains": "gain", "Who gains": "size"}.get(name)
        pictures = [p for p in _pictures(folder) if kind and p[1].stem.startswith(kind)]
        after = [one.after.strip()] if one.after else []
        sections.append(Section(name, [one.before], [(one.columns, one.rows)], pictures, after))
    runs = [[v.name, str(seed), str(run.resolve())] for v in found.variants for seed, run in sorted(v.runs.items())]
    sections.append(Section("Runs", tables=[(["", "seed", "folder"], runs)]))
    for v in found.variants:
        sections.append(
            Section(f"Configuration: {v.name}", tables=[(["setting", "value"], _flat(v.setting["settings"]))])
        )
    sections.append(Section("Versions", tables=[(["package", "version"], _flat(folders.versions()))]))
    first = found.variants[0].name
    folders.write_text(folder / "report.html", html(f"{first} against others", heading(found), sections))
    return folder / "report.html"
