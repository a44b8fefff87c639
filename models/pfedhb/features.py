"""Shifts and scales of the features, client by client, with spreads by marginal likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.laplace.posterior import pairs
from hierfl.inference.objective.sites import guide_latents
from hierfl.inference.state import State
from hierfl.nn.head import LinearHead, orthonormal_contrasts
from hierfl.nn.output_derivatives import moved_output, output_gradient
from hierfl.ppl.gaussian_factors import cholesky
from hierfl.ppl.plates import param
from hierfl.ppl.restrict import Restrict
from hierfl.rng import ClientNoise

from .heads import HeadSpreads
from .turns import Turns

#: features at most: a client's posterior has a matrix of twice as many rows
MAX_FEATURES = 512
#: where the spreads of scales and shifts begin, and the scale of their half-normal prior
TAU_0, TAU_SCALE = 0.1, 10.0
#: how often a step of Newton's is halved, and what it promises where it has arrived
HALVINGS, ARRIVED = 8, 1e-14
#: numbers of the gradient of some examples' outputs that are held at a time
MAX_NUMBERS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Features:
    """A client's features are (1 + s_j) h + t_j, s_j ~ N(0, tau_s^2), t_j ~ N(0, tau_t^2), each of p numbers.

    They reach the outputs through the global head: w^T (s_j h + t_j) is added, a linear predictor of v_j = (s_j, t_j).

    Args:
        head: of the network.
        tau_0: where both spreads begin.
        scale: of their half-normal prior.
        draws: of each client's posterior in the end.
    """

    head: LinearHead
    tau_0: float
    scale: float
    draws: int

    def shared(self) -> State:
        """log tau and its information."""
        log_tau = torch.full((2,), self.tau_0, dtype=torch.float64).log()
        return {"features.log_rho": log_tau, "features.information": torch.eye(2, dtype=torch.float64)}

    def personal(self, like: Tensor, kept: int) -> State:
        """A posterior at zero, of no width."""
        zero = like.new_zeros(2 * self.head.features)
        return {"v": zero, "v_j_draws": zero.expand(1, kept, -1)}

    def tau(self, like: Tensor) -> Tensor:
        """The spread of each number, (2 p,)."""
        return param("features.log_rho").exp().repeat_interleave(self.head.features).to(like)

    def added(self, w: Tensor, z: Tensor, v: Tensor) -> Tensor:
        """w^T (s h + t): (..., S, n, outputs) for w (d,) or (S, 1, d), z (S, n, p) and v (..., S, 1, 2 p)."""
        s, t = v.split(self.head.features, -1)
        moved = (z * s + t) @ self.weight(w).mT
        return moved @ orthonormal_contrasts(self.head.outputs).to(moved) if self.head.contrasts else moved

    def weight(self, w: Tensor) -> Tensor:
        """The head's matrix, (q, p) or (S, q, p)."""
        matrix = w[..., : self.head.rows * self.head.features].unflatten(-1, (self.head.rows, self.head.features))
        return matrix if w.dim() == 1 else matrix.squeeze(-3)

    def rule(self, turns: Turns) -> HeadSpreads:
        """How spreads are learned."""
        return HeadSpreads("features", "v_j", self.scale, turns)

    def step(self, final: bool = False) -> FeatureShifts:
        """Newton's steps on q(v_j)."""
        return FeatureShifts(self, 5 if final else 2, self.draws if final else 0)


