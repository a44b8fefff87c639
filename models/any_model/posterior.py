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


def posterior_data(joint: JointDraws, *, prior: int, predictive: bool, rows: bool, observed: bool) -> Any:
    """See :meth:`.fitted_model.FittedModel.posterior`."""
    if not joint.fitted.federation.clients:
        return model_inference_data(
            clients=(), rows_of=(), globals_={"posterior": joint.globals}, of_clients={}, of_rows={}, observed={},
            observed_of_clients={}, sizes=np.zeros(0, dtype=int),
        )  # fmt: skip
    by_row, by_client = joint.log_densities if rows else ({}, {})
    observed_rows, observed_clients = _observed(joint) if observed else ({}, {})
    everyones: dict[str, Any] = {"posterior": joint.globals}
    own: dict[str, Any] = {"posterior": joint.clients, "log_likelihood": by_client}
    of_rows: dict[str, Any] = {"log_likelihood": by_row}
    if prior:
        try:
            everyones["prior"], of_clients, _ = prior_draws(joint, prior)
            own["prior"] = {name: value for name, value in of_clients.items() if name in joint.clients}
        except UserError as error:
            log.info("no group prior: %s", error)
    if predictive:
        of_rows["posterior_predictive"], own["posterior_predictive"] = _predictive(joint)
    federation = joint.fitted.federation
    sizes = np.array(list(federation.sizes()))
    return model_inference_data(
        clients=joint.client_names, rows_of=np.repeat(np.array(joint.client_names), sizes).tolist(), globals_=everyones,
        of_clients=own, of_rows=of_rows, observed=observed_rows, observed_of_clients=observed_clients, sizes=sizes,
    )  # fmt: skip


def _observed(joint: JointDraws) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What was observed by row, (N, *shape), and by client, (J, *shape)."""
    first = Draws(joint.draws.x[:1], joint.draws.v[:1])
    values = at_draws(
        joint.of_plate, first, lambda site: site.value if site.observed and site.level != "global" else None
    )
    rows = joint.split_rows({name: value for name, value in values.items() if name in joint.row_sites})
    # Of a chain's later times shorter clients have padding, which is no observation.
    whole = set(values) if len(set(joint.fitted.federation.sizes())) == 1 else set(joint.method.sites.observed)
    clients = {name: values[name].numpy()[0] for name in values if name in whole - joint.row_sites}
    return {name: value[0] for name, value in rows.items()}, clients


def _predictive(joint: JointDraws) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draws at the rows of the fit, (D, N, *shape), and of what is observed by client, (D, J, *shape)."""
    predictor = Predictor(joint.fitted)
    sizes, plate = joint.fitted.federation.sizes(), joint.of_plate.columns
    clients = [
        predictor.of_client(plate[j, :, :n], name)
        for j, (name, n) in enumerate(zip(joint.client_names, sizes, strict=True))
    ]
    rows, own = {}, {}
    for site in predictor.observed:
        parts = [client[site].numpy() for client in clients]
        if site in joint.row_sites:
            rows[site] = np.concatenate(parts, 1)
        else:
            own[site] = np.stack(parts, 1)
    return rows, own
