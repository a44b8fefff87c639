"""How large clients are, over many draws of a split: pFedVEM's Figures 3 to 6.

    hierfl table pfedvem-figure-3 --data-root DATA --out OUT

No run is needed. What OUT/sizes.json holds is not drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.data.datasets import registry
from hierfl.data.partition.split_pool import split_pool
from hierfl.data.pool import PooledDataset
from hierfl.plots.saving import save
from hierfl.plots.style import styled

from ..grid import read_cells
from ..messages import to_stderr
from ..run_folder.files import write_text

#: of a split's J sizes, each the mean over splits
QUANTILES_SHOWN = {"smallest": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "largest": 1.0}
#: ends of the classes of size that are counted for the figure
EDGES = np.unique(np.geomspace(1, 1e6, 61).round().astype(int))


def sizes_of(pool: PooledDataset, clients: int, split: str, splits: int) -> dict[str, Any]:
    """Sizes of training sets under seeds 0, 1, ...: quantiles of each split, and counts of all by classes of size."""
    sizes = np.array([[len(i) for i in split_pool(pool, clients, split, seed).train] for seed in range(splits)])
    quantiles = {name: np.quantile(sizes, q, axis=1).mean() for name, q in QUANTILES_SHOWN.items()}
    return {**quantiles, "counts": np.histogram(sizes, EDGES)[0].tolist()}


def run_sizes(
    data: Sequence[str], clients: Sequence[int], root: Path, splits: int, split_given: str | None, out: Path,
    collect: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Draws what is missing; cells with data, clients, split and sizes.

    Args:
        data, clients: which.
        root: where data sets lie.
        splits: how many are drawn of each.
        split_given: the split; None for the data set's.
        out: the folder of sizes.json.
        collect: draw nothing.

    Raises:
        UserError: for data that are not there, a split that cannot be, or a folder with another number of splits.
    """
    path, facts = out / "sizes.json", {"experiment": "client sizes", "splits": splits}
    for name in () if collect else data:
        pool, split = None, split_given or registry.defaults(name).split
        for many in clients:
            key, kept = {"data": name, "clients": many, "split": split}, read_cells(path, facts)
            if any(key.items() <= cell.items() for cell in kept):
                continue
            to_stderr()(f"{name}, {many} clients: {splits} splits")
            pool = pool or registry.load(name, root)
            cells = [*kept, {**key, **sizes_of(pool, many, split, splits)}]
            write_text(path, json.dumps({**facts, "cells": cells}) + "\n")
    return read_cells(path, facts)


def draw_sizes(cells: Sequence[Mapping[str, Any]], splits: int, path: Path) -> None:
    """Histograms of sizes, on a logarithmic axis; a line for each number of clients."""
    with styled() as plt:
        figure, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
        for cell in cells:
            ax.stairs(np.array(cell["counts"]) / splits, EDGES, lw=1.6, label=f"{cell['clients']} clients")
        top = max(np.flatnonzero(cell["counts"]).max(initial=0) for cell in cells) + 1
        ax.set(xscale="log", xlim=(1, EDGES[top]), xlabel="training examples of a client", ylabel="clients of a split")
        ax.set_title(f"{cells[0]['data']}, {cells[0]['split']}: mean of {splits:,} splits")
        ax.legend(loc="best")
        save(plt, figure, path)
