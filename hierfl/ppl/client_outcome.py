"""Location and scale of a client's responses around a network, with a population: label shares' counterpart.

    m_j        ~ N(nu, tau^2)            by how much a client's responses are above what the network says
    l_j        ~ N(mu, omega^2)          log of how much wider they spread around that
    y_ij | x   ~ N(f(x_ij) + m_j, (sigma e^{l_j})^2)

Given the residuals r_ij = y_ij - f(x_ij) of a client, three numbers of them say all: how many, their mean, and their
sum of squares around it. Given l_j the posterior of m_j is normal, and m_j is integrated out in closed form:

    mean(r_j) | l_j ~ N(nu, tau^2 + sigma^2 e^{2 l_j} / n_j)

What is left is a density of one number, l_j, and quadrature: :data:`NODES` equal steps over all of it that is within
e^-40 of its highest. The integrand is smooth and vanishes at both ends, so that the trapezoidal rule errs by less than
1e-8 (beside scipy: ``tests/hierfl/ppl/test_client_outcome.py``).

m_j is in units of a given noise, or of the standardised response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import constraints

from .empirical_draws import EmpiricalDraws

#: nodes of the quadrature, how often the interval is drawn closer, and how far below its highest density it ends
NODES, CLOSER, LOWEST = 64, 6, -40.0
#: the population's standard deviations on each side in which the search begins
SEARCH_STANDARD_DEVIATIONS = 10.0
#: a sum of squares is no less than this part of what the noise would give: residuals that are all equal have a scale
LEAST_PART = 1e-12


class OutcomeGiven(EmpiricalDraws):
    """A client's posterior of (m_j, l_j): draws, and their mean by quadrature.

    Args:
        draws: (*batch, 1, kept, 2).
        mean: (*batch, 2).
    """

    def __init__(self, draws: Tensor, mean: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(draws, 1, validate_args=validate_args)
        self._mean = mean

    @property
    def support(self) -> constraints.Constraint:
        """Any two numbers."""
        return constraints.independent(constraints.real, 1)

    @property
    def mean(self) -> Tensor:
        """(*batch, 2)."""
        return self._mean

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> OutcomeGiven:
        """The same over a larger batch shape."""
        shape = (*batch_shape, self.chains, self.kept, *self.event_shape)
        mean = self._mean.expand((*batch_shape, *self.event_shape))
        return OutcomeGiven(self.draws.expand(shape), mean, validate_args=False)


@dataclass(frozen=True)
class Residuals:
    """What is known of the residuals of S clients, (S,) each.

    Attributes:
        n: how many.
        mean: their mean.
        squares: the sum of their squares around that.
        log_sd: logarithm of the noise's standard deviation.
    """

    n: Tensor
    mean: Tensor
    squares: Tensor
    log_sd: Tensor

    @classmethod
    def from_residuals(cls, r: Tensor, sd: Tensor, mask: Tensor | None) -> Residuals:
        """Returns the statistics of residuals (S, n), with the noise's sd (S,); a row is padded where the mask is
        False.
        """
        r = r.double()
        present = torch.ones_like(r) if mask is None else mask.double()
        n = present.sum(-1)
        mean = (r * present).sum(-1) / n.clamp_min(1)
        squares = ((r - mean[:, None]).square() * present).sum(-1)
        least = LEAST_PART * sd.double().square() * (n - 1).clamp_min(0)
        return cls(n, mean, torch.maximum(squares, least), sd.double().log())


@dataclass(frozen=True)
class Population:
    """The population's four numbers: nu and mu, (2,), and log tau and log omega, (2,)."""

    location: Tensor
    log_scale: Tensor

    @property
    def tau(self) -> Tensor:
        """Standard deviation of m_j."""
        return self.log_scale.double()[0].exp()

    @property
    def omega(self) -> Tensor:
        """Standard deviation of l_j."""
        return self.log_scale.double()[1].exp()

    def shrinkage(self, r: Residuals, log_s: Tensor) -> Tensor:
        """tau^2 / (tau^2 + sigma^2 s^2 / n): the share of a mean residual that is m_j, for log s (S, G)."""
        by_data = r.n[:, None] * self.tau.square()
        return by_data / (by_data + (2 * (r.log_sd[:, None] + log_s)).exp())

    def log_joint(self, r: Residuals, log_s: Tensor) -> Tensor:
        """log p(r_j, l_j) with m_j integrated out, (S, G)."""
        n, log_sd = r.n[:, None], r.log_sd[:, None] + log_s
        nu, mu = self.location.double()
        variance = self.tau.square() + (2 * log_sd).exp() / n.clamp_min(1)
        within = -(n - 1) * (log_sd + 0.5 * math.log(2 * math.pi)) - 0.5 * r.squares[:, None] * (-2 * log_sd).exp()
        between = -0.5 * ((2 * math.pi * variance).log() + (r.mean[:, None] - nu).square() / variance)
        likelihood = torch.where(n > 0, within + between - 0.5 * n.clamp_min(1).log(), 0.0)
        prior = -0.5 * ((log_s - mu) / self.omega).square() - self.omega.log() - 0.5 * math.log(2 * math.pi)
        return likelihood + prior

    def given(self, r: Residuals) -> Given:
        """The posterior of each client."""
        nu, mu = self.location.double()
        omega, several = self.omega, r.n > 1
        within = 0.5 * (r.squares / (r.n - 1).clamp_min(1)).clamp_min(1e-300).log() - r.log_sd
        whole = 0.5 * ((r.squares + r.n * (r.mean - nu).square()) / r.n.clamp_min(1)).clamp_min(1e-300).log() - r.log_sd
        low = torch.where(several, torch.maximum(within, mu - (r.n + 1) * omega.square()), mu)
        high = torch.where(r.n > 0, whole, mu)
        low, high = (
            torch.minimum(low, mu) - SEARCH_STANDARD_DEVIATIONS * omega,
            torch.maximum(high, mu) + SEARCH_STANDARD_DEVIATIONS * omega,
        )
        steps = torch.linspace(0, 1, NODES, dtype=low.dtype, device=low.device)
        for _ in range(CLOSER):
            log_s = low[:, None] + (high - low)[:, None] * steps
            density = self.log_joint(r, log_s)
            near = density > density.max(-1, keepdim=True).values + LOWEST
            first = (near.double().argmax(-1) - 1).clamp_min(0)
            last = (NODES - near.flip(-1).double().argmax(-1)).clamp_max(NODES - 1)
            low, high = (log_s.gather(-1, at[:, None])[:, 0] for at in (first, last))
        log_s = low[:, None] + (high - low)[:, None] * steps
        log_p = self.log_joint(r, log_s)
        log_evidence = log_p.logsumexp(-1) + ((high - low) / (NODES - 1)).log()
        return Given(self, r, log_s, log_p.softmax(-1), log_evidence)


