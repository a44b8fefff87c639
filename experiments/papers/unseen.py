"""A client of a domain that no other client has: how well is it served, and after how many examples of its own?

    hierfl table pfedv-new-client --conditions synthetic-digits --data-root DATA --out OUT

Every method is fitted to the other domains. What shares all of its model serves the new client as it is; what has
something of its own for every client (a last layer, or batch norm) trains it on a few of the new client's examples,
beginning at the mean of the other clients', everything shared held (``predict_new_client``): as many steps however many
examples there are. Accuracy on the domain's whole test set. What OUT/unseen.json holds is not run again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hierfl.data.arrays import make_pool
from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.data.pool import PooledDataset
from hierfl.errors import UserError, unknown
from hierfl.inference.run.fit import Fit
from hierfl.nn.networks.build import architecture

from ..build import options_of
from ..configure import configure
from ..grid import Cell, read_cells
from ..messages import to_stderr
from ..methods import load
from ..run_folder.files import write_text
from .cells import table_cell
from .definition import EntryKey
from .means import mean_and_error, percent
from .read_definition import shipped

#: rows of pfedv-2 that a new client can be served by
NAMES = (
    "fedavg", "fedbn", "fedbn-statistics", "fedv", "fedv-gaussian-prior", "pfedv-flat", "pfedv-own-norm",
    "pfedv-gaussian-prior", "pfedv", "pfedhb",
)  # fmt: skip
NUM_GIVEN_ROWS = (20, 100, 500)
STEPS = 300


def row_cell(name: str, data: str, seed: int, selection: Mapping[str, Any]) -> Cell:
    """What a row of pfedv-2 is on some data.

    Raises:
        UserError: for settings that tell rows apart.
    """
    table = shipped("pfedv-2")
    if data not in table.data:
        raise unknown("data set of domains", data, table.data)
    return table_cell(table, EntryKey(data, 0, "", name), seed, selection)


def without(pool: PooledDataset, domain: str) -> tuple[PooledDataset, dict[str, np.ndarray]]:
    """A pool without one of its domains, standardised by what is left, and that domain's arrays.

    Raises:
        UserError: if it has no such domain.
    """
    if pool.client_train is None or pool.client_test is None:
        raise UserError(f"{pool.name} has no domains")
    train, test = pool.client_train.astype(str) == domain, pool.client_test.astype(str) == domain
    if not train.any():
        raise UserError(f"{pool.name} has no domain {domain!r}; it has {', '.join(np.unique(pool.client_train))}")
    rest = make_pool(
        f"{pool.name} without {domain}", pool.x_train[~train], pool.y_train[~train], pool.x_test[~test],
        pool.y_test[~test], client_train=pool.client_train[~train], client_test=pool.client_test[~test],
    )  # fmt: skip
    new = {"x": pool.x_train[train], "y": pool.y_train[train], "x_test": pool.x_test[test], "y_test": pool.y_test[test]}
    return replace(rest, origin=pool.origin), new


def serve(
    name: str,
    pool: PooledDataset,
    new: dict[str, np.ndarray],
    seed: int,
    given: Sequence[int],
    steps: int,
    selection: dict[str, Any],
) -> dict[str, float]:
    """Accuracies for the new client of one method with one seed, by how many examples it has given ("0" for none)."""
    cell = row_cell(name, selection["data"], seed, selection["settings"])
    method, settings = cell.method, cell.settings
    loaded = load(method)
    domains = len(np.unique(pool.client_train))  # type: ignore[arg-type]
    run_options = {
        "clients": domains,
        "validation_fraction": 0.0,
        "evaluate_every": 1000,
        **selection["run"],
        "seed": seed,
    }
    config = configure(method, selection["data"], run_options, settings)
    run = config.run
    federation = Federation.from_pool(pool, domains, run.split, validation=0.0, seed=seed)
    network = architecture(run.network, federation, latent=loaded.cls.latent)
    options = replace(options_of(config), splits=())
    fitted = Fit(loaded.cls(network, **config.settings), federation, options).run(progress=False)
    x_test, y_test = torch.as_tensor(new["x_test"]), torch.as_tensor(new["y_test"])
    order = np.random.default_rng([seed, *b"new client"]).permutation(len(new["y"]))

    def accuracy(selection: torch.Tensor) -> float:
        return float((selection.argmax(-1).cpu() == y_test).double().mean())

    if fitted.fitted.method.has_global_model:
        return {"0": accuracy(fitted.predict_new_client(x_test, draws=0))}
    accuracies = {}
    for number in given:
        own = torch.as_tensor(new["x"][order[:number]]), torch.as_tensor(new["y"][order[:number]])
        epochs = -(-steps // -(-number // config.settings["batch"]))
        accuracies[str(number)] = accuracy(fitted.predict_new_client(x_test, draws=0, given=own, rounds=epochs))
    return accuracies


def keep(path: Path, facts: Mapping[str, Any], cell: dict[str, Any]) -> None:
    """Adds a cell to the file, and writes the table beside it."""
    cells = [*read_cells(path, facts), cell]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({**facts, "cells": cells}, indent=1) + "\n")
    write_text(path.with_suffix(".md"), markdown(cells, facts["given"]))


def markdown(cells: Sequence[dict[str, Any]], given: Sequence[int]) -> str:
    """Methods down, examples given across: mean and standard error over seeds."""
    columns = ["0", *map(str, given)]
    lines = [f"| accuracy, % | {' | '.join(f'{c} examples' for c in columns)} |", "|---|" + "---:|" * len(columns)]
    for name in (n for n in NAMES if any(cell["method"] == n for cell in cells)):
        own = sorted((cell for cell in cells if cell["method"] == name), key=lambda cell: int(cell["seed"]))
        shown = []
        for column in columns:
            values = [cell["accuracy"][column] for cell in own if column in cell["accuracy"]]
            shown.append(percent(mean_and_error(values)) if values else "")
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def run_table(
    data: str, data_root: Path, leave: str, options: Mapping[str, Any], settings: Mapping[str, Any], out: Path,
    rows: Sequence[str] | None = None, seeds: int = 3, given: Sequence[int] = NUM_GIVEN_ROWS, steps: int = STEPS,
) -> str:  # fmt: skip
    """Runs what is missing of the table, and writes it.

    Args:
        data: a data set of domains, in the folder ``data_root``.
        leave: the new client's domain.
        options: run options of all rows.
        settings: steps of all methods, other settings of fedv and pfedv.
        out: the folder of unseen.json and unseen.md.
        rows: some of :data:`NAMES`; all by default.
        seeds: how many.
        given: how many examples the new client has given.
        steps: of the new client.

    Returns:
        The table as markdown.

    Raises:
        UserError: for a row or domain that there is not, or numbers that cannot be.
    """
    for name in rows or ():
        if name not in NAMES:
            raise unknown("row of this table", name, NAMES)
    if seeds < 1 or steps < 1 or min(given) < 2:
        raise UserError("seeds and steps must be at least 1, and examples given at least 2")
    for name in rows or NAMES:
        row_cell(name, data, 0, settings)
    path = out / "unseen.json"
    facts = {"data": data, "left_out": leave, "given": [*given], "steps": steps, **options, "settings": settings}
    pool = new = None
    for seed, name in itertools.product(range(seeds), rows or NAMES):
        if any((cell["method"], cell["seed"]) == (name, seed) for cell in read_cells(path, facts)):
            continue
        if pool is None or new is None:
            pool, new = without(registry.load(data, data_root), leave)
            if max(given) > len(new["y"]):
                reason = f"{leave} has {len(new['y'])} training examples"
                raise UserError(f"{reason}; --examples asks for {max(given)}")
        accuracies = serve(name, pool, new, seed, given, steps, {"data": data, "run": options, "settings": settings})
        keep(path, facts, {"method": name, "seed": seed, "origin": pool.origin, "accuracy": accuracies})
        to_stderr()(f"{name} {seed} {accuracies}")
    return markdown(read_cells(path, facts), given)
