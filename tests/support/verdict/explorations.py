"""Explorations of densities that are known, without clients; and densities that a fit meets."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

from hierfl.inference.server.explored import Explored
from hierfl.models.any_model.rule import SECOND_PROPOSAL_FACTOR
from hierfl.models.any_model.verdict import Verdict, verdict

Density = Callable[[Tensor], Tensor]


def explore(
    density: Density, numbers: int, sd: float = 1.0, inner: tuple[float, ...] = (8.0,), spread: float = 0.0,
    each: int = 512, rounds: int = 16, worth: float = 1000.0,
) -> tuple[Verdict, Explored]:  # fmt: skip
    """As :class:`~hierfl.models.any_model.rule.NaturalGradient` explores, from a guide N(0, sd^2).

    Args:
        density: log density at points (M, p), (M,).
        numbers: p.
        sd: of the guide.
        inner: draws of the clients in each round, and in all after the last of these.
        spread: of heights with two draws, Student's with three degrees of freedom: noise of the clients.
        each, rounds, worth: settings.
    """
    like, generator = torch.zeros(1, dtype=torch.float64), torch.Generator().manual_seed(0)
    explored = Explored.begin(numbers, each, rounds, like)
    centre, root, latest = torch.zeros(numbers).double(), sd * torch.eye(numbers).double(), Verdict()
    while True:
        wider = SECOND_PROPOSAL_FACTOR ** min(1.0, 4 / numbers) if explored.done == 1 else 1.0
        explored = explored.drawn(centre, wider * root, 0, explored.done)
        draws = inner[min(explored.done, len(inner)) - 1]
        normal = torch.randn(4, each, generator=generator, dtype=torch.float64)
        noise = spread * math.sqrt(2 / draws) * normal[0] / normal[1:].square().mean(0).sqrt()
        explored = explored.with_heights(density(explored.asked) + noise)
        latest = verdict(explored, 0.0, draws, (1.0, 0.0, 0.0), latest)
        if (latest.worth >= worth and explored.done > 1) or explored.done == rounds:
            return latest, explored
        centre, root = explored.moments(0)


def gaussian(x: Tensor) -> Tensor:
    """Standard normal."""
    return -0.5 * x.square().sum(-1)


def funnel(x: Tensor) -> Tensor:
    """Neal's (2003): v ~ N(0, 3^2), x_k ~ N(0, e^v)."""
    v, rest = x[:, 0], x[:, 1:]
    return -0.5 * (v / 3) ** 2 - 0.5 * rest.square().sum(1) * (-v).exp() - 0.5 * rest.shape[1] * v


def horseshoe(x: Tensor) -> Tensor:
    """Six coefficients tau lambda_k e_k, each measured with an error of 0.2; x = (log tau, log lambda, e)."""
    tau, lam, e = x[:, 0], x[:, 1:7], x[:, 7:]
    y = torch.tensor([1.0, 0.1, -0.2, 0.0, 0.3, -0.1]).double()
    prior = -torch.log1p((tau.exp() / 0.2) ** 2) + tau + (lam - torch.log1p((2 * lam).exp())).sum(1)
    return prior - 0.5 * e.square().sum(1) - 0.5 * (((tau[:, None] + lam).exp() * e - y) / 0.2).square().sum(1)


def permuted(x: Tensor) -> Tensor:
    """Three means, known to +-1 and 5 apart, whose names may be exchanged: 3! modes, around one of them."""
    means = torch.tensor([-5.0, 0.0, 5.0], dtype=torch.float64)
    modes = means[torch.tensor(list(permutations(range(3))))] - means
    return (-0.5 * (x[:, None] - modes).square().sum(-1)).logsumexp(1)
