"""The joint posterior of a fitted plain model for ArviZ."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.arviz_model import model_inference_data
from hierfl.errors import UserError

from .predicted import Predictor
from .prior import prior_draws
from .values import Draws, at_draws

if TYPE_CHECKING:
    from .joint_draws import JointDraws

log = logging.getLogger("hierfl")


def posterior_data(of: JointDraws, *, prior: int, predictive: bool, rows: bool, observed: bool) -> Any:
    """See :meth:`.fitted_model.FittedModel.posterior`."""
    if not of.fitted.federation.clients:
        return model_inference_data(
            clients=(), rows_of=(), globals_={"posterior": of.globals}, of_clients={}, of_rows={}, observed={},
            observed_of_clients={}, sizes=np.zeros(0, dtype=int),
        )  # fmt: skip
    by_row, by_client = of.log_densities if rows else ({}, {})
    observed_rows, observed_clients = _observed(of) if observed else ({}, {})
    everyones: dict[str, Any] = {"posterior": of.globals}
    own: dict[str, Any] = {"posterior": of.clients, "log_likelihood": by_client}
    each: dict[str, Any] = {"log_likelihood": by_row}
    if prior:
        try:
            everyones["prior"], of_clients, _ = prior_draws(of, prior)
            own["prior"] = {name: value for name, value in of_clients.items() if name in of.clients}
        except UserError as error:
            log.info("no group prior: %s", error)
    if predictive:
        each["posterior_predictive"], own["posterior_predictive"] = _predictive(of)
    federation = of.fitted.federation
    sizes = np.array(list(federation.sizes()))
    return model_inference_data(
        clients=of.client_names, rows_of=np.repeat(np.array(of.client_names), sizes).tolist(), globals_=everyones,
        of_clients=own, of_rows=each, observed=observed_rows, observed_of_clients=observed_clients, sizes=sizes,
    )  # fmt: skip


def _observed(of: JointDraws) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What was observed by row, (N, *shape), and by client, (J, *shape)."""
    first = Draws(of.draws.x[:1], of.draws.v[:1])
    found = at_draws(of.of_plate, first, lambda seen: seen.value if seen.observed and seen.level != "global" else None)
    rows = of.split_rows({name: value for name, value in found.items() if name in of.row_sites})
    # (of a chain's later times shorter clients have padding, which is no observation)
    whole = set(found) if len(set(of.fitted.federation.sizes())) == 1 else set(of.method.sites.observed)
    clients = {name: found[name].numpy()[0] for name in found if name in whole - of.row_sites}
    return {name: value[0] for name, value in rows.items()}, clients


def _predictive(of: JointDraws) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draws at the rows of the fit, (D, N, *shape), and of what is observed by client, (D, J, *shape)."""
    predictor = Predictor(of.fitted)
    sizes, plate = of.fitted.federation.sizes(), of.of_plate.columns
    clients = [
        predictor.of_client(plate[j, :, :n], name)
        for j, (name, n) in enumerate(zip(of.client_names, sizes, strict=True))
    ]
    rows, own = {}, {}
    for site in predictor.observed:
        parts = [client[site].numpy() for client in clients]
        if site in of.row_sites:
            rows[site] = np.concatenate(parts, 1)
        else:
            own[site] = np.stack(parts, 1)
    return rows, own
