"""Separation: directions of the population's numbers along which the likelihood rises for ever."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.equations import MixedModel

#: no finite estimate exists along a direction where the numbers are beyond the first limit and their standard error is
#: beyond the second. Columns have a spread of one along it.
SEPARATED, WITHOUT_END = 5.0, 30.0
#: nor where a coefficient's standard error is beyond this limit. It is high, since the column of a rare level has a
#: large standard error without being separated.
NO_INFORMATION = 1e3


def directions(method: MixedModel, estimates: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Directions of the k numbers, (k, k), one a column; and along which of them there is no finite estimate, (k,).

    There the estimates have gone far, and hardly any curvature is left. Coefficients are looked at in directions in
    which the linear predictor has a spread of one: columns that nearly go together have hardly any curvature along
    their difference either, and it is no separation. Where coefficients are not searched, there is none.
    """
    numbers = method.numbers(estimates)
    turn = torch.eye(len(numbers)).to(numbers)
    if not method.likelihood.searches_beta:
        return turn, torch.zeros(len(numbers), dtype=torch.bool, device=numbers.device)
    p = len(method.network.fixed)
    if method.network.fixed_correlation:
        # beta = R^-T gamma, where R R^T is the correlation of the columns: x^T beta has the variance |gamma|^2
        root = torch.linalg.cholesky(numbers.new_tensor(method.network.fixed_correlation))
        turn[-p:, -p:] = torch.linalg.inv(root).mT
    if (unit := method.unit) != 1.0:
        of_eta = [name in method.covariances or name == "beta" for name, n in method.sizes.items() for _ in range(n)]
        turn = turn * torch.where(torch.tensor(of_eta), unit, 1.0).to(turn)
    values, vectors = torch.linalg.eigh(turn.mT @ estimates["curvature"] @ turn)
    gone = (vectors.mT @ torch.linalg.solve(turn, numbers)).abs() > SEPARATED
    of_coefficients = vectors[-p:].square().sum(0) > 0.5
    unknown = of_coefficients & (values < NO_INFORMATION**-2)
    return turn @ vectors, (values < WITHOUT_END**-2) & gone | unknown
