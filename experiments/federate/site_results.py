"""Results at a site after a study: predictions and a report from its own folder, without any server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.data.far_numbers import spread_of, warn_of_far
from hierfl.data.federated.column_data import ColumnSite
from hierfl.data.federated.formula_data import FormulaSite
from hierfl.data.federated.model_data import ModelData
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.inference.calibration.calibrate import calibration_of_client
from hierfl.inference.evaluation.personal import evaluate_personal
from hierfl.inference.method.capabilities import level_names
from hierfl.inference.run.result import Run
from hierfl.metrics.pooling import over_clients
from hierfl.metrics.registry import global_metrics, names_of
from hierfl.models.any_model.fitted_model import FittedModel
from hierfl.models.mixed_effects.report.predictions import predicted

from ..run_folder.config_file import write_config
from ..run_folder.results import write_results
from .guard.home import home_of
from .study_site import Membership, read_site_data

if TYPE_CHECKING:
    import pandas as pd

#: of a site's folder: what `hierfl report` writes, a run's folder of one client
RESULTS = "results"


def site_run(member: Membership) -> Run:
    """What a site predicts with.

    Raises:
        UserError: where the study has not ended for it, or its own file is not what it was.
    """
    if (home := home_of(member.folder)) is not None and home.has_left(member.folder):
        raise UserError(f"{member.folder}: this site has withdrawn from {member.study.name}; it predicts nothing")
    site = member.site().site
    if site is None:
        raise UserError(f"{member.folder}: the study has not begun for this site; it predicts nothing yet")
    fitted, options = site.fitted(), site.options
    if not options.splits:  # a plain model has draws of its posterior, and nothing is scored
        return Run(fitted, [member.client], options, [], 0.0, fitted.trace.random)
    random = fitted.trace.random
    draws = (0, options.draws) if random else (0,)
    split = "test" if fitted.federation.sizes("test")[0] else "train"
    scores = evaluate_personal(fitted, split, 1, draws)
    row: dict[str, Any] = {"round": options.rounds, "split": split}
    for kind, own in zip(("pm", "pm_draws"), scores, strict=False):
        mine = over_clients(own, fitted.federation.task)
        row |= {f"{kind}_{name}": mine.get(name) for name in names_of(fitted.federation.task)}
    row |= dict.fromkeys(f"gm_{name}" for name in global_metrics(fitted.federation.task))
    row |= {"rejected": None, "skipped": None, "bytes": None, "diverged": None, "seconds": None}
    tested = scores if split == "test" else None
    calibration = calibration_of_client(fitted, options, site.calibrated, random=random)
    return Run(fitted, [member.client], options, [row], 0.0, random, tested, calibration=calibration)


def write_site_results(member: Membership, run: Run, *, by_row: bool = True) -> Path:
    """A run's folder of this site alone, inside its own; what is left of an earlier one is replaced.

    Args:
        member: the site.
        run: of :func:`site_run`.
        by_row: whether it has anything with an entry for each training row.
    """
    folder = member.folder / RESULTS
    folder.mkdir(exist_ok=True)
    for name in ("posterior.nc", "report.html"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "figures", ignore_errors=True)
    reading = member.reading.as_table()
    config = member.study.configuration(str(member.data), run.options.device, 1, reading)
    write_config(folder, config.with_run(rows=by_row, observed_data=by_row))
    write_results(folder, run, member.study.loaded.name, observed=by_row, by_row=by_row, own=True)
    return folder


def predictions(
    member: Membership, run: Run, path: Path, draws: int, reading: Reading | None = None, shares: str = ""
) -> pd.DataFrame:
    """What the site's own model says of new examples.

    Args:
        member: the site.
        run: of :func:`site_run`.
        path: a file of new examples, of the form of the site's own (an ``.npz`` with ``x``).
        draws: that predictions are averaged over; 0 for the posterior mean, of a plain model for all its draws.
        reading: what a table's file does not say of itself; None for what was said of the site's own.
        shares: label shares of a method that has some, see :meth:`~hierfl.inference.run.result.Run.predict`; for others
            than the site's own there is no temperature, and there are no sets.

    Returns:
        A row for each example: a probability for each class, at the study's temperature where it has found one, and
        where it has sets the labels that are in them; or mean and standard deviation, with a 90 % interval of a plain
        model, and of a response whose levels have an order a probability for each, too.
    """
    import pandas as pd

    if isinstance(member.study.data, ModelData):
        if shares:
            raise UserError(f"a plain model has no label shares, which --shares {shares} would set")
        table = member.study.data.inputs(path, run.fitted.federation, reading or member.reading)
        return FittedModel(run).predict(table, client=member.client, draws=draws or None).drop(columns="client")
    if draws and not run.random:
        raise UserError(f"{member.study.loaded.name} has no draws to average over: --draws 0")
    federation = run.fitted.federation
    inputs = member.study.data.inputs(path, federation, reading or member.reading)
    if isinstance(inputs, pd.DataFrame):
        _warn_of_far_rows(member, inputs)
    calibration = run.calibration if shares in ("", "own") else None
    tempered = calibration is not None and calibration.powers is not None
    probabilities = (
        run.predict(inputs, member.client, draws, tempered=tempered, shares=shares, frame=False).cpu().numpy()
    )
    if federation.task == "regression":
        table = pd.DataFrame({"mean": probabilities[:, 0], "sd": probabilities[:, 1]})
        if not level_names(run.fitted.method):
            return table
        levels = predicted(run, inputs, "client", None, draws).filter(regex=r"^p\(")
        return table.assign(**{f"p_{name[2:-1]}": levels[name].to_numpy() for name in levels})
    labels = federation.label_names
    table = pd.DataFrame({f"p_{label}": column for label, column in zip(labels, probabilities.T, strict=True)})
    names = np.array(labels)
    table = table.assign(label=names[probabilities.argmax(1)])
    if calibration is None or calibration.threshold is None:
        return table
    sets = run.prediction_sets(inputs, member.client).cpu().numpy()
    return table.assign(set=[" ".join(names[inside]) for inside in sets])


def _warn_of_far_rows(member: Membership, inputs: pd.DataFrame) -> None:
    """Says which columns of new rows have numbers far from those of the site's own rows, which no one else has."""
    own = read_site_data(member.study, member.data, member.client, member.reading)
    if isinstance(own, FormulaSite | ColumnSite):
        numbers = {name for name in inputs if inputs[name].dtype.kind in "iuf" and name in own.file}
        warn_of_far(inputs, spread_of(own.file, [name for name in numbers if own.file[name].dtype.kind in "iuf"]))
