"""The restricted model of some clients as a function of their heads."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from hierfl.errors import UserError
from hierfl.nn.head import orthonormal_contrasts
from hierfl.nn.output_derivatives import output_derivatives
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.restrict import Restrict, Site

from ...clients.chunk import ClientChunk
from ...state import State
from .forms import Curvature, Scaled


@dataclass(frozen=True)
class Expansion:
    """Prior, and the likelihood averaged over a posterior's draws, in the order of the weight matrix; S rows.

    Attributes:
        mu: the posterior's mean, (S, d).
        m, r: mean and standard deviation of the prior, (S, d).
        log_prior: of mu, (S,).
        log_likelihood: E log p(D_j | w_j), (S,).
        gradient: g, of that by mu, (S, d).
        z, weights: design (S, n, p) and E Lambda_i (S, n, q, q), zero where padded.
        away: deviations of the draws from mu, (K, S, d); None where there are none.
    """

    mu: Tensor
    m: Tensor
    r: Tensor
    log_prior: Tensor
    log_likelihood: Tensor
    gradient: Tensor
    z: Tensor
    weights: Tensor
    away: Tensor | None

    def drawn_curvature(self, h: Curvature) -> Tensor:
        """tr(H V), V the draws' second moment: (S,)."""
        if self.away is None:
            return torch.zeros_like(self.log_likelihood)
        return (self.away * h.times(self.away)).sum(-1).mean(0)

    @property
    def height(self) -> Tensor:
        """What the mean maximises while the draws' deviations are held, (S,)."""
        return self.log_prior + self.log_likelihood

    @property
    def slope(self) -> Tensor:
        """Its gradient, (S, d)."""
        return self.gradient - (self.mu - self.m) / self.r.square()

    def offset(self, h: Curvature, scaled: Scaled) -> Tensor:
        """E[w_j | m] - m = P^-1 (H (mu - m) + g), (S, d): to full precision however narrow the prior."""
        return self.r * scaled.solve(self.r * (h.times(self.mu - self.m) + self.gradient))


class Target:
    """The restricted model of some rows as a function of their heads, in double precision.

    Differences between a likelihood with the head integrated out and without are small numbers beside both, and
    posteriors of well-separated classes have precisions of many sizes. Features are computed as the run's are.

    Args:
        chunk: the rows.
        latent: the head's site, whose prior is Normal.
    """

    def __init__(self, chunk: ClientChunk, latent: str) -> None:
        self.chunk, self.latent = chunk, latent
        batch = chunk.batch()
        self.batch = replace(batch, y=_double(batch.y))
        self.head = chunk.method.network.head
        self.order = self.head.matrix_order.to(chunk.n.device)
        self.back = self.order.argsort()
        base, x, values = chunk.method.network.base, batch.x, chunk.view
        with Restrict(values):
            features = base(x).double()
        self.frozen = FrozenFeatures(frozenset(), lambda network: features)
        self.frozen.show(x)
        if not self.frozen.serves(base, x):
            raise UserError("a head's Gaussian posterior needs a base whose features do not depend on the batch")
        self.z = self._there(self.head.design(features))

    @property
    def values(self) -> State:
        """What the rows see."""
        return {k: _double(v) for k, v in self.chunk.view.items()}

    def given(self, shared: State, own: State) -> Target:
        """The same rows where some shared values and some of their own are others, of which no feature depends."""
        other = copy(self)
        other.chunk = replace(self.chunk.put(own), shared={**self.chunk.shared, **shared})
        return other

    def at(self, mu: Tensor, away: Tensor | None = None) -> Expansion:
        """At a posterior with this mean (S, d), averaged over draws mu + away (K, S, d), or at the mean alone."""
        prior, y = self._sites(mu if away is None else mu + away)
        first, second = output_derivatives(y.fn, y.value)
        if self.head.contrasts:
            q = orthonormal_contrasts(self.head.outputs).to(first)
            first, second = first @ q.T, q @ second @ q.T
        density = y.fn.log_prob(y.value)
        if away is not None:
            first, second, density = first.mean(0), second.mean(0), density.mean(0)
        density = self._there(density).sum(-1)
        m, r = (v.expand(mu.shape) for v in self._normal(prior))
        height = Normal(m, r, validate_args=False).log_prob(mu).sum(-1)
        gradient = (self._there(first).mT @ self.z).flatten(-2)
        return Expansion(mu, m, r, height, density, gradient, self.z, self._there(second), away)

    def prior(self) -> tuple[Tensor, Tensor]:
        """Its mean and standard deviation, (S, d)."""
        shape = len(self.chunk.clients), len(self.order)
        prior, _ = self._sites(self.z.new_zeros(shape))
        m, r = (v.expand(shape) for v in self._normal(prior))
        return m, r

    def under_prior(self, at: Expansion) -> Expansion:
        """The same likelihood beside this target's prior."""
        prior, _ = self._sites(at.mu)
        m, r = (v.expand(at.mu.shape) for v in self._normal(prior))
        return replace(at, m=m, r=r, log_prior=Normal(m, r, validate_args=False).log_prob(at.mu).sum(-1))

    def _there(self, value: Tensor) -> Tensor:
        """Zero where rows (S, n, ...) are padded."""
        if self.batch.mask is None:
            return value
        return torch.where(self.batch.mask.view(*self.batch.mask.shape, *[1] * (value.dim() - 2)), value, 0.0)

    def _sites(self, heads: Tensor) -> tuple[Site, Site]:
        latents = {self.latent: heads[..., None, self.back]}
        with Restrict(self.values, latents=latents, frozen=self.frozen) as seen:
            self.chunk.method.model(self.batch)
        prior = seen.sites.get(self.latent)
        responses = [s for s in seen.sites.values() if s.kind == "observed" and s.per_example]
        if prior is None or len(responses) != 1:
            raise UserError(f"Laplace is of a head {self.latent!r} of the model and of one response")
        return prior, responses[0]

    def _normal(self, site: Site) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, (S or 1, d)."""
        base: Any = site.fn.base_dist if isinstance(site.fn, Independent) else site.fn
        if not isinstance(base, Normal):
            raise UserError(f"Laplace needs a Normal prior of {self.latent!r}, not {type(base).__name__}")
        return tuple(v.reshape(-1, v.shape[-1])[:, self.order] for v in (base.loc, base.scale))  # type: ignore[return-value]


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value
