"""What a client's labels mean: for each label the classes that its examples are of, with a population.

    g_j            ~ Bernoulli(lambda)                          whether the client's labels mean anything else
    g_jy | g_j = 1 ~ Bernoulli(mu)                              whether label y does
    B_jy           = e_y  where g_j g_jy = 0, and otherwise     Dirichlet(a at y, b at every other class)
    z_i | y_i      ~ Categorical(B_j[y_i])                      the class that example i looks like
    x_i | z_i      has a density in proportion to p(z_i | x_i) / m_z

B_j[y, k] = P(z = k | y) at the client. With its label shares pi_j the labels given inputs are

    p(y | x)       in proportion to pi_jy sum_k B_j[y, k] p(k | x) / m_k

That is a confusion C_j[k, y] = P(y | z = k) = pi_jy B_j[y, k] / sum_y' pi_jy' B_j[y', k] of classes k that come as
often as sum_y pi_jy B_j[y, k] says: one joint distribution of class and label, in the other order. In this order it has
two parts that do not meet: how often labels come, of which counts say all, and what each looks like, which is here. A
permutation of the labels is a permutation B_j; the spike is the identity.

Given the client's data each row of B_j is a mixture's weights with known densities. Its posterior is variational,
q(B_jy) = Dirichlet(alpha_y + N_y), N_y the expected examples of each class among those of label y; from several starts
the one of highest bound is taken for each row. The bound is used as the evidence of g_jy = 1; that of g_jy = 0 is
exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from .empirical_draws import EmpiricalDraws
from .label_shares import log_gammas

#: the population's numbers: probabilities of a client and of a label, and two concentrations; where they begin
NUMBERS = ("lambda", "mu", "a", "b")


class LabelConfusion(TorchDistribution):
    """The population of B_j, as vectors of C x C numbers, row by row.

    Args:
        numbers: lambda, mu, a and b, (4,).
        classes: C.
        batch: its batch shape.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = False

    def __init__(
        self, numbers: Tensor, classes: int, batch: torch.Size = torch.Size(), validate_args: bool | None = None,  # noqa: B008
    ) -> None:  # fmt: skip
        self.numbers, self.classes = numbers, classes
        super().__init__(batch, torch.Size([classes**2]), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Rows that sum to one."""
        return constraints.independent(constraints.nonnegative, 1)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> LabelConfusion:
        """The same distribution over a larger batch shape."""
        return LabelConfusion(self.numbers, self.classes, torch.Size(batch_shape), validate_args=False)

    @property
    def alpha(self) -> Tensor:
        """The Dirichlet's, (C, C)."""
        return concentrations(self.numbers, self.classes)

    @property
    def expected(self) -> Tensor:
        """E[B_j], (C, C)."""
        share, alpha = self.numbers[0] * self.numbers[1], self.alpha
        return (1 - share) * torch.eye(self.classes).to(alpha) + share * alpha / alpha.sum(-1, keepdim=True)

    @property
    def mean(self) -> Tensor:
        """The confusion of an unknown client: the identity, the population's spike, and not E[B_j].

        So the global model is that without confusion, number by number.
        """
        identity: Tensor = torch.eye(self.classes).to(self.numbers).flatten()
        return identity.expand((*self.batch_shape, self.classes**2))

    @property
    def expectation(self) -> Tensor:
        """E[B_j], (*batch, C C)."""
        return self.expected.flatten().expand((*self.batch_shape, self.classes**2))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws by torch's global generator, (*sample_shape, *batch, C C)."""
        c, shape = self.classes, (*sample_shape, *self.batch_shape)
        like = self.numbers.double()
        whether = torch.rand(*shape, 1, 1).to(like) < like[0]
        which = torch.rand(*shape, c, 1).to(like) < like[1]
        drawn = torch.distributions.Dirichlet(self.alpha.double().expand(*shape, c, c)).sample()
        draws = torch.where(whether & which, drawn, torch.eye(c).to(like))
        return draws.flatten(-2).to(self.numbers)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probabilities of which rows are e_y, and log densities of the others, (*batch,)."""
        rows = value.double().unflatten(-1, (self.classes, self.classes))
        share, some, _, _ = self.numbers.double()
        alpha = self.alpha.double()
        same = rows.diagonal(dim1=-2, dim2=-1) >= 1
        log_b = rows.clamp_min(1e-300).log()
        density = ((alpha - 1) * log_b).sum(-1) + torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
        drifted = torch.where(same, torch.log1p(-some), some.log() + density).sum(-1) + share.log()
        none = torch.where(same.all(-1), torch.log1p(-share), -torch.inf)
        return torch.logaddexp(drifted, none).to(value.dtype)


def concentrations(numbers: Tensor, classes: int) -> Tensor:
    """a on the diagonal and b elsewhere, (C, C)."""
    eye = torch.eye(classes).to(numbers)
    return numbers[2] * eye + numbers[3] * (1 - eye)


class ConfusionGiven(EmpiricalDraws):
    """A client's posterior of B_j: draws, and their mean in closed form.

    Args:
        draws: (*batch, 1, kept, C C).
        mean: E[B_j], (*batch, C C).
    """

    def __init__(self, draws: Tensor, mean: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(draws, 1, validate_args=validate_args)
        self._mean = mean

    @property
    def support(self) -> constraints.Constraint:
        """Rows that sum to one."""
        return constraints.independent(constraints.nonnegative, 1)

    @property
    def mean(self) -> Tensor:
        """(*batch, C C)."""
        return self._mean

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> ConfusionGiven:
        """The same over a larger batch shape."""
        shape = (*batch_shape, self.chains, self.kept, *self.event_shape)
        mean = self._mean.expand((*batch_shape, *self.event_shape))
        return ConfusionGiven(self.draws.expand(shape), mean, validate_args=False)


def confused(f: Tensor, b: Tensor, log_pooled: Tensor) -> Tensor:
    """log m_y sum_k B[y, k] p(k | x) / m_k up to a constant: logits where labels come as pooled, (..., n, C).

    Args:
        f: a network's logits for pooled shares, (..., S, n, C).
        b: B_j, (..., S, 1, C C).
        log_pooled: log m, (C,), up to a constant.
    """
    classes = f.shape[-1]
    rows = b.to(f).unflatten(-1, (classes, classes)).squeeze(-3)  # (..., S, C, C)
    log_m = log_pooled.log_softmax(-1).to(f)
    relative = f - log_m
    top = relative.max(-1, keepdim=True).values
    mixed = (relative - top).exp() @ rows.mT
    mixed = mixed.clamp_min(torch.finfo(f.dtype).tiny).log() + top + log_m
    # A label that means its class has the network's logit, to the bit.
    same = rows.diagonal(dim1=-2, dim2=-1)[..., None, :] >= 1
    return torch.where(same, f, mixed)


@dataclass(frozen=True)
class Given:
    """The posterior of S clients' B_j.

    Attributes:
        whether: P(g_j = 1), (S,).
        which: P(g_jy = 1 | g_j = 1), (S, C).
        alpha: alpha + N, (S, C, C).
        n: examples of each label, (S, C).
        numbers: of the population.
    """

    whether: Tensor
    which: Tensor
    alpha: Tensor
    n: Tensor
    numbers: Tensor

    @property
    def mean(self) -> Tensor:
        """E[B_j], (S, C, C)."""
        share = (self.whether[:, None] * self.which)[..., None]
        own = self.alpha / self.alpha.sum(-1, keepdim=True)
        return (1 - share) * torch.eye(own.shape[-1]).to(own) + share * own

    @property
    def confused(self) -> Tensor:
        """The expected part of a client's examples whose labels mean something else, (S,)."""
        return self.whether * (self.which * self.n).sum(-1) / self.n.sum(-1).clamp_min(1)

    def draws(self, uniforms: Tensor) -> Tensor:
        """Draws of B_j, (K, S, C, C), for uniforms (K, S, 1 + C + 2 C C)."""
        c = self.alpha.shape[-1]
        s, t, g, small = uniforms.double().split([1, c, c * c, c * c], -1)
        drawn = log_gammas(self.alpha, g.unflatten(-1, (c, c)), small.unflatten(-1, (c, c))).softmax(-1)
        moved = (s < self.whether[:, None]) & (t < self.which)
        return torch.where(moved[..., None], drawn, torch.eye(c).to(drawn))

    def sums(self) -> dict[str, Tensor]:
        """What EM on the population's numbers needs of each client, (S, 1) each."""
        c = self.alpha.shape[-1]
        a, b = self.numbers[2], self.numbers[3]
        counted = (self.n > 0).double()
        row = self.whether[:, None] * self.which * counted  # responsibilities
        counts = self.alpha - concentrations(self.numbers, c)
        own = counts.diagonal(dim1=-2, dim2=-1)
        psi, whole = torch.digamma, a + (c - 1) * b
        up_a = a * (psi(own.clamp_min(0) + a) - psi(a))
        off = b * (psi(counts.clamp_min(0) + b) - psi(b))
        up_b = off.sum(-1) - off.diagonal(dim1=-2, dim2=-1)
        down = psi(self.n + whole) - psi(whole)
        totals = {
            "clients": self.whether, "labels": row.sum(-1), "seen": self.whether * counted.sum(-1),
            "up_a": (row * up_a).sum(-1), "up_b": (row * up_b).sum(-1), "down": (row * down).sum(-1),
        }  # fmt: skip
        return {key: value.clamp_min(0)[:, None] for key, value in totals.items()}


def given_densities(numbers: Tensor, log_d: Tensor, y: Tensor, mask: Tensor | None, sweeps: int) -> Given:
    """The posterior of B_j given labels, and densities of the inputs under each class.

    Args:
        numbers: lambda, mu, a and b, (4,).
        log_d: log p(x_i | z = k) up to a constant of each input, (S, n, C).
        y: labels, (S, n).
        mask: (S, n), False where a row is padded; None where no row is.
        sweeps: of the variational updates.
    """
    numbers, log_d = numbers.double(), log_d.double()
    rows, _, c = log_d.shape
    weight = torch.ones_like(log_d[..., 0]) if mask is None else mask.double()
    at = y.long()[..., None].expand(log_d.shape)  # (S, n, C)

    def by_label(value: Tensor) -> Tensor:  # (..., S, n, C) to (..., S, C, C)
        posterior = value.new_zeros((*value.shape[:-2], c, c))
        return posterior.scatter_add_(-2, at.expand(value.shape), value * weight[..., None])

    n = log_d.new_zeros((rows, c)).scatter_add_(1, y.long(), weight)
    log_p = by_label(log_d)
    eye = torch.eye(c).to(log_d)
    best = torch.nn.functional.one_hot(log_p.argmax(-1), c).double() * n[..., None]
    counts = torch.stack([by_label(log_d.softmax(-1)), eye * n[..., None], best])  # (starts, S, C, C)
    prior = concentrations(numbers, c)
    bound = counts.new_zeros(counts.shape[:-1])
    for _ in range(sweeps):
        alpha = prior + counts
        log_b = alpha.digamma() - alpha.sum(-1, keepdim=True).digamma()
        joint = log_d + log_b.gather(-2, at.expand(len(counts), *at.shape))
        total = joint.logsumexp(-1, keepdim=True)
        divergence = dirichlet_divergence(alpha, prior, log_b)
        bound = _sum_by_label(total.squeeze(-1) * weight, y, c) - divergence
        counts, before = by_label((joint - total).exp()), counts
    first = bound.argmax(0, keepdim=True)
    evidence = bound.gather(0, first)[0]
    counts = before.gather(0, first[..., None].expand(1, *counts.shape[1:]))[0]
    share, some = numbers[0], numbers[1]
    same = log_p.diagonal(dim1=-2, dim2=-1)
    evidence = torch.where(n > 0, evidence, same)
    moved, kept = some.log() + evidence, torch.log1p(-some) + same
    which = (moved - kept).sigmoid()
    whether = (share.log() - torch.log1p(-share) + (torch.logaddexp(moved, kept) - same).sum(-1)).sigmoid()
    return Given(whether, which, prior + counts, n, numbers)


def _sum_by_label(value: Tensor, y: Tensor, c: int) -> Tensor:
    """(..., S, n) to (..., S, C)."""
    sums = value.new_zeros((*value.shape[:-1], c))
    return sums.scatter_add_(-1, y.long().expand(value.shape), value)


def dirichlet_divergence(q: Tensor, p: Tensor, log_b: Tensor) -> Tensor:
    """KL from Dirichlet(q) to Dirichlet(p), (...), with log_b = E_q[log B], (..., C)."""
    lg: Any = torch.lgamma
    return lg(q.sum(-1)) - lg(q).sum(-1) - lg(p.sum(-1)) + lg(p).sum(-1) + ((q - p) * log_b).sum(-1)
