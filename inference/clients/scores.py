"""What draws of a latent know of the marginal likelihood: its scores, with control variates, and its curvature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.ppl.sigma_points import Noise, SigmaPoints

from ..objective.log_joint import log_joint
from ..objective.sites import guide_latents
from ..state import State
from .chunk import ClientChunk

#: draws x examples of a pass: for each of them second derivatives hold some fifty numbers
HELD = 1_000_000


@dataclass(frozen=True)
class Curvature:
    """What draws of a latent z say of the marginal log likelihood's curvature in the shared values theta.

    With s and u the gradients of a row's log joint in theta and z, and C the mean of its minus second derivatives,

        profile  = C_tt - C_tz C_zz^-1 C_zt,    observed = profile - Cov(s - C_tz C_zz^-1 u).

    observed is Louis' (1982) identity, C_tt - Cov(s), with the part of the covariance that u explains taken by
    Bartlett's, Cov(u) = C_zz, which leaves little to the draws. profile is never smaller (but for Monte-Carlo error).

    Attributes:
        scores: E[s] with control variates, {name: (S, *shape)}; see :func:`curvature`.
        profile, observed: (S, k, k), k numbers of all values one after the other.
    """

    scores: State
    profile: Tensor
    observed: Tensor


def controlled_scores(chunk: ClientChunk, names: Sequence[str], latent: str, particles: int) -> State:
    """The scores of :func:`curvature` alone, {name: (S, *shape)}."""
    return curvature(chunk, names, latent, particles, information=False).scores


def curvature(
    chunk: ClientChunk,
    names: Sequence[str],
    latent: str,
    particles: int,
    degree: int = 2,
    *,
    information: bool = True,
    sigma_points: bool = False,
) -> Curvature:
    """Scores by Fisher's identity, and information, from draws of one latent.

    The scores have control variates: E[u] = 0, and E[(z_a - m_a) u_b + (z_b - m_b) u_a + 2 1(a = b)] = 0, and the
    regression of s on these, evaluated at zero, is its expectation. Where the posterior is Gaussian and the score a
    polynomial of that degree no Monte-Carlo error is left (zero-variance MCMC; Mira, Solgi and Imparato, Statistics and
    Computing 2013).

    Args:
        chunk: the rows.
        names: the shared values.
        latent: a latent of the client plate, on the real line.
        particles: K, draws of the guide.
        degree: of the control variates, 1 or 2; 0 for the draws' plain mean.
        information: False leaves the second derivatives out, and the information empty.
        sigma_points: takes the expectations at these instead of draws (``particles`` and ``degree`` 0): exact for a
            Gaussian guide where the log joint is quadratic in the latent; see
            :class:`~hierfl.ppl.sigma_points.SigmaPoints`.

    Raises:
        UserError: for too few draws to regress on.
    """
    found = []
    with pyro.validation_enabled(False), torch.enable_grad():
        if sigma_points:
            outline = guide_latents(chunk.method, chunk.federation.template(), chunk.part(0, 1).values, None)
            points = SigmaPoints(chunk.federation.dtype, chunk.federation.device, degree=5)
            particles = len(points.weights(outline[latent].fn.event_shape.numel()))
        for first, last in buckets(chunk.sizes, HELD // particles):
            part = chunk.part(first, last)
            noise = points if sigma_points else part.noise(("curvature", *names), particles, part.sizes)
            found.append(_curvature(part, names, latent, degree, information, noise))
    return Curvature(
        {name: torch.cat([rows.scores[name] for rows in found]) for name in names},
        torch.cat([rows.profile for rows in found]),
        torch.cat([rows.observed for rows in found]),
    )


def _curvature(
    chunk: ClientChunk, names: Sequence[str], latent: str, degree: int, wanted: bool, noise: Noise
) -> Curvature:
    batch, rows = chunk.batch(), len(chunk.clients)
    drawn = {k: site.value.detach() for k, site in guide_latents(chunk.method, batch, chunk.view, noise).items()}
    z = drawn[latent].clone().requires_grad_()
    particles = len(z)
    weights = noise.weights(z[0, 0].numel()) if isinstance(noise, SigmaPoints) else None
    leaves = {
        k: chunk.shared[k].expand(particles, rows, 1, *chunk.shared[k].shape).clone().requires_grad_() for k in names
    }
    inputs = [*leaves.values(), z]
    height = log_joint(chunk.method, batch, {**chunk.view, **leaves}, {**drawn, latent: z})
    slopes = _along(height.sum(), inputs, again=wanted)  # (K, S, k + e)
    k = slopes.shape[-1] - z.flatten(2).shape[-1]
    s, u = slopes.detach()[..., :k], slopes.detach()[..., k:]
    if degree:
        at_zero = _intercept(_controls(z.detach().flatten(2), u, degree), s.transpose(0, 1))
    else:
        at_zero = _mean(weights, s)
    parts = at_zero.split([chunk.shared[name].numel() for name in names], 1)
    scores = {name: part.view(rows, *chunk.shared[name].shape) for name, part in zip(names, parts, strict=True)}
    if not wanted:
        return Curvature(scores, s.new_empty((rows, 0, 0)), s.new_empty((rows, 0, 0)))
    lines = [_mean(weights, _along(slopes[..., a].sum(), inputs, again=False)) for a in range(slopes.shape[-1])]
    information = -torch.stack(lines, 1).detach()
    c_tz, c_zz = information[:, :k, k:], information[:, k:, k:]
    explains = _solve(c_zz, c_tz.mT).mT  # C_tz C_zz^-1
    profile = information[:, :k, :k] - explains @ c_tz.mT
    rest = s - torch.einsum("sij,csj->csi", explains, u)
    rest = rest - _mean(weights, rest)
    if weights is None:
        left = torch.einsum("csi,csj->sij", rest, rest) / max(1, particles - 1)
    else:
        left = torch.einsum("c,csi,csj->sij", weights, rest, rest)
    return Curvature(scores, profile, profile - left)


def _mean(weights: Tensor | None, values: Tensor) -> Tensor:
    """(K,), or None for equal ones, and (K, S, numbers) -> (S, numbers)."""
    return values.mean(0) if weights is None else torch.tensordot(weights, values, 1)


def _along(value: Tensor, inputs: Sequence[Tensor], *, again: bool) -> Tensor:
    """The gradient in all inputs (K, S, 1, *shape), one after the other: (K, S, numbers); zero where there is none."""
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if value.requires_grad:
        found = torch.autograd.grad(value, inputs, allow_unused=True, create_graph=again, retain_graph=True)
    parts = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
    return torch.cat([part.flatten(2) for part in parts], -1)


def _solve(a: Tensor, b: Tensor) -> Tensor:
    """A^-1 B, (S, e, e) and (S, e, k): not a number for a row whose matrix is singular, which costs no other row."""
    solution, failed = torch.linalg.solve_ex(a, b)
    return torch.where((failed == 0)[:, None, None], solution, torch.nan)


def _controls(z: Tensor, u: Tensor, degree: int) -> Tensor:
    """(K, S, e), twice -> (S, K, c): what has mean zero."""
    controls = [u]
    if degree > 1:
        gap, e = z - z.mean(0), z.shape[-1]
        a, b = torch.triu_indices(e, e, device=z.device)
        controls.append(gap[..., a] * u[..., b] + gap[..., b] * u[..., a] + 2.0 * (a == b))
    c = torch.cat(controls, -1).transpose(0, 1)
    if c.shape[1] < 5 * c.shape[2]:
        raise UserError(f"{c.shape[1]} draws are too few for {c.shape[2]} control variates: more chains or steps")
    return c


def _intercept(c: Tensor, s: Tensor) -> Tensor:
    """Least squares of s (S, K, k) on 1 and c (S, K, c): what is left where c is zero, (S, k)."""
    scale = c.square().mean(1, keepdim=True).sqrt().clamp_min(torch.finfo(c.dtype).tiny)
    c = c / scale
    centre, level = c.mean(1, keepdim=True), s.mean(1, keepdim=True)
    gap = c - centre
    one = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device)
    slope = _solve(gap.mT @ gap / c.shape[1] + 1e-9 * one, gap.mT @ (s - level) / c.shape[1])
    return (level - centre @ slope).squeeze(1)