@dataclass(frozen=True)
class Given:
    """The posterior of (m_j, l_j) of S clients.

    Attributes:
        population: of which they are.
        residuals: of what they have.
        log_s: nodes, (S, G).
        weight: of the nodes, (S, G).
        log_evidence: log p(r_j), (S,).
    """

    population: Population
    residuals: Residuals
    log_s: Tensor
    weight: Tensor
    log_evidence: Tensor

    @property
    def shrinkage(self) -> Tensor:
        """See :meth:`Population.shrinkage`, at the nodes."""
        return self.population.shrinkage(self.residuals, self.log_s)

    @property
    def shift(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of m_j at each node, (S, G)."""
        b, nu = self.shrinkage, self.population.location.double()[0]
        return nu + b * (self.residuals.mean[:, None] - nu), self.population.tau.square() * (1 - b)

    @property
    def mean(self) -> Tensor:
        """E[m_j] and E[l_j], (S, 2)."""
        return torch.stack([self._expected(self.shift[0]), self._expected(self.log_s)], -1)

    @property
    def sd(self) -> Tensor:
        """The standard deviations of both, (S, 2)."""
        centre, variance = self.shift
        away = centre - self.mean[:, :1]
        of_shift = self._expected(variance + away.square())
        return torch.stack([of_shift, self._expected((self.log_s - self.mean[:, 1:]).square())], -1).sqrt()

    @property
    def score(self) -> Tensor:
        """The derivative of the log evidence by nu, log tau, mu and log omega, by Fisher's identity: (S, 4)."""
        nu, mu = self.population.location.double()
        tau2, omega2 = self.population.tau.square(), self.population.omega.square()
        centre, variance = self.shift
        m, m2 = self._expected(centre - nu), self._expected((centre - nu).square() + variance)
        away, away2 = self._expected(self.log_s - mu), self._expected((self.log_s - mu).square())
        return torch.stack([m / tau2, m2 / tau2 - 1, away / omega2, away2 / omega2 - 1], -1)

    @property
    def information(self) -> Tensor:
        """Expected information about each of these, (S, 4): of l_j as if its estimate were normal."""
        b, n = self._expected(self.shrinkage), self.residuals.n
        tau2, omega2 = self.population.tau.square(), self.population.omega.square()
        about_l = torch.where(n > 0, 2 * (n - 1) + 2 * (1 - b).square(), 0.0)
        share = omega2 * about_l / (1 + omega2 * about_l)
        return torch.stack([b / tau2, 2 * b.square(), share / omega2, 2 * share.square()], -1)

    def draws(self, u: Tensor, z: Tensor) -> Tensor:
        """Draws of (m_j, l_j), (K, S, 2), for uniforms and normals (K, S)."""
        below = self.weight.cumsum(-1) - 0.5 * self.weight  # the distribution function at the nodes
        at = torch.searchsorted(below, u.mT.contiguous()).clamp(1, NODES - 1)  # (S, K)
        left, right = (below.gather(-1, k) for k in (at - 1, at))
        share = ((u.mT - left) / (right - left).clamp_min(1e-300)).clamp(0, 1)
        log_s = self.log_s.gather(-1, at - 1) * (1 - share) + self.log_s.gather(-1, at) * share
        b = self.population.shrinkage(self.residuals, log_s)
        nu = self.population.location.double()[0]
        m = nu + b * (self.residuals.mean[:, None] - nu) + self.population.tau * (1 - b).sqrt() * z.mT
        return torch.stack([m, log_s], -1).transpose(0, 1)

    def _expected(self, value: Tensor) -> Tensor:
        return (self.weight * value).sum(-1)
