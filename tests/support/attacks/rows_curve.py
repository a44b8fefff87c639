"""The curve of rows recovered against points, numbers of docs/threats.md.

    python tests/support/attacks/rows_curve.py docs/images [SEEDS]
    python tests/support/attacks/rows_curve.py docs/images --draw   # the picture, from the table that is there

It writes rows_from_answers.csv and rows_from_answers.png. A row is of one kind of attack: "chosen" by a server that
chooses its points (rows_from_answers.py), "honest" by one that only fits (rows_from_a_fit.py), "sums" of X'X, X'y and
y'y (rows_from_sums.py). Columns are n, points, and shares of rows: recovered, guess (right without any answer), and
ends (recovered of the three smallest and largest x).
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pandas as pd
import torch

from hierfl.models.mixed_effects.search.ranges import ASKED
from hierfl.plots.legible import legend_of_panels
from hierfl.plots.style import line_of, styled

sys.path.append(str(Path(__file__).parents[2]))  # last: there is a folder "hierfl" of tests
from support.attacks.rows_from_a_fit import honest
from support.attacks.rows_from_answers import one
from support.attacks.rows_from_sums import share

#: rows of a site, and points
SIZES, POINTS, FEW = (20, 40, 120, 400), (1, 2, 4, 8, 15, 30, 60), (4, 15, 60)
#: sites of more rows are asked at a few numbers of points
LARGE = 200
SUMS = (5, 10, 20, 40)


def curve(folder: Path, seeds: int) -> None:
    """Writes rows_from_answers.csv and .png."""
    rows: list[dict[str, object]] = []
    for family in ("binomial", "poisson"):
        for n in SIZES:
            rows += [
                {"kind": "chosen", **one(family, n, number, seed, ASKED.steepness)}
                for number in (POINTS if n < LARGE else FEW) for seed in range(seeds)
            ]  # fmt: skip
            rows += [{"kind": "honest", **honest(family, n, seed)} for seed in range(seeds)]
            print(family, n, flush=True)
    rows += [
        {"kind": "sums", "family": "gaussian", "n": n, "points": 1, "seed": seed, **share(n, seed)}
        for n in SUMS for seed in range(seeds)
    ]  # fmt: skip
    table = pd.DataFrame(rows).groupby(["kind", "family", "n", "points"], as_index=False)
    table = table[["recovered", "guess", "ends"]].mean().round(3)
    table.to_csv(folder / "rows_from_answers.csv", index=False)
    draw(table, folder)


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Writes rows_from_answers.png: a panel for each family, a line for each number of rows."""
    with styled() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
        for axis, family in zip(axes, ("binomial", "poisson"), strict=True):
            chosen = table[(table["family"] == family) & (table["kind"] == "chosen")]
            for k, (n, some) in enumerate(chosen.groupby("n")):
                axis.plot(some["points"], some["recovered"], marker="o", label=f"{n} rows", **line_of(k))
                axis.axhline(some["guess"].mean(), color=line_of(k)["color"], linewidth=0.9, linestyle=":")
            axis.set(xscale="log", xticks=POINTS, xticklabels=POINTS, xlabel="points", title=family, ylim=(-0.02, 1.02))
            axis.minorticks_off()
        axes[0].set_ylabel("rows recovered; dotted: guessed")
        legend_of_panels(figure, *axes[0].get_legend_handles_labels())
        figure.savefig(folder / "rows_from_answers.png", dpi=110)
        plt.close(figure)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if sys.argv[2:] == ["--draw"]:
        draw(pd.read_csv(Path(sys.argv[1]) / "rows_from_answers.csv"), Path(sys.argv[1]))
    else:
        curve(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2)
