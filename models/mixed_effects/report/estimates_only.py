"""Predictions at the estimates, of a fit without draws: what random effects are not known by is integrated out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.inference.state import State

from ..model.arithmetic import linear
from ..model.equations import MixedModel

#: nodes of the quadrature over a row's linear predictor
NODES = 41


def at_nodes(
    method: MixedModel, eta: Tensor, columns: Columns, population: State, own: State, owner: Tensor | None, level: str
) -> tuple[Tensor, Tensor]:
    """Values of rows' linear predictors with weights that sum to one: (K, n) and (K,).

    Given the estimates a row's linear predictor is normal: around its client's posterior mean, or around zero random
    effects with the population's spread where the client is new. Effects of groups inside a client are taken for
    independent of the client's. With level "population" random effects are zero.

    Args:
        method: whose model.
        eta: without random effects, (1, n).
        columns: of the rows.
        population: the estimates, {name: (1, *shape)}.
        own: clients' effects, b_mean (J, q) and b_root (J, q, q), and c_mean and c_root of groups inside.
        owner: the client of each row, (n,); None for a new one.
        level: "client", "population" or "new".
    """
    if level == "population":
        return eta, eta.new_ones(1)
    mean, variance = eta[0], torch.zeros_like(eta[0])
    for name, level_root, z, inner in (
        ("b", "root", columns.z, None),
        ("c", "inner_root", columns.z_inner, columns.inner),
    ):
        if z is None:
            continue
        if owner is None:
            root = method.covariances[level_root].matrix(population[level_root])[0].expand(len(mean), -1, -1)
        else:
            places = (owner,) if inner is None else (owner, inner[0].long())
            mean = mean + linear(z[0], own[f"{name}_mean"][places])
            root = own[f"{name}_root"][places]
        variance = variance + (z[0][:, None] @ root).squeeze(1).square().sum(-1)
    if columns.z_outer is not None and columns.outer is not None:
        group, z = columns.outer[0].long(), columns.z_outer[0]
        mean = mean + linear(z, population["regions"][0][group]) * (group > 0)
        root = method.covariances["outer_root"].matrix(population["outer_root"])[0]
        variance = variance + (z @ root).square().sum(-1) * (group == 0)
    nodes, weights = (mean.new_tensor(found) for found in np.polynomial.hermite.hermgauss(NODES))
    return mean + (2 * variance).sqrt() * nodes[:, None], weights / weights.sum()
