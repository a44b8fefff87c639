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
    for level_of_rows in method.above:
        if level_of_rows.smooth:  # a curve of the population, too
            eta = eta + linear(
                columns.for_level(level_of_rows.kind)[0][0], of_smooth(population[level_of_rows.effects])
            )
    if level == "population":
        return eta, eta.new_ones(1)
    mean, variance = eta[0], torch.zeros_like(eta[0])
    for level_of_rows in method.at_site:
        z, group = columns.for_level(level_of_rows.kind)
        if owner is None:
            root = level_of_rows.root(population[level_of_rows.name])[0].expand(len(mean), -1, -1)
        else:
            places = (owner,) if group is None else (owner, group[0].long())
            mean = mean + linear(z[0], own[f"{level_of_rows.effects}_mean"][places])
            root = own[f"{level_of_rows.effects}_root"][places]
        variance = variance + (z[0][:, None] @ root).squeeze(1).square().sum(-1)
    for level_of_rows in method.above:
        if level_of_rows.smooth:
            continue
        z, group = columns.for_level(level_of_rows.kind)
        assert group is not None
        index = group[0].long()
        mean = mean + linear(z[0], population[level_of_rows.effects][0][index]) * (index > 0)
        variance = variance + (z[0] @ level_of_rows.root(population[level_of_rows.name])[0]).square().sum(-1) * (
            index == 0
        )
    nodes, weights = (mean.new_tensor(by_node) for by_node in np.polynomial.hermite.hermgauss(NODES))
    return mean + (2 * variance).sqrt() * nodes[:, None], weights / weights.sum()
