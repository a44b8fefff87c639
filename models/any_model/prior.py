"""Draws from the prior of a plain model, at the rows of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hierfl.inference.checks import check_draws
from hierfl.rng import key

from .own_points import points
from .simulated import Simulator
from .values import Values

if TYPE_CHECKING:
    from .joint_draws import JointDraws


def prior_draws(joint: JointDraws, draws: int) -> tuple[dict[str, np.ndarray], ...]:
    """Globals (D, *shape), clients' sites (D, J, *shape), and rows' (D, N, *shape).

    Sites that some clients do not have, such as those of later times in a chain, are left out.

    Raises:
        UserError: for a prior that cannot be drawn from.
    """
    check_draws(draws, 1)
    method, federation, seed = joint.method, joint.fitted.federation, joint.fitted.seed
    simulate = Simulator(method.program, method.sites, method.network)
    names = [latent.name for latent in method.sites.globals]
    # Parameters have no prior: theirs are the fitted values, and those of clients theirs at the guide's mean.
    fixed = {
        latent.name: torch.from_numpy(joint.globals[latent.name][:1]).expand(draws, *latent.shape)
        for latent in method.sites.globals if latent.parameter
    }  # fmt: skip
    sizes, plate = federation.sizes(), joint.of_plate.columns
    first = plate[0, :, : sizes[0]]
    everyones = simulate(first, draws, key(seed, "prior"), fixed, levels=("global",)) | fixed
    given = {name: everyones[name].reshape(draws, *_shape(joint, name)) for name in names}
    clients = [
        simulate(
            plate[j, :, :n],
            draws,
            key(seed, "prior", name),
            given | points(joint.fitted, method, j, draws),
            levels=("client", "data"),
        )
        for j, (name, n) in enumerate(zip(federation.ids, sizes, strict=True))
    ]
    of_rows = joint.row_sites | {name for name, level in method.sites.discrete if level == "data"}
    own, rows = Values(), Values()
    for site in (name for name in clients[0] if all(name in client for client in clients)):
        parts = [client[site] for client in clients]
        if site in of_rows:
            rows[site] = torch.cat(parts, 1)
        else:
            own[site] = torch.stack(parts, 1)
    return tuple({name: value.numpy() for name, value in part.items()} for part in (everyones, own, rows))


def _shape(joint: JointDraws, name: str) -> tuple[int, ...]:
    return next(latent.shape for latent in joint.method.sites.globals if latent.name == name)
