"""Whether draws of the globals are of the posterior, by dense quadrature or by a symmetry that it has."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from .models import TOPICS

#: the ends of the central 90 % interval, and by how much the posterior's mass below an end may be off
ENDS, OFF = (0.05, 0.95), 0.04
#: nodes of a grid of two globals, and of three
NODES = {1: 1001, 2: 101, 3: 81}


def off(name: str, df: pd.DataFrame, draws: Tensor) -> float:
    """How much of the posterior's mass is too much or too little below an end of an interval, at most; nan: not known.

    Args:
        name: of a case.
        df: its data.
        draws: of the globals, unconstrained, (D, p).
    """
    if name == "funnel":
        return max(abs(float(stats.norm(0, 3).cdf(float(draws[:, 0].quantile(end)))) - end) for end in ENDS)
    if name == "topics":  # the chance that a word is likelier under the first topic than under the second is 1/2
        first, second = draws.view(len(draws), TOPICS, -1).unbind(1)[:2]
        return float(((first > second).double().mean(0) - 0.5).abs().max())
    if name == "horseshoe":
        return float("nan")
    grids = [
        torch.linspace(float(m - 9 * s), float(m + 9 * s), NODES[draws.shape[1]], dtype=torch.float64)
        for m, s in zip(draws.mean(0), draws.std(0), strict=True)
    ]
    height = log_density(name.split(",")[0], df, torch.cartesian_prod(*grids).view(-1, len(grids)))
    mass = height.softmax(0).view([len(grid) for grid in grids])
    worst = 0.0
    for k, grid in enumerate(grids):
        of = mass.sum([i for i in range(len(grids)) if i != k]) if len(grids) > 1 else mass
        below = of.cumsum(0) - of / 2
        for end in ENDS:
            at = float(draws[:, k].quantile(end))
            worst = max(worst, abs(float(np.interp(at, grid.numpy(), below.numpy())) - end))
    return worst


def log_density(name: str, df: pd.DataFrame, x: Tensor) -> Tensor:
    """Log p(x, y) but for a constant, clients' latents integrated out, at unconstrained globals (P, p)."""
    groups = df.groupby("site").y
    number, mean = (torch.tensor(value.to_numpy(dtype=float)) for value in (groups.size(), groups.mean()))
    mu, tau = x[:, 0], x[:, 1].exp() if x.shape[1] > 1 else torch.ones(len(x)).double()
    if name in ("schools", "held"):
        return (
            _normal(mean, mu, tau, torch.tensor(df.sigma.to_numpy()) ** 2)
            - 0.5 * (mu / 5) ** 2 - torch.log1p((tau / 5) ** 2) + x[:, 1]
        )  # fmt: skip
    if name == "normal":
        sigma = x[:, 2].exp()
        within = torch.tensor(groups.apply(lambda y: ((y - y.mean()) ** 2).sum()).to_numpy())
        rest = (-(number - 1) * x[:, 2, None] - 0.5 * within / sigma[:, None] ** 2).sum(1)
        prior = -0.5 * ((mu / 3) ** 2 + tau**2 + sigma**2) + x[:, 1] + x[:, 2]
        return _normal(mean, mu, tau, sigma[:, None] ** 2 / number) + rest + prior
    e = torch.linspace(-7.5, 7.5, 1001, dtype=torch.float64)
    chunks = []
    for m, t in zip(mu.split(512), tau.split(512), strict=True):
        u = m[:, None] + (3.0 if name == "signs" else t[:, None]) * e
        parts = [_client(name, u, float(n), float(y)) for n, y in zip(number, mean, strict=True)]
        chunks.append(torch.stack([(part - 0.5 * e**2).logsumexp(1) for part in parts]).sum(0))
    if name == "signs":
        return torch.cat(chunks) - 0.5 * mu**2
    return torch.cat(chunks) - 0.5 * (mu / (1.5 if name == "binomial" else 1.0)) ** 2 - 0.5 * tau**2 + x[:, 1]


def _normal(y: Tensor, mu: Tensor, tau: Tensor, variance: Tensor) -> Tensor:
    """Of clients' means y (J,) given the population's (P,), each with a variance, (J,) or (P, J)."""
    v = variance + tau[:, None] ** 2
    return (-0.5 * v.log() - 0.5 * (y - mu[:, None]) ** 2 / v).sum(1)


def _client(name: str, u: Tensor, number: float, mean: float) -> Tensor:
    """Log p(rows | u) of a client with so many rows of a mean."""
    if name == "poisson":
        return number * (mean * u - u.clamp(max=600).exp())
    if name == "binomial":
        return number * (mean * u - 10 * torch.nn.functional.softplus(u))
    return -0.5 * ((mean - u.abs()) / 0.3) ** 2
