"""FedPop's synthetic experiment (its Figure 2): many small clients, a shared matrix phi and an effect z_j of each.

    hierfl table fedpop-figure-2 --seeds 10 --out results

FedPop beside its two limits, FedAvg (sigma -> 0) and FedRep (sigma -> inf), judged by the principal angle between the
true phi and the found one and by the mean l2 error of z; step sizes are chosen on other data sets, by the error on
their held-out rows. Then the fit whose gradients have control variates, against the maximum of the exact marginal
likelihood. What OUT/synthetic-cells.json holds is not run again.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from hierfl.data import synthetic as truth
from hierfl.data.federation import Federation
from hierfl.errors import UserError, unknown
from hierfl.inference import Method, fit
from hierfl.inference.run.progress import Bar
from hierfl.inference.run.result import Run
from hierfl.models import FedAvg, FedPop, FedRep
from hierfl.nn.networks.build import architecture
from hierfl.plots.comparison import compared

from ..grid import read_cells
from ..run_folder.csv_files import write_frame
from ..run_folder.files import versions, write_text

ROUNDS, EXACT_ROUNDS = 200, 600
#: seeds on which step sizes are chosen
CHOOSING = (1000, 1001)
LANGEVIN = {
    "chains": 1,
    "sigma_0": 1.0,
    "init_scale": 0.1,
    "lr": 0.03,
    "lr_decay": 0.99,
    "beta2": 0.97,
    "final_kernel": "unadjusted",
    "final_chains": 1,
}
#: by name: the method, what is fixed, and the grid
CONTESTANTS: dict[str, tuple[type[Method], dict[str, Any], dict[str, list[Any]]]] = {
    "FedPop": (
        FedPop, {**LANGEVIN, "steps": 10, "burn": 5}, {"base_lr": [0.01, 0.03], "step_size": [1e-3, 3e-3]},
    ),
    "FedPop, stateless M = 50": (
        FedPop, {**LANGEVIN, "steps": 50, "burn": 25, "start": "stateless"},
        {"base_lr": [0.01, 0.03], "step_size": [1e-3, 3e-3]},
    ),
    "FedPop, stateless M = 10": (
        FedPop, {**LANGEVIN, "steps": 10, "burn": 5, "start": "stateless"},
        {"base_lr": [0.01, 0.03], "step_size": [1e-3, 3e-3]},
    ),
    "FedRep": (
        FedRep, {"batch": 10, "momentum": 0.0, "epochs": 1, "head_epochs": 10}, {"lr": [0.03, 0.1, 0.3, 1.0]},
    ),
    "FedAvg": (FedAvg, {"batch": 10, "momentum": 0.0, "epochs": 10}, {"lr": [0.03, 0.1, 0.3, 1.0]}),
}  # fmt: skip


def fit_contestant(
    name: str, settings: Mapping[str, Any], federation: Federation, noise: float, seed: int, rounds: int = ROUNDS
) -> Run:
    """One fit; a mean log likelihood's step size is in units of its curvature, 1 / noise^2."""
    kind, fixed, _ = CONTESTANTS[name]
    if kind is FedPop:  # 1,000 last steps, of which 100 draws are kept, where there are 200 rounds
        fixed = {**fixed, "final_steps": 5 * rounds, "final_keep": max(1, rounds // 2)}
    own = {k: v * noise**2 if k == "lr" and kind is not FedPop else v for k, v in settings.items()}
    method = kind(architecture("projection:2", federation, noise), **fixed, **own)
    return fit(
        method, federation, rounds, seed=seed, chunk=federation.clients, dtype=torch.float64, progress=False,
        evaluate_every=rounds,
    )  # fmt: skip


def estimates(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """phi (k, d) and every client's z (J, d), as the fit has left them."""
    phi, clients = run.shared["base.1.weight"].T, run.fitted.federation.clients
    if "z_draws" in run.personal:
        return phi, run.personal["z_draws"].flatten(1, 2).mean(1)
    return phi, run.personal["mu"] if "mu" in run.personal else run.shared["w"].expand(clients, -1)


def measured(run: Run, made: truth.Truth) -> dict[str, float]:
    """Both of the figure's metrics, and the test error."""
    phi, z = estimates(run)
    return {
        "principal_angle": truth.principal_angle_distance(made.phi, phi),
        "z_error": truth.effect_error(phi, z, made),
        "test_rmse": float(run.last()["pm_rmse"]),
    }


def choose(name: str, reading: Any, rounds: int = ROUNDS) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Step sizes with the smallest error on the held-out rows of other data sets; and all cells."""
    grid, cells = CONTESTANTS[name][2], []
    for values in itertools.product(*grid.values()):
        settings, errors = dict(zip(grid, values, strict=True)), []
        for seed in CHOOSING:
            federation, made = truth.synthetic(seed, reading=reading)
            errors.append(float(fit_contestant(name, settings, federation, made.noise, seed, rounds).last()["pm_rmse"]))
        error = float(np.mean(errors))
        cells.append({**settings, "rmse": error if np.isfinite(error) else None})
    best = min((cell for cell in cells if cell["rmse"] is not None), key=lambda cell: cell["rmse"])
    return {k: best[k] for k in grid}, cells


def exact(seed: int, reading: Any, rounds: int = EXACT_ROUNDS) -> dict[str, Any]:
    """FedPop with control variates against the exact marginal likelihood's maximum, in what is identified."""
    federation, made = truth.synthetic(seed, reading=reading)
    method = FedPop(
        architecture("projection:2", federation, made.noise), control_variates=True, kernel="metropolis",
        precondition="curvature", step_size=0.5, chains=10, sigma_0=1.0, lr=0.05, base_lr=0.03, lr_decay=0.99,
        beta2=0.97, final_steps=0,
    )  # fmt: skip
    run = fit(
        method, federation, rounds, seed=seed, chunk=100, dtype=torch.float64, progress=False, evaluate_every=rounds
    )
    estimated = (run.shared["base.1.weight"].T, run.shared["mu"], run.shared["log_sigma"].exp())
    best = truth.maximise(federation, made.phi, estimated[1], estimated[2], made.noise)
    ours, theirs = truth.identified(*estimated), truth.identified(*best)
    heights = [float(truth.log_likelihood(federation, *v, made.noise)) for v in (estimated, best)]
    relative = {k: float((ours[k] - theirs[k]).norm() / theirs[k].norm()) for k in ours}
    return {"seed": seed, **relative, "log likelihood": abs(heights[0] / heights[1] - 1), "maximum": heights[1]}


@contextmanager
def _errors_alone() -> Iterator[None]:
    """Silences warnings: a step size that is too large is part of a grid."""
    log = logging.getLogger("hierfl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def run_experiment(
    seeds: int, exact_seeds: int, reading: str, out: Path, rounds: int = ROUNDS, exact_rounds: int = EXACT_ROUNDS
) -> str:
    """Chooses step sizes, runs every contestant on every data set, and writes it all; the table as text.

    Args:
        seeds: how many data sets.
        exact_seeds: how many of them are compared with the exact maximum.
        reading: of the paper's noise, one of :data:`hierfl.data.synthetic.NOISE`.
        out: the folder of synthetic-cells.json, synthetic.csv, synthetic.json and synthetic.png.
        rounds, exact_rounds: of each fit; of those that are compared with the exact maximum.

    Raises:
        UserError: for numbers that cannot be, an unknown reading, or a folder with another reading or other rounds.
    """
    if seeds < 1 or exact_seeds < 0 or rounds < 1 or exact_rounds < 1:
        raise UserError("--seeds and rounds must be at least 1, exact at least 0")
    if reading not in truth.NOISE:
        raise unknown("reading", reading, truth.NOISE)
    out.mkdir(parents=True, exist_ok=True)
    setting = {"experiment": "fedpop-figure-2", "reading": reading, "rounds": rounds, "exact_rounds": exact_rounds}
    path = out / "synthetic-cells.json"

    def cell(what: str, name: str, seed: int, made: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the file holds of it, or what is made now and kept there."""
        kept, key = read_cells(path, setting), {"what": what, "method": name, "seed": seed}
        cell_kept = next((old for old in kept if key.items() <= old.items()), None)
        if cell_kept is None:
            start = time.perf_counter()
            cell_kept = {**key, **made(), "seconds": round(time.perf_counter() - start, 2)}
            write_text(path, json.dumps({**setting, "cells": [*kept, cell_kept]}, indent=1) + "\n")
        bar.advance(None)
        return cell_kept

    def chosen_of(name: str) -> dict[str, Any]:
        settings, cells = choose(name, reading, rounds)
        return {"settings": settings, "grid": cells, "on_seeds": list(CHOOSING)}

    def run_of(name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        federation, made = truth.synthetic(seed, reading=reading)
        return measured(fit_contestant(name, settings, federation, made.noise, seed, rounds), made)

    read_cells(path, setting)  # another experiment's folder is refused before anything is run
    chosen, rows = {}, []
    with _errors_alone(), Bar(len(CONTESTANTS) * (seeds + 1) + exact_seeds, 0, show=True) as bar:
        for name in CONTESTANTS:
            chosen[name] = cell("choice", name, -1, partial(chosen_of, name))
            settings = chosen[name]["settings"]
            rows += [cell("run", name, seed, partial(run_of, name, settings, seed)) for seed in range(seeds)]
        agreement = [cell("exact", "", k, partial(exact, k, reading, exact_rounds)) for k in range(exact_seeds)]
    frame = pd.DataFrame(rows).drop(columns="what")
    write_frame(out / "synthetic.csv", frame)
    grouped = frame.groupby("method", sort=False)[["principal_angle", "z_error", "test_rmse", "seconds"]]
    table = pd.concat([grouped.mean(), grouped.sem().add_suffix("_se")], axis=1)
    more = f" --set exact={exact_seeds} --set reading={reading} --rounds {rounds} --set exact_rounds={exact_rounds}"
    report = {
        "command": f"hierfl table fedpop-figure-2 --seeds {seeds}{more} --out {out}", "rounds": rounds,
        "reading": reading, "chosen": chosen, "mean": table.to_dict("index"), "exact": agreement,
        "seconds": sum(cell_done["seconds"] for cell_done in read_cells(path, setting)), "versions": versions(),
    }  # fmt: skip
    write_text(out / "synthetic.json", json.dumps(report, indent=1) + "\n")
    draw(frame, out / "synthetic.png")
    shown = [{k: v for k, v in row.items() if k not in ("what", "method", "seconds")} for row in agreement]
    lines = [{k: f"{v:.2e}" if isinstance(v, float) and k != "maximum" else v for k, v in row.items()} for row in shown]
    return "\n".join([table.round(4).to_string(), *map(str, lines)])


def draw(frame: Any, path: Path) -> None:
    """The figure: both metrics of every method, a point for each seed."""
    compared(
        frame, {"principal_angle": "principal-angle distance of phi", "z_error": "mean l2 error of z"}, path,
        "100 clients, 90 of five examples and 10 of ten",
    )  # fmt: skip
