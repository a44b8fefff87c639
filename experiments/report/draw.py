"""Pictures that a report draws of a finished run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import UserError
from hierfl.inference.run.progress import working

from ..config import Configuration
from ..run_folder.resume import relocate, restore

log = logging.getLogger("hierfl")


def draw_posterior(folder: Path, progress: bool, rhat: bool, title: str = "", *, by_row: bool = True) -> list[Path]:
    """Forest, chains, posterior-predictive checks of a run's posterior.nc; the pictures, none where it has no draws.

    Args:
        folder: the run's.
        progress: whether to show what takes its time.
        rhat: insists on several chains.
        title: above the pictures; empty for the folder's name.
        by_row: whether to draw what shows single rows.

    Raises:
        UserError: where R-hat was asked for, and there are not several chains.
    """
    from hierfl.arviz_data import dataset
    from hierfl.arviz_io import read, without_rows
    from hierfl.plots.posterior import panels
    from hierfl.plots.posterior_numbers import mixing
    from hierfl.plots.saving import save_all

    path = folder / "posterior.nc"
    if not path.is_file():
        if rhat:
            raise UserError(f"{folder} has no draws (posterior.nc)")
        return []
    with working("drawing the posterior", progress):
        data = read(path)
        if data.attrs.get("prior_of") == "model" and "client" not in dataset(data, "posterior").dims:
            return []  # a plain model's globals alone, as at the server of a study: they are in a table
        if rhat:
            mixing(data)
        drawn = panels(data if by_row else without_rows(data))
        return save_all(folder / "figures", drawn, title or folder.name, "posterior")


def draw_features(
    folder: Path, config: Configuration, location: Mapping[str, Any], progress: bool, trust_code: bool
) -> list[Path]:
    """Features of test data in the plane, by class and by client; the pictures, none where the run's data are gone.

    Raises:
        UserError: for a method's file that has changed, data that are not where ``location`` says, or too few of them.
    """
    from hierfl.inference.evaluation.features import features
    from hierfl.plots.features import embedding, feature_map
    from hierfl.plots.saving import save_all

    config = relocate(config, location)
    if not data_exist(config.run.data):
        missing = f"{config.run.data} is not here"
        if location.get("data"):
            raise UserError(f"{missing}: --data says where the run's data are now")
        log.warning("%s: the page has no features, which need the run's data; --data says where they are now", missing)
        return []
    ready, name = restore(folder, config, progress, trust_code)
    with working("reading the checkpoint", progress):
        run = ready.run(folder / "checkpoint", resume=True, progress=False)
    with working("laying features out in the plane", progress):
        z, labels, clients = features(run.fitted)
        if len(z) < 3:
            raise UserError(f"{folder} has {len(z)} test examples, too few to draw")
        if z.shape[1] < 2:
            return []  # a single feature has no plane
        places = embedding(z)
        drawn = {"features-clients": lambda ax: feature_map(places, clients, "client", ax)}
        if run.fitted.federation.task == "classification":
            named = np.array(run.fitted.federation.label_names)[labels]
            drawn = {"features-classes": lambda ax: feature_map(places, named, "class", ax), **drawn}
        facts = run.fitted.federation.about
        return save_all(folder / "figures", drawn, f"{name} on {facts['data']}, {facts['split']}", "features")


def data_exist(data: str) -> bool:
    """Whether a run's data are still where they were, as far as their path says."""
    return not Path(data).is_absolute() or Path(data).exists()
