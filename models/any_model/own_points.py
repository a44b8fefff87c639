"""Points of each client: ``pyro.param`` within the plate of clients. How they are fitted is said in :mod:`.local`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError
from hierfl.inference.evaluation.fitted import Fitted

from .evaluating import Clients
from .levels import Model
from .names import OWN_MEAN
from .sites import Coordinates, Sites

if TYPE_CHECKING:
    from .plain import PlainModel

log = logging.getLogger("hierfl")
#: how far from the start slopes are looked at
OFFSETS = (0.1, -0.3)


def warn_undetermined(model: Model, design: ColumnDesign, sites: Sites, columns: Tensor, mask: Tensor | None) -> None:
    """Warns of clients whose log joint does not move with some number of a point: it stays where it begins.

    Args:
        model, design, sites: whose.
        columns: of S clients, (S, columns, n).
        mask: (S, n), or None.
    """
    if not sites.own_points:
        return
    count, moves = len(columns), torch.zeros(len(columns), len(sites.client_start), dtype=torch.bool)
    clients = Clients(model, sites, design, columns, mask, torch.ones(moves.shape).to(columns))
    for away in OFFSETS:
        x = (sites.start + away).to(columns).expand(1, count, -1)
        v = (sites.client_start + away).to(columns).expand(1, count, -1).clone().requires_grad_()
        h = clients.log_joint(x, v).sum()
        slope = torch.autograd.grad(h, v, materialize_grads=True)[0] if h.requires_grad else torch.zeros_like(v)
        moves |= (slope[0] != 0).cpu()
    first = 0
    for latent in sites.clients:
        still = int((~moves[:, first : first + latent.numel]).any(-1).sum()) if latent.parameter else 0
        first += latent.numel
        if still:
            log.warning("the rows of %d of %d clients say nothing of pyro.param %r, or of a number of it: it stays "
                        "where it begins", still, count, latent.name)  # fmt: skip


def points(fitted: Fitted, method: PlainModel, client: int, draws: int) -> dict[str, Tensor]:
    """A client's points at the guide's mean, on their supports, {name: (draws, *shape)}."""
    if not method.sites.own_points:
        return {}
    free = Coordinates(method.sites.clients).split(fitted.personal[OWN_MEAN][client])
    return {
        latent.name: latent.transform(free[latent.name]).reshape(latent.shape).expand(draws, *latent.shape)
        for latent in method.sites.own_points
    }


def refuse_without_points(method: PlainModel, client: str) -> None:
    """A client without data of its own, of a model in which it needs points.

    Raises:
        UserError: which names the first of them.
    """
    for latent in method.sites.own_points:
        raise UserError(
            f"client {client!r} is new and has no value of pyro.param {latent.name!r}, which has no prior and is each "
            "client's own: given=ITS_ROWS learns it"
        )
