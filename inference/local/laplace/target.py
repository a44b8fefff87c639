"""The restricted model of some clients as a function of their heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from hierfl.errors import UserError
from hierfl.nn.head import orthonormal_contrasts
from hierfl.nn.output_derivatives import mean_output_curvature, moved_output, output_gradient
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.gaussian_factors import cholesky
from hierfl.ppl.restrict import Restrict, Site

from ...clients.chunk import ClientChunk
from ...objective.sites import guide_latents
from ...state import State
from .forms import Curvature, Scaled
from .points import predictor_points


@dataclass(frozen=True)
class Expansion:
    """Prior, and the likelihood averaged over a posterior, in the order of the weight matrix; S rows.

    Attributes:
        mu: the posterior's mean, (S, d).
        m, r: mean and standard deviation of the prior, (S, d).
        log_prior: of mu, (S,).
        log_likelihood: E log p(D_j | w_j), (S,).
        gradient: g, of that by mu, (S, d).
        z: design (S, n, p).
        curvature_of_outputs: makes E Lambda_i (S, n, q, q), zero where padded.
        away: deviations from mu that carry the posterior's covariance, (M, S, d); None where it is a point.
    """

    mu: Tensor
    m: Tensor
    r: Tensor
    log_prior: Tensor
    log_likelihood: Tensor
    gradient: Tensor
    z: Tensor
    curvature_of_outputs: Callable[[], Tensor]
    away: Tensor | None

    @cached_property
    def weights(self) -> Tensor:
        """E Lambda_i; a line search asks where it is not wanted."""
        return self.curvature_of_outputs()

    def drawn_curvature(self, h: Curvature) -> Tensor:
        """tr(H V), V the covariance that the likelihood was averaged over: (S,)."""
        if self.away is None:
            return torch.zeros_like(self.log_likelihood)
        return (self.away * h.times(self.away)).sum(-1).mean(0)

    @property
    def height(self) -> Tensor:
        """What the mean maximises while the covariance is fixed, (S,)."""
        return self.log_prior + self.log_likelihood

    @property
    def slope(self) -> Tensor:
        """Its gradient, (S, d)."""
        return self.gradient - (self.mu - self.m) / self.r.square()

    def offset(self, h: Curvature, scaled: Scaled) -> Tensor:
        """E[w_j | m] - m = P^-1 (H (mu - m) + g), (S, d): to full precision however narrow the prior."""
        return self.r * scaled.solve(self.r * (h.times(self.mu - self.m) + self.gradient))


@dataclass(frozen=True)
class Spread:
    """A Gaussian posterior's deviations from its mean, and what they do to each example's predictor.

    Attributes:
        away: (M, S, d).
        moves: of the outputs, (K, S, n, outputs): points of a normal with covariance mean_m (W_m z_i) (W_m z_i)^T.
    """

    away: Tensor
    moves: Tensor


class Target:
    """The restricted model of some rows as a function of their heads.

    Features are computed in the run's precision.

    Args:
        chunk: the rows.
        latent: the head's site, whose prior is Normal.
        dtype: of everything else.
        centred: other latents of the clients, which are put at the centre of their guide.
    """

    def __init__(
        self,
        chunk: ClientChunk,
        latent: str,
        dtype: torch.dtype = torch.float64,
        centred: Sequence[str] = (),
    ) -> None:
        self.chunk, self.latent, self.dtype = chunk, latent, dtype
        batch = chunk.batch()
        self.batch = replace(batch, y=self.cast(batch.y))
        self.head = chunk.method.network.head
        self.order = self.head.matrix_order.to(chunk.n.device)
        self.back = self.order.argsort()
        base, x, values = chunk.method.network.base, batch.x, chunk.view
        with Restrict(values):
            features = base(x).to(dtype)
        self.frozen = FrozenFeatures(frozenset(), lambda network: features)
        self.frozen.show(x)
        if not self.frozen.serves(base, x):
            raise UserError("a head's Gaussian posterior needs a base whose features do not depend on the batch")
        self.z = self._zero_padded(self.head.design(features))
        guide = guide_latents(chunk.method, self.batch, self.values, None) if centred else {}
        self.centred = {name: guide[name].value for name in centred}

    @property
    def values(self) -> State:
        """What the rows see."""
        return {k: self.cast(v) for k, v in self.chunk.view.items()}

    def cast(self, value: Tensor) -> Tensor:
        """Casts a floating-point value to the precision of the computation; other values stay."""
        return value.to(self.dtype) if value.is_floating_point() else value

    def given(self, shared: State, own: State) -> Target:
        """The same rows where some shared values and some of their own are others, of which no feature depends."""
        other = copy(self)
        other.chunk = replace(self.chunk.put(own), shared={**self.chunk.shared, **shared})
        return other

    def spread(self, away: Tensor, points: int) -> Spread:
        """What deviations (M, S, d) do to the predictors, in at least so many points for each example."""
        rows, n, _ = self.z.shape
        q = self.head.rows
        deviations = self.z @ away.permute(1, 0, 2).reshape(rows, -1, self.z.shape[-1]).mT  # (S, n, M q)
        deviations = deviations.unflatten(-1, (len(away), q))
        covariance = deviations.mT @ deviations / len(away)
        # A class that says nothing, and an example of zeros, have no spread at all.
        info = torch.finfo(covariance.dtype)
        little = max(1e-10, 10 * info.eps) * covariance.diagonal(dim1=-2, dim2=-1).sum(-1) + info.tiny
        root = cholesky(covariance + torch.diag_embed(little[..., None].expand(rows, n, q)))
        sets = predictor_points(q, points).to(root)
        moves = sets[torch.arange(n, device=root.device) % len(sets)] @ root.mT  # (S, n, K, q)
        moves = moves @ self._contrasts if self.head.contrasts else moves
        return Spread(away, moves.permute(2, 0, 3, 1).contiguous().mT)  # examples last, as they are summed over

    @property
    def _contrasts(self) -> Tensor:
        return orthonormal_contrasts(self.head.outputs).to(self.z)

    def at(self, mu: Tensor, spread: Spread | None = None) -> Expansion:
        """Expands around a posterior with this mean (S, d), over its spread; without one, at the mean."""
        prior, y = self._sites(mu)
        fn = moved_output(y.fn, self.z.new_zeros((1, 1, 1, 1)) if spread is None else spread.moves)
        contrasts = self._contrasts if self.head.contrasts else None
        first = output_gradient(fn, y.value).mean(0)
        first = first if contrasts is None else first @ contrasts.T
        density = self._zero_padded(fn.log_prob(y.value).mean(0)).sum(-1)
        m, r = (v.expand(mu.shape) for v in self._normal(prior))
        height = Normal(m, r, validate_args=False).log_prob(mu).sum(-1)
        gradient = (self._zero_padded(first).mT @ self.z).flatten(-2)
        away = None if spread is None else spread.away

        def curvature_of_outputs() -> Tensor:
            return self._zero_padded(mean_output_curvature(fn, contrasts))

        return Expansion(mu, m, r, height, density, gradient, self.z, curvature_of_outputs, away)

    def followed(self, mu: Tensor, begun: Tensor, spread: Spread | None) -> Expansion:
        """The start of Newton's steps: the mean as it is, or as far from w as it was, whichever is likelier.

        Where the prior is narrow the mean has gone with w. What is left of the way is no gradient of the likelihood.

        Args:
            mu: the mean, (S, d).
            begun: where w was when it was made, (S, d).
            spread: over which likelihoods are averaged.
        """
        as_is = self.at(mu)
        as_far = self.at(as_is.m + mu - begun)
        better = as_far.height > as_is.height
        begin = torch.where(better[:, None], as_far.mu, mu)
        return as_is if spread is None and not bool(better.any()) else self.at(begin, spread)

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

    def _zero_padded(self, value: Tensor) -> Tensor:
        """Zero where rows (S, n, ...) are padded."""
        if self.batch.mask is None:
            return value
        return torch.where(self.batch.mask.view(*self.batch.mask.shape, *[1] * (value.dim() - 2)), value, 0.0)

    def _sites(self, heads: Tensor) -> tuple[Site, Site]:
        latents = {**self.centred, self.latent: heads[..., None, self.back]}
        with Restrict(self.values, latents=latents, frozen=self.frozen) as restricted:
            self.chunk.method.model(self.batch)
        prior = restricted.sites.get(self.latent)
        responses = [s for s in restricted.sites.values() if s.kind == "observed" and s.per_example]
        if prior is None or len(responses) != 1:
            raise UserError(f"Laplace is of a head {self.latent!r} of the model and of one response")
        return prior, responses[0]

    def _normal(self, site: Site) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, (S or 1, d)."""
        base: Any = site.fn.base_dist if isinstance(site.fn, Independent) else site.fn
        if not isinstance(base, Normal):
            raise UserError(f"Laplace needs a Normal prior of {self.latent!r}, not {type(base).__name__}")
        return tuple(v.reshape(-1, v.shape[-1])[:, self.order] for v in (base.loc, base.scale))  # type: ignore[return-value]
