"""Everything a finished run leaves."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.errors import NotFinite
from hierfl.inference.method.capabilities import joint_posterior, shrinkage_table

from .csv_files import write_frame
from .diagnostics import NO_CHAINS, chain_mixing, ood_detection
from .files import write_metrics, write_text
from .kept_model import write_model
from .summary import make_summary

if TYPE_CHECKING:
    from hierfl.inference import Run


log = logging.getLogger("hierfl")


def write_watched(folder: Path, run: Run) -> None:
    """How each client's messages lie beside the others', and of mixed models what is estimated without each."""
    if run.watched is None:
        return
    if len(influence := run.watched.influence):
        write_frame(folder / "influence.csv", influence)
    if len(estimates := run.watched.estimates):
        write_frame(folder / "without.csv", estimates)


def write_results(
    folder: Path, run: Run, name: str, ood: str = "", strange: np.ndarray | None = None, *, observed: bool = True,
    by_row: bool = True, own: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Everything a finished run leaves; returns the summary.

    A model that has diverged has no posterior to draw: it leaves everything else, and a warning.

    Args:
        folder: the run's.
        run: what was fitted.
        name: of the method.
        ood, strange: name and raw inputs of a data set that the models have not been made for.
        observed: whether posterior.nc holds the training data's responses.
        by_row: whether it holds anything that has an entry for each training row.
        own: whether it is what one site of a study keeps for itself.
    """
    from hierfl.arviz_io import NO_ROWS, held_rows, write
    from hierfl.plots.run import panels
    from hierfl.plots.saving import save_all

    clients, federation = run.clients, run.fitted.federation
    joint = joint_posterior(run.fitted.method, run.fitted)
    if joint is not None:
        left_out = clients[["client", *({"left_out"} & set(clients))]]
        clients = joint.client_table().merge(left_out, on="client")
    try:
        posterior = run.posterior(observed=observed, rows=by_row)
    except NotFinite as error:
        log.warning("no posterior.nc: %s", error)
        posterior = None
    chains: dict[str, Any] = NO_CHAINS if posterior is None else chain_mixing(run, clients)
    chains = {**chains, "ood": ood or None, "ood_auroc": None, "ood_draws_auroc": None}
    pairs: list[Any] = []
    if strange is not None:
        noticed, pairs = ood_detection(run, strange, clients)
        chains |= noticed
    write_metrics(folder, run.evaluations)
    write_frame(folder / "clients.csv", clients)
    if len(history := run.history):
        write_frame(folder / "history.csv", history)
    write_frame(folder / "participation.csv", run.participation, "round")
    write_watched(folder, run)
    if posterior is not None:
        write(posterior, folder / "posterior.nc")
    if joint is not None:
        write_frame(folder / "globals.csv", joint.globals_table())
        write_frame(folder / "trace.csv", joint.trace_table())
    effects, numbers = run.fitted.method.population_summary(run.fitted)
    if effects is not None:
        write_frame(folder / "effects.csv", effects)
    estimates = shrinkage_table(run.fitted.method, run.fitted)
    if estimates is not None:
        write_frame(folder / "estimates.csv", estimates)
    # There may be validation rows, and no test rows.
    drawn = federation.task == "classification" and "bins" in run.client_metrics[0]
    bins = run.reliability() if drawn else None
    averaged = run.reliability(averaged=True) if drawn and run.random else None
    is_tempered = run.calibration is not None and run.calibration.powers is not None
    warm = run.reliability(averaged=run.random, tempered=True) if drawn and is_tempered else None
    clients_of = f"{federation.clients} clients" if federation.clients > 1 else str(federation.ids[0])
    title = f"{name} on {federation.about['data']}, {clients_of}, {federation.about['split']}"
    frames = {"history": run.history, "participation": run.participation, "estimates": estimates,
              "effects": effects, "tempered": warm,
              "trace": None if joint is None else joint.trace_table()}  # fmt: skip
    save_all(folder / "figures", panels(run.metrics, clients, bins, pairs, averaged, **frames), title)
    result = make_summary(run, name, numbers, chains, NO_ROWS if posterior is None else held_rows(posterior), own=own)
    if not own:  # a site has its study's folder, and its rows
        write_model(folder, run)
    if joint is not None:
        result["warnings"] = [*result["warnings"], *joint.notes(run.rounds)]
    write_text(folder / "summary.json", json.dumps(result, indent=1) + "\n")
    return result
