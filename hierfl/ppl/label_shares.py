"""A population of label shares: which of C classes a client has, and how often each of them comes.

    |A_j| = a    with probability kappa_a,   a = 1..C
    A_j | a      a set of a classes, with probability sum_{c in A} m_c / binomial(C - 1, a - 1)
    pi_j | A_j   ~ Dirichlet(beta C m_c, c in A_j),   zero elsewhere
    n_j | pi_j   ~ Multinomial(N_j, pi_j)

The weights of the sets make E[pi_j] = m whatever kappa and beta are: P(A | a) m_c / m_A summed over the sets that have
c is m_c. Given counts the posterior of a, of A_j and of pi_j has closed forms, O the classes that were seen, U the
others:

    P(A > O | a)     = (m_O binomial(|U|, k) + m_U binomial(|U| - 1, k - 1)) / binomial(C - 1, a - 1),   k = a - |O|
    p(n_j | a)       = P(A > O | a) Gamma(s_a) / Gamma(N_j + s_a) prod_{c in O} Gamma(n_c + alpha_c) / Gamma(alpha_c)
    E[pi_jc | n_j]   = sum_a p(a | n_j) P(c in A | a, O) (n_c + alpha_c) / (N_j + s_a)

with alpha_c = beta C m_c, and s_a the mean of sum_{c in A} alpha_c over the sets of a classes that have those seen.
That is exact where classes are equally frequent, and where the set is known; elsewhere it replaces a sum over sets with
its value at their mean.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from .empirical_draws import EmpiricalDraws


class LabelShares(TorchDistribution):
    """The population of label shares, or its posterior given a client's counts.

    Args:
        log_kappa: log probabilities of 1..C classes, (C,).
        log_beta: the logarithm of the concentration, (1,).
        log_pooled: log m, m the shares of the classes in the population, (C,), up to a constant.
        counts: examples of each class that a client has, (*batch, C); None for the population itself.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = False

    def __init__(
        self,
        log_kappa: Tensor,
        log_beta: Tensor,
        log_pooled: Tensor,
        counts: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.log_kappa, self.log_beta, self.log_pooled = log_kappa, log_beta, log_pooled
        self.counts = torch.zeros_like(log_pooled) if counts is None else counts
        self.classes = log_pooled.shape[-1]
        batch = self.counts.shape[:-1]
        super().__init__(batch, self.counts.shape[-1:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Shares that sum to one, some of which may be zero."""
        return constraints.simplex

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> LabelShares:
        """The same distribution over a larger batch shape."""
        counts = self.counts.expand((*batch_shape, self.classes))
        return LabelShares(self.log_kappa, self.log_beta, self.log_pooled, counts, validate_args=False)

    # -- posterior ------------------------------------------------------------------------------------------------

    @cached_property
    def n(self) -> Tensor:
        """The counts in double precision, (*batch, C)."""
        return self.counts.double().clamp_min(0)

    @property
    def pooled(self) -> Tensor:
        """m, (C,)."""
        return self.log_pooled.softmax(-1)

    @cached_property
    def observed(self) -> Tensor:
        """Whether a class was seen, (*batch, C)."""
        return self.n > 0

    @cached_property
    def alpha(self) -> Tensor:
        """beta C m_c, (C,)."""
        return self.log_beta.double().exp() * self.classes * self.log_pooled.double().softmax(-1)

    @cached_property
    def sizes(self) -> Tensor:
        """a = 1..C."""
        return torch.arange(1, self.classes + 1, dtype=torch.float64, device=self.counts.device)

    @cached_property
    def _sets(self) -> tuple[Tensor, Tensor]:
        """log P(A > O | a), (*batch, C sizes), and P(c in A | a, O), (*batch, C sizes, C)."""
        m = self.alpha / self.alpha.sum(-1, keepdim=True)
        weight_seen = torch.where(self.observed, m, 0.0).sum(-1, keepdim=True)
        unseen = (~self.observed).sum(-1, keepdim=True).double()
        weight_unseen = 1 - weight_seen
        k = self.sizes - (self.classes - unseen)
        both = weight_seen * binomial(unseen, k) + weight_unseen * binomial(unseen - 1, k - 1)
        # Nothing seen: every set will do.
        both = torch.where(unseen == self.classes, binomial(unseen - 1, k - 1), both)
        with_one, with_two = (binomial(unseen - d, k - d)[..., None] for d in (1, 2))
        own = m.expand_as(self.n)[..., None, :]
        inside = (weight_seen[..., None] + own) * with_one + (weight_unseen[..., None] - own) * with_two
        inside = inside / both.clamp_min(torch.finfo(both.dtype).tiny)[..., None]
        whole = binomial(torch.full_like(self.sizes, self.classes - 1.0), self.sizes - 1)
        return (both / whole).log(), torch.where(self.observed[..., None, :], 1.0, inside.clamp(0, 1))

    @cached_property
    def concentration(self) -> Tensor:
        """s_a, the mean of what the Dirichlet of a set of a classes has in all, (*batch, C sizes)."""
        return (self._sets[1] * self.alpha).sum(-1)

    @cached_property
    def log_joint(self) -> Tensor:
        """log kappa_a p(n_j | a) of counts in one order, (*batch, C sizes); minus infinity where a is impossible."""
        s, n = self.concentration, self.n
        total = n.sum(-1, keepdim=True)
        terms = torch.where(self.observed, torch.lgamma(n + self.alpha) - torch.lgamma(self.alpha), 0.0)
        log_density = self._sets[0] + torch.lgamma(s) - torch.lgamma(total + s) + terms.sum(-1, keepdim=True)
        possible = self.sizes >= self.observed.sum(-1, keepdim=True)
        return torch.where(possible, self.log_kappa.double() + log_density, -torch.inf)

    @property
    def log_evidence(self) -> Tensor:
        """log p(n_j) of counts in one order, (*batch,)."""
        return self.log_joint.logsumexp(-1)

    @cached_property
    def sizes_given(self) -> Tensor:
        """p(|A_j| = a | n_j), (*batch, C)."""
        return self.log_joint.softmax(-1)

    @cached_property
    def mean(self) -> Tensor:
        """E[pi_j | n_j], (*batch, C); the population's shares where there are no counts."""
        inside, s = self._sets[1], self.concentration
        total = self.n.sum(-1, keepdim=True)
        given = inside * ((self.n + self.alpha)[..., None, :] / (total + s)[..., None])
        mean = (self.sizes_given[..., None] * given).sum(-2)
        return torch.where(total > 0, mean.to(self.log_pooled.dtype), self.pooled)

    def given(self, counts: Tensor) -> LabelShares:
        """The posterior given a client's counts, (*batch, C)."""
        return LabelShares(self.log_kappa, self.log_beta, self.log_pooled, counts, validate_args=False)

    # -- draws ----------------------------------------------------------------------------------------------------

    def draws(self, uniforms: Tensor) -> Tensor:
        """Draws of pi_j, one for each row of uniforms.

        Args:
            uniforms: (K, *batch, 3 C + 2), each in (0, 1).

        Returns:
            (K, *batch, C); zero for the classes that a draw leaves out.
        """
        c, u = self.classes, uniforms.double()
        which, branch, rest = u[..., 0], u[..., 1], u[..., 2:]
        order, g, small = rest[..., :c], rest[..., c : 2 * c], rest[..., 2 * c :]
        at = (self.sizes_given.cumsum(-1) < which[..., None]).sum(-1).clamp_max(c - 1)
        missing = at + 1 - self.observed.sum(-1)  # (K, *batch): classes of the set that were not seen
        m = self.alpha / self.alpha.sum(-1, keepdim=True)
        # a set with a probability in proportion to its pooled shares: any, or any with a class that is drawn by share
        weight = torch.where(self.observed, m, 0.0).sum(-1)
        unseen = (~self.observed).sum(-1).double()
        anyone = weight * binomial(unseen, missing.double())
        chosen = (1 - weight) * binomial(unseen - 1, missing.double() - 1)
        by_share = torch.where(self.observed, 0.0, m).cumsum(-1)
        position = branch * (anyone + chosen)
        within = ((position - anyone) / chosen.clamp_min(torch.finfo(m.dtype).tiny)).clamp(0, 1)
        first = (by_share < (within * by_share[..., -1])[..., None]).sum(-1).clamp_max(c - 1)
        leads = (position > anyone)[..., None] & (torch.arange(c, device=m.device) == first[..., None]) & ~self.observed
        rank = torch.where(leads, -1.0, torch.where(self.observed, 2.0, order)).argsort(-1).argsort(-1)
        present = self.observed | (rank < missing[..., None])
        return torch.where(present, log_gammas(self.n + self.alpha, g, small), -torch.inf).softmax(-1)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws by torch's global generator, (*sample_shape, *batch, C)."""
        shape = (*sample_shape, *self.batch_shape, 3 * self.classes + 2)
        u = torch.rand(shape, dtype=torch.float64, device=self.counts.device).clamp(1e-12, 1 - 1e-12)
        return self.draws(u).to(self.log_pooled.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of the population on the face of the simplex that a value lies on, (*batch,)."""
        value = value.double()
        inside = value > 0
        alpha = torch.where(inside, self.alpha, 0.0)
        of_set = (alpha.sum(-1) / self.alpha.sum(-1)).log()
        size = inside.sum(-1, keepdim=True)
        whole = binomial(torch.full_like(self.sizes, self.classes - 1.0), self.sizes - 1).log()
        log_sets = (self.log_kappa.double() - whole).expand(*size.shape[:-1], self.classes).gather(-1, size - 1)
        terms = torch.where(inside, (self.alpha - 1) * value.clamp_min(1e-300).log() - torch.lgamma(self.alpha), 0.0)
        density = torch.lgamma(alpha.sum(-1)) + terms.sum(-1)
        return (of_set + log_sets.squeeze(-1) + density).to(self.log_pooled.dtype)


class SharesGiven(EmpiricalDraws):
    """A client's posterior of its label shares: draws, and their mean in closed form.

    Args:
        draws: (*batch, 1, kept, C).
        mean: E[pi_j | n_j], (*batch, C).
    """

    def __init__(self, draws: Tensor, mean: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(draws, 1, validate_args=validate_args)
        self._mean = mean

    @property
    def support(self) -> constraints.Constraint:
        """Shares that sum to one, some of which may be zero."""
        return constraints.simplex

    @property
    def mean(self) -> Tensor:
        """(*batch, C)."""
        return self._mean

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> SharesGiven:
        """The same over a larger batch shape."""
        shape = (*batch_shape, self.chains, self.kept, *self.event_shape)
        mean = self._mean.expand((*batch_shape, *self.event_shape))
        return SharesGiven(self.draws.expand(shape), mean, validate_args=False)


def log_offset(pi: Tensor, neutral: Tensor, floor: float) -> Tensor:
    """log of how much more often each class comes than where a network was trained, (..., C).

    Args:
        pi: label shares, (..., C).
        neutral: those for which the network predicts, (C,).
        floor: share of the labels that come as there, whatever pi is.
    """
    return torch.log1p((1 - floor) * (pi / neutral - 1))


def binomial(n: Tensor, k: Tensor) -> Tensor:
    """Binomial coefficients of whole numbers, zero where k is below zero or above n."""
    inside = (k >= 0) & (k <= n)
    n, k = torch.where(inside, n, 0.0), torch.where(inside, k, 0.0)
    coefficients = (torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)).exp()
    return torch.where(inside, coefficients, 0.0)


def log_gammas(shape: Tensor, u: Tensor, small: Tensor) -> Tensor:
    """Logarithms of gamma variates from uniforms: a variate of shape s is one of s + 1 times small^(1 / s)."""
    from scipy import special

    inverse = special.gammaincinv((shape + 1).expand_as(u).cpu().numpy(), u.cpu().numpy())
    log_variates: Tensor = torch.from_numpy(inverse).to(u).clamp_min(1e-300).log() + small.log() / shape
    return log_variates