@dataclass(frozen=True)
class FeatureShifts:
    """Laplace's approximation of q(v_j) by Newton's steps, given the mean of the client's other latents.

    With H the curvature of the log likelihood and D = diag(tau)^2, P = H + D^-1, a row leaves the score of log tau,
    |v|_b^2 / tau_b^2 - tr_b(H P^-1), and its expected information 2 tr_bc((tau^2 A)^2), A = H P^-1 D^-1.

    Args:
        features: the part.
        newton: steps.
        final: draws in the end; 0 for as many as there are.
    """

    features: Features
    newton: int
    final: int

    @property
    def trains(self) -> Sequence[str]:
        """Mean and draws."""
        return ("v", "v_j_draws")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves the posteriors of all rows."""
        parts_of: dict[str, list[Tensor]] = {}
        wide = 2 * self.features.head.features
        with torch.no_grad():
            for first, last in buckets(chunk.sizes, max(1, MAX_NUMBERS_AT_ONCE // (wide * self.features.head.outputs))):
                for key, value in self._rows(chunk.part(first, last), phase).items():
                    parts_of.setdefault(key, []).append(value.to(chunk.n.dtype).unsqueeze(1))
        return chunk.put({key: torch.cat(parts) for key, parts in parts_of.items()})

    def _rows(self, chunk: ClientChunk, phase: object) -> State:
        predictor, v = Predictor.for_chunk(chunk, self.features), chunk.values["v"].squeeze(1).double()
        height = predictor.height(v)
        for _ in range(self.newton):
            gradient, h = predictor.slope_and_curvature(v)
            step = torch.linalg.solve(h + torch.diag(predictor.tau**-2), gradient)
            arrived = (gradient * step).sum(-1) < ARRIVED
            if bool(arrived.all()):
                break
            step = torch.where(
                arrived[:, None], 0.0, step
            )  # else a row would depend on those that it shares a plate with
            length = torch.ones_like(height)
            for _ in range(HALVINGS):
                new = v + length[:, None] * step
                higher = predictor.height(new)
                worse = ~(higher >= height)
                if not bool(worse.any()):
                    break
                length = torch.where(worse, length / 2, length)
            better = higher >= height
            v, height = torch.where(better[:, None], new, v), torch.where(better, higher, height)
        if self.final:
            _, h = predictor.slope_and_curvature(v)
        # Otherwise that before the last step will do: where nothing moves any more they are the same.
        tau, p = predictor.tau, self.features.head.features
        scaled = tau[:, None] * h * tau  # D^1/2 H D^1/2 = B - I
        inside = torch.linalg.solve(scaled + torch.eye(2 * p).to(scaled), scaled)  # of A times tau^2, symmetric
        gamma = inside.diagonal(dim1=-2, dim2=-1)
        score = ((v / tau).square() - gamma).unflatten(-1, (2, p)).sum(-1)
        information = 2 * inside.square().unflatten(-1, (2, p)).sum(-1).unflatten(-2, (2, p)).sum(-2)
        kept = self.final or chunk.values["v_j_draws"].shape[3]
        keys = chunk.keys.to(chunk.n.device)
        when = () if self.final else (chunk.round, phase)
        noise = ClientNoise(keys, (chunk.seed, "features", *when), max(1, kept // 2), dtype=v.dtype)
        root = cholesky(scaled + torch.eye(2 * p).to(scaled))
        e = pairs(noise, "v_j", 2 * p, kept)  # (K, S, 2 p)
        away = tau * torch.linalg.solve_triangular(root.mT, e[..., None], upper=True).squeeze(-1)
        drawn = (v + away).transpose(0, 1)[:, None]
        return {"v": v, "v_j_draws": drawn, "v_j/score": score, "v_j/information": information}


@dataclass(frozen=True)
class Predictor:
    """Some rows' likelihood as a function of v, (S, 2 p)."""

    features: Features
    w: Tensor
    z: Tensor
    y: Tensor
    mask: Tensor | None
    fn: Any
    tau: Tensor

    @classmethod
    def for_chunk(cls, chunk: ClientChunk, features: Features) -> Predictor:
        """The predictor given the centre of the other latents, v at zero."""
        method, batch, view = chunk.method, chunk.batch(), chunk.view
        centre = {k: site.value for k, site in guide_latents(method, batch, view, None).items()}
        with Restrict(view):
            z = method.network.base(batch.x).double()
        zero = z.new_zeros((len(chunk.clients), 1, 2 * features.head.features)).to(batch.x.dtype)
        with Restrict(view, latents={**centre, "v_j": zero}) as restricted:
            method.model(batch)
        fn = restricted.sites["y"].fn
        with Restrict(view):
            tau = features.tau(z)
        return cls(features, view["w"].double(), z, batch.y, batch.mask, moved_output(fn, z.new_zeros(1, 1, 1, 1)), tau)

    def at(self, v: Tensor) -> Any:
        """The response's distribution, (1, S, n)."""
        return moved_output(self.fn, self.features.added(self.w, self.z, v[:, None])[None])

    def height(self, v: Tensor) -> Tensor:
        """Log likelihood and log prior, (S,)."""
        return self._zero_padding(self.at(v).log_prob(self.y)[0]).sum(-1) - 0.5 * (v / self.tau).square().sum(-1)

    def slope_and_curvature(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of that, (S, 2 p), and minus the second derivative of the likelihood, (S, 2 p, 2 p)."""
        fn = self.at(v)
        weight = self.features.weight(self.w)  # (q, p) or (S, q, p)
        head = self.features.head
        if head.contrasts:
            weight = orthonormal_contrasts(head.outputs).to(weight).mT @ weight
        weight = weight if weight.dim() == 3 else weight[None]
        first = self._zero_padding(output_gradient(fn, self.y)[0])  # (S, n, C)
        back = first @ weight  # (S, n, p)
        gradient = torch.cat([(back * self.z).sum(1), back.sum(1)], -1) - v / self.tau.square()
        probs = self._zero_padding(fn.probs[0])
        centred = weight[:, None] - (probs @ weight)[:, :, None]  # W_c - sum_c p_c W_c, (S, n, C, p)
        x = probs.sqrt()[..., None] * centred
        x = torch.cat([x * self.z[:, :, None], x], -1).flatten(1, 2)  # (S, n C, 2 p)
        return gradient, x.mT @ x

    def _zero_padding(self, value: Tensor) -> Tensor:
        if self.mask is None:
            return value
        return torch.where(self.mask.view(*self.mask.shape, *[1] * (value.dim() - 2)), value, 0.0)
