"""What draws of a latent know of the marginal likelihood: its scores, with control variates."""

from __future__ import annotations

from collections.abc import Sequence

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.rng import ClientNoise

from ..objective.log_joint import log_joint
from ..objective.sites import guide_latents
from ..state import State
from .chunk import ClientChunk

#: draws x examples of a pass: for each of them derivatives hold some twenty numbers
MAX_NUMBERS_AT_ONCE = 1_000_000


def controlled_scores(chunk: ClientChunk, names: Sequence[str], latent: str, particles: int) -> State:
    """Scores of the shared values by Fisher's identity, from draws of one latent: E[s], {name: (S, *shape)}.

    With s and u the gradients of a row's log joint in the shared values and in the latent z, they have control
    variates: E[u] = 0, and E[(z_a - m_a) u_b + (z_b - m_b) u_a + 2 1(a = b)] = 0, and the regression of s on these,
    evaluated at zero, is its expectation. Where the posterior is Gaussian and the score a polynomial of that degree no
    Monte-Carlo error is left (zero-variance MCMC; Mira, Solgi and Imparato, Statistics and Computing 2013).

    Args:
        chunk: the rows.
        names: the shared values.
        latent: a latent of the client plate, on the real line.
        particles: K, draws of the guide.

    Raises:
        UserError: for too few draws to regress on.
    """
    parts = []
    with pyro.validation_enabled(False), torch.enable_grad():
        for first, last in buckets(chunk.sizes, MAX_NUMBERS_AT_ONCE // particles):
            part = chunk.part(first, last)
            parts.append(_scores(part, names, latent, part.noise(("curvature", *names), particles, part.sizes)))
    return {name: torch.cat([rows[name] for rows in parts]) for name in names}


def _scores(chunk: ClientChunk, names: Sequence[str], latent: str, noise: ClientNoise) -> State:
    batch, rows = chunk.batch(), len(chunk.clients)
    drawn = {k: site.value.detach() for k, site in guide_latents(chunk.method, batch, chunk.view, noise).items()}
    z = drawn[latent].clone().requires_grad_()
    leaves = {
        k: chunk.shared[k].expand(len(z), rows, 1, *chunk.shared[k].shape).clone().requires_grad_() for k in names
    }
    height = log_joint(chunk.method, batch, {**chunk.view, **leaves}, {**drawn, latent: z})
    slopes = _along(height.sum(), [*leaves.values(), z])  # (K, S, k + e)
    k = slopes.shape[-1] - z.flatten(2).shape[-1]
    at_zero = _intercept(_controls(z.detach().flatten(2), slopes[..., k:]), slopes[..., :k].transpose(0, 1))
    parts = at_zero.split([chunk.shared[name].numel() for name in names], 1)
    return {name: part.view(rows, *chunk.shared[name].shape) for name, part in zip(names, parts, strict=True)}


def _along(value: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """The gradient in all inputs (K, S, 1, *shape), one after the other: (K, S, numbers); zero where there is none."""
    slopes: Sequence[Tensor | None] = [None] * len(inputs)
    if value.requires_grad:
        slopes = torch.autograd.grad(value, inputs, allow_unused=True)
    parts = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, slopes, strict=True)]
    return torch.cat([part.flatten(2) for part in parts], -1)


def _solve(a: Tensor, b: Tensor) -> Tensor:
    """A^-1 B, (S, e, e) and (S, e, k): not a number for a row whose matrix is singular, which costs no other row."""
    solution, failed = torch.linalg.solve_ex(a, b)
    return torch.where((failed == 0)[:, None, None], solution, torch.nan)


def _controls(z: Tensor, u: Tensor) -> Tensor:
    """(K, S, e), twice -> (S, K, c): what has mean zero."""
    gap, e = z - z.mean(0), z.shape[-1]
    a, b = torch.triu_indices(e, e, device=z.device)
    c = torch.cat([u, gap[..., a] * u[..., b] + gap[..., b] * u[..., a] + 2.0 * (a == b)], -1).transpose(0, 1)
    if c.shape[1] < 5 * c.shape[2]:
        raise UserError(f"{c.shape[1]} draws are too few for {c.shape[2]} control variates: more chains or steps")
    return c


def _intercept(c: Tensor, s: Tensor) -> Tensor:
    """Least squares of s (S, K, k) on 1 and c (S, K, c): what is left where c is zero, (S, k)."""
    scale = c.square().mean(1, keepdim=True).sqrt().clamp_min(torch.finfo(c.dtype).tiny)
    c = c / scale
    centre, level = c.mean(1, keepdim=True), s.mean(1, keepdim=True)
    gap = c - centre
    identity = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device)
    slope = _solve(gap.mT @ gap / c.shape[1] + 1e-9 * identity, gap.mT @ (s - level) / c.shape[1])
    return (level - centre @ slope).squeeze(1)
