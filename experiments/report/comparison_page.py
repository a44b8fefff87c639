"""The page of a comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..compare.display import display_tables, heading
from ..run_folder.files import versions, write_text
from .figures import in_section, pictures_of
from .page import Section, key_value_rows, render

if TYPE_CHECKING:
    from ..compare.comparison import Comparison


def path_from(folder: Path, run: Path) -> str:
    """A run's path as seen from a comparison's folder: both may be moved together."""
    return os.path.relpath(run.resolve(), folder.resolve())


def write_comparison_page(compared: Comparison, folder: Path) -> Path:
    """Writes ``report.html`` of a comparison into its folder."""

    sections = []
    for name, shown_table in zip(("Gains", "Who gains", "Leave-one-out"), display_tables(compared), strict=False):
        pictures = in_section(pictures_of(folder), "comparison", name)
        after = [shown_table.after.strip()] if shown_table.after else []
        sections.append(Section(name, [shown_table.before], [(shown_table.columns, shown_table.rows)], pictures, after))
    runs = [
        [v.name, str(seed), path_from(folder, run)] for v in compared.variants for seed, run in sorted(v.runs.items())
    ]
    sections.append(Section("Runs", tables=[(["", "seed", "folder"], runs)]))
    for v in compared.variants:
        sections.append(
            Section(f"Configuration: {v.name}", tables=[(["setting", "value"], key_value_rows(v.setting["settings"]))])
        )
    sections.append(Section("Versions", tables=[(["package", "version"], key_value_rows(versions()))]))
    first = compared.variants[0].name
    write_text(folder / "report.html", render(f"{first} against others", heading(compared), sections))
    return folder / "report.html"
