"""Each client's posterior of its random effects: mode and curvature, by Newton's method.

In b = L u, with A = Z L and W = diag of minus the second derivatives of log p(y | eta):

    u      <- u + t H^-1 (A^T d log p(y | eta) / d eta - u),    H = I + A^T W A
    V_j    =  L H^-1 L^T

For a gaussian response that is the exact posterior, in one step with t = 1. Other families' log likelihoods are
generalised self-concordant in eta (their third derivative is never above the second), for which steps damped by
t = log(1 + r) / r, r how far eta would go, converge from anywhere (Sun and Tran-Dinh, Math. Programming 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.ppl.restrict import Restrict

from .families import linear_predictor, slope_and_weight
from .model import MixedModel

#: Newton steps to a mode, at most, and the length of the last one on the scale of eta
NEWTON_STEPS, NEWTON_TOLERANCE = 100, 1e-8


@dataclass(frozen=True)
class PosteriorMode:
    """A local step: mode m_j of each client's posterior and a root of V_j, the inverse of its curvature there.

    Families other than the gaussian have chains, which move along: draws keep their place relative to mode and root, so
    that they are near the posterior's mass after however large a step of the server. Where nothing shared moves they
    stay what they were.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """Mode, a lower triangle whose square is V_j, and the chains."""
        return ("b_mean", "b_root", "b_draws")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Solves all rows' systems at once; a row that has arrived stays where it is."""
        parts = []
        for first, last in buckets(chunk.sizes):
            part = chunk.part(first, last)
            with Restrict(part.view):
                parts.append(self.solve(part.batch()))
        mean, root = (torch.cat(found).unsqueeze(1) for found in zip(*parts, strict=True))
        new = {"b_mean": mean, "b_root": root}
        if not self.method.exact:
            old = {k: chunk.values[k].flatten(0, 1) for k in self.trains}  # (S, q), (S, q, q), (S, chains, kept, q)
            gap = (old["b_draws"] - old["b_mean"][:, None, None]).flatten(1, 2)
            gap = torch.linalg.solve_triangular(old["b_root"].mT, gap, upper=True, left=False) @ root.squeeze(1).mT
            new["b_draws"] = gap.view_as(chunk.values["b_draws"]) + mean[:, :, None, None]
        return chunk.put(new)

    def solve(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """m_j (S, q) and R_j (S, q, q) with V_j = R_j R_j^T."""
        x, z, known = self.method.network.split(batch.x)
        root, fixed = self.method.spread(), linear_predictor(x, self.method.value("beta"))
        zl = z @ root  # (S, n, q)
        one = torch.eye(zl.shape[-1], dtype=zl.dtype, device=zl.device)
        u = zl.new_zeros(zl.shape[0], zl.shape[-1])

        def step(u: Tensor) -> tuple[Tensor, Tensor]:
            """Newton's, and a factor of the precision of u."""
            slope, weight = self.derivatives(fixed + linear_predictor(zl, u.unsqueeze(1)), batch, known)
            factor, failed = torch.linalg.cholesky_ex(one + (zl * weight[..., None]).mT @ zl)
            factor = torch.where((failed == 0)[..., None, None], factor, torch.nan)  # (one row's failure is its own)
            ahead = ((zl * slope[..., None]).sum(-2) - u)[..., None]
            return torch.cholesky_solve(ahead, factor).squeeze(-1), factor

        move, factor = step(u)
        if self.method.exact:
            u = u + move
        else:
            moving = torch.ones_like(u[:, 0], dtype=torch.bool)
            for _ in range(NEWTON_STEPS):
                far = (zl @ move[..., None]).abs().amax((1, 2))
                u = torch.where(moving[:, None], u + damping(far)[:, None] * move, u)
                moving = moving & (far >= NEWTON_TOLERANCE)  # (not where it is not a number)
                # a GPU takes steps that change nothing rather than being waited for at each
                if u.device.type == "cpu" and not moving.any():
                    break
                move, there = step(u)
                factor = torch.where(moving[:, None, None], there, factor)
        # however small L is, L factor^-T is a root of V_j; its QR decomposition has the lower triangular one
        lower = torch.linalg.qr((root @ torch.linalg.inv_ex(factor).inverse.mT).mT).R.mT
        mode = (root @ u[..., None]).squeeze(-1)
        return mode, lower * lower.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)

    def derivatives(self, eta: Tensor, batch: Batch, known: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :func:`~hierfl.models.mixed_effects.families.slope_and_weight`."""
        return slope_and_weight(lambda eta: self.method.response(eta, known), eta, batch)


def damping(far: Tensor) -> Tensor:
    """The share t = log(1 + r) / r of a Newton step that would move eta by r."""
    return torch.log1p(far) / far.clamp_min(NEWTON_TOLERANCE)
