"""What the gallery's fits gave beside NUTS, over all data seeds: sentences of the pages, and the table of the index."""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np
from support.gallery import GALLERY

FITS = GALLERY.parents[1] / "experiments" / "results" / "gallery"
HEAD = (
    "| model | data seeds | means, sd | sds | ends, sd | clients: means, sd | sds | ends, sd | rounds | kB | "
    "s | NUTS, s |\n|---|" + "---:|" * 11
)
#: what the fits of a model are to be within: means and interval ends in standard deviations, sds as a ratio
MEAN, SD, END = 0.1, 0.1, 0.15


def fits(name: str) -> list[dict[str, str]]:
    """Rows of a model's fits, of globals and of clients, by data seed."""
    rows = []
    for path in sorted(FITS.glob("fits-seed*.csv")):
        rows += [row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if row["model"] == name]
    return rows


def worst(rows: Sequence[dict[str, str]]) -> tuple[float, float, float]:
    """Largest errors of means and interval ends, in sds, and of sds, as a ratio less one."""
    mean, sd, end = (max((float(row[what]) for row in rows), default=np.nan) for what in ("mean", "sd", "end"))
    return mean, float(np.expm1(sd)), end


def sentences(name: str, gradients: int) -> list[str]:
    """Sentences of a model's page."""
    rows = fits(name)
    if not rows:
        return []
    first, seeds = rows[0], len({row["seed"] for row in rows})
    mean, sd, end = worst(rows)
    sets = "the data set" if seeds == 1 else f"{seeds} data sets"
    lines = [
        f"With `draws=4000, worth=4000, points=2000`, on {sets}, means were within {mean:.2f} sd, sds within "
        f"{100 * sd:.0f} %, and ends of 90 % intervals within {end:.2f} sd."
    ]
    least = min(float(row["worth"]) for row in rows)
    if least < 4000:
        lines.append(f"Points were worth {least:,.0f} draws at least, not 4,000.")
    return [
        *lines,
        f"The first of these fits took {float(first['seconds']):.0f} s on one busy core; "
        f"NUTS took {float(first['nuts_seconds']):.0f} s, with {gradients:,} gradients.",
    ]


def table(names: Sequence[str]) -> str:
    """Largest errors of each model over all its data seeds, mean rounds and bytes, and what both cost."""
    lines = [HEAD]
    for name in names:
        rows = fits(name)
        if not rows:
            continue
        cells = [f"[{name}]({name}.md)", str(len({row["seed"] for row in rows}))]
        for of in ("globals", "clients"):
            mean, sd, end = worst([row for row in rows if row["of"] == of])
            cells += [
                f"{value:{form}}{mark}{'*' if value > most else ''}"
                for value, form, mark, most in (
                    (mean, ".2f", "", MEAN), (100 * sd, ".0f", " %", 100 * SD), (end, ".2f", "", END),
                )
            ]  # fmt: skip
        means = [np.mean([float(row[what]) for row in rows]) for what in ("rounds", "bytes", "seconds", "nuts_seconds")]
        cells += [f"{means[0]:.0f}", f"{means[1] / 1000:.0f}", f"{means[2]:.0f}", f"{means[3]:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
