"""Predictions at the estimates, of a fit without draws: what random effects are not known by is integrated out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.inference.state import State

from ..model.arithmetic import linear, of_smooth
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
    for of in method.above:
        if of.smooth:  # (a curve of the population, too)
            eta = eta + linear(columns.of(of.kind)[0][0], of_smooth(population[of.effects]))
    if level == "population":
        return eta, eta.new_ones(1)
    mean, variance = eta[0], torch.zeros_like(eta[0])
    for of in method.at_site:
        z, group = columns.of(of.kind)
        if owner is None:
            root = of.root(population[of.name])[0].expand(len(mean), -1, -1)
        else:
            places = (owner,) if group is None else (owner, group[0].long())
            mean = mean + linear(z[0], own[f"{of.effects}_mean"][places])
            root = own[f"{of.effects}_root"][places]
        variance = variance + (z[0][:, None] @ root).squeeze(1).square().sum(-1)
    for of in method.above:
        if of.smooth:
            continue
        z, group = columns.of(of.kind)
        assert group is not None
        index = group[0].long()
        mean = mean + linear(z[0], population[of.effects][0][index]) * (index > 0)
        variance = variance + (z[0] @ of.root(population[of.name])[0]).square().sum(-1) * (index == 0)
    nodes, weights = (mean.new_tensor(found) for found in np.polynomial.hermite.hermgauss(NODES))
    return mean + (2 * variance).sqrt() * nodes[:, None], weights / weights.sum()
