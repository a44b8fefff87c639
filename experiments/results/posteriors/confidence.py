"""What PFedEB says of each client: effective parameters, weight in w, surprise; one client has its labels shuffled.

    python experiments/results/posteriors/confidence.py OUT.csv OUT.png

60 clients of 5 to 500 examples of three classes, w ~ N(0, 4), rho 0.5; the labels of one with 52 examples are in any
order. One rho shared (spreads=blocks), and one of each client's own (spreads=clients). The table is read where it is
there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import hierfl  # noqa: F401  # imported first: tests/ has a folder hierfl as well

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.simulated_heads import fitted, simulated

CLIENTS, STRANGE, RHO = 60, 30, 0.5


def table() -> pd.DataFrame:
    """A row for each client and way of sharing spreads."""
    sizes = tuple(int(n) for n in np.geomspace(5, 500, CLIENTS).round())
    truth, frames = simulated("softmax", RHO, 0, sizes, shuffled=(STRANGE,), s_w=2.0), []
    for spreads in ("blocks", "clients"):
        run = fitted(truth, 40, spreads=spreads, nodes="off", points=16, w_scale=0.0)
        clients = run.clients[["client", "n", "gamma", "weight", "surprise", "uncertainty"]].assign(spreads=spreads)
        frames.append(clients.assign(shuffled=clients["client"] == f"place-{STRANGE:03d}"))
    return pd.concat(frames, ignore_index=True).round(5)


def drawn(df: pd.DataFrame, path: Path) -> None:
    """Four panels: gamma, weight and surprise by size, and the weights of the two ways."""
    from matplotlib.figure import Figure

    shared, own = (df[df["spreads"] == spreads].reset_index(drop=True) for spreads in ("blocks", "clients"))
    figure = Figure(figsize=(11, 2.9), layout="constrained")
    axes = figure.subplots(1, 4)
    titles = {"gamma": "effective parameters", "weight": "weight in w", "surprise": "surprise"}
    for ax, (name, title) in zip(axes, titles.items(), strict=False):
        for which, colour in ((~shared["shuffled"], "0.3"), (shared["shuffled"], "C3")):
            ax.scatter(shared["n"][which], shared[name][which], s=14, color=colour)
        ax.set(xscale="log", xlabel="examples", title=title)
    axes[2].set_yscale("log")
    axes[2].set_yticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    axes[2].minorticks_off()
    ax = axes[3]
    for which, colour, label in ((~own["shuffled"], "0.3", None), (own["shuffled"], "C3", "labels shuffled")):
        ax.scatter(shared["weight"][which], own["weight"][which], s=14, color=colour, label=label)
    top = float(max(shared["weight"].max(), own["weight"].max()))
    ax.plot([0, top], [0, top], color="0.7", lw=1)
    ax.set(xlabel="weight, one rho", ylabel="weight, each its own")
    ax.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main(csv: Path, png: Path) -> None:
    """Fits, or reads what was fitted, and draws."""
    torch.set_num_threads(1)
    if not csv.is_file():
        table().to_csv(csv, index=False)
    drawn(pd.read_csv(csv), png)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
