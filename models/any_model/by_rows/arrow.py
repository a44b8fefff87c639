r"""A client's part of the guide where rows have latents of their own, by Newton steps in expectation.

    q(u | x) = N(a + C (x - m), L L^T),      q(e_i | x, u) = N(a_i + S_i (x - m, u - a), L_i L_i^T),   i = 1..n     (1)

u are the client's own latents, e_i those of its row i. Rows are independent given x and u, so that the expected Hessian
of the log joint has the form of an arrow: blocks H_ii, and a border. By Schur's complement a step costs n times what a
row's numbers cost, and q is the Gaussian of the whole Hessian: nothing of the posterior's covariance is left out.

    A_i = -H_ii,       S_i = A_i^-1 H_i.,       Lambda = -H_uu - sum_i H_ui A_i^-1 H_iu                             (2)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..local import Message, kept_definite
from ..moments import ROUNDING, LogJoint, deviations, squares, units
from .layout import Layout


@dataclass(frozen=True)
class Arrow:
    """(1), of S clients.

    Attributes:
        layout: of a client's numbers.
        mean: a, (S, c).
        slope: C, (S, c, p).
        root: L, (S, c, c).
        means: a_i, (S, n, r).
        slopes: S_i, (S, n, r, p + c).
        roots: L_i, (S, n, r, r).
    """

    layout: Layout
    mean: Tensor
    slope: Tensor
    root: Tensor
    means: Tensor
    slopes: Tensor
    roots: Tensor

    @classmethod
    def unpacked(cls, layout: Layout, mean: Tensor, slope: Tensor, root: Tensor, p: int) -> Arrow:
        """The guide of what is kept of a client: (S, q), (S, slope_size) and (S, root_size)."""
        (c, n, r), count = layout.sizes, len(mean)
        own, rows = slope.split([c * p, n * r * (p + c)], -1)
        first, rest = root.split([c * c, n * r * r], -1)
        return cls(
            layout, mean[:, layout.own], own.reshape(count, c, p), first.reshape(count, c, c),
            mean[:, layout.rows], rows.reshape(count, n, r, p + c), rest.reshape(count, n, r, r),
        )  # fmt: skip

    def packed(self) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`unpacked` takes."""
        slope = torch.cat([self.slope.flatten(1), self.slopes.flatten(1)], -1)
        root = torch.cat([self.root.flatten(1), self.roots.flatten(1)], -1)
        return self.layout.joined(self.mean, self.means), slope, root

    def parts(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return self.mean, self.slope, self.root, self.means, self.slopes, self.roots

    def draws(self, moved: Tensor, own: Tensor, rows: Tensor) -> Tensor:
        """v (K, S, q) at x = m + ``moved`` (K, S, p), with noise (K, S, c) and (K, S, n, r)."""
        by_x = torch.einsum("scp,ksp->ksc", self.slope, moved)
        away = by_x + torch.einsum("scd,ksd->ksc", self.root, own)
        both = torch.cat([moved, away], -1)
        e = self.means + torch.einsum("snrm,ksm->ksnr", self.slopes, both)
        e = e + torch.einsum("snrt,ksnt->ksnr", self.roots, rows)
        return self.layout.joined(self.mean + away, e)

    @property
    def along(self) -> Tensor:
        """How a row's latents move with the globals, the client's own moving along: (S, n, r, p)."""
        p = self.slope.shape[-1]
        return self.slopes[..., :p] + torch.einsum("snrc,scp->snrp", self.slopes[..., p:], self.slope)

    def shifted(self, step: Tensor) -> Arrow:
        """The same, around m + ``step``, (S, p)."""
        mean = self.mean + torch.einsum("scp,sp->sc", self.slope, step)
        means = self.means + torch.einsum("snrp,sp->snr", self.along, step)
        return Arrow(self.layout, mean, self.slope, self.root, means, self.slopes, self.roots)

    @property
    def entropy(self) -> Tensor:
        """The entropy of q(v | x), (S,)."""
        logs = [root.diagonal(dim1=-2, dim2=-1).log().flatten(1).sum(-1) for root in (self.root, self.roots)]
        q = self.mean.shape[1] + self.means[0].numel()
        return logs[0] + logs[1] + 0.5 * q * (1 + math.log(2 * math.pi))

    @property
    def spread(self) -> Tensor:
        """Standard deviations of a client's numbers given the globals, (S, q)."""
        p = self.slope.shape[-1]
        by_own = self.slopes[..., p:] @ self.root[:, None]
        rows = (by_own.square().sum(-1) + self.roots.square().sum(-1)).sqrt()
        return self.layout.joined(self.root.square().sum(-1).sqrt(), rows)

    def recentred(self, mean: Tensor, slopes: Tensor) -> Arrow:
        """The guide in other numbers, to first order around the mean.

        Args:
            mean: in those, (S, q).
            slopes: of those, (S, q, p + c + r).
        """
        p, c = self.slope.shape[-1], self.layout.sizes[0]
        by_x, by_own = slopes[:, self.layout.own, :p], slopes[:, self.layout.own, p : p + c]
        of_rows = slopes[:, self.layout.rows]
        both, own = of_rows[..., : p + c], of_rows[..., p + c :]
        both = both + own @ self.slopes
        back = torch.linalg.inv(by_own)[:, None]
        by_u = both[..., p:] @ back
        return Arrow(
            self.layout, mean[:, self.layout.own], by_x + by_own @ self.slope, by_own @ self.root,
            mean[:, self.layout.rows], torch.cat([both[..., :p] - by_u @ by_x[:, None], by_u], -1), own @ self.roots,
        )  # fmt: skip

    def where(self, these: Tensor, other: Arrow) -> Arrow:
        """This of some clients (S,), and of the rest the other."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        return Arrow(self.layout, *(torch.where(these.view(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in pairs))

    def halfway(self, other: Arrow) -> Arrow:
        """The mean of this guide's numbers and the other's."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        return Arrow(self.layout, *((a + b) / 2 for a, b in pairs))


@dataclass(frozen=True)
class ArrowMoments:
    """Expected derivatives of S clients; m = p + c numbers of globals and of the client, in this order.

    Attributes:
        height: E[h], (S,).
        gradient, gradients: by those, (S, m), and by rows' latents, (S, n, r).
        hessian: (S, m, m).
        border: by rows' latents and those, (S, n, r, m).
        blocks: by rows' latents, (S, n, r, r).
        spread: see :class:`..moments.Moments`.
        unit, units: in which that is measured, of those numbers, (S, m), and of rows' latents, (S, n, r).
    """

    height: Tensor
    gradient: Tensor
    gradients: Tensor
    hessian: Tensor
    border: Tensor
    blocks: Tensor
    spread: Tensor
    unit: Tensor
    units: Tensor

    @property
    def size(self) -> Tensor:
        """Sum of the squares of the Hessian's entries, those of the border left out, (S,)."""
        return squares(self.hessian, self.unit) + squares(self.blocks, self.units).sum(-1)


def arrow_moments(log_joint: LogJoint, x: Tensor, v: Tensor, layout: Layout) -> ArrowMoments:
    """Expected derivatives, at draws (K, S, p) and (K, S, q): p + c + r products of the Hessian give all of it."""
    p, (c, _, r) = x.shape[-1], layout.sizes
    both = torch.cat([x, v], -1).detach().requires_grad_()
    few = torch.cat([torch.arange(p), p + layout.own])
    rows = p + layout.rows
    with torch.enable_grad():
        h = log_joint(*both.split([p, v.shape[-1]], -1))
        (gradient,) = torch.autograd.grad(h.sum(), both, create_graph=True)
        directions = [gradient[..., i] for i in few] + [gradient[..., rows[:, k]] for k in range(r)]
        products = []
        for k, direction in enumerate(directions):
            if gradient.requires_grad:
                last = k == len(directions) - 1
                (row,) = torch.autograd.grad(direction.sum(), both, retain_graph=not last, materialize_grads=True)
            else:
                row = torch.zeros_like(both)
            products.append(row)
    gradient, at = gradient.detach(), both.detach()
    mean = [row.mean(0) for row in products]
    first = torch.stack(mean[: p + c], -1) if p + c else x.new_zeros(*mean[0].shape, 0)  # (S, p + q, m)
    hessian = first[:, few]
    hessian = (hessian + hessian.mT) / 2
    blocks = torch.stack([direction[:, rows] for direction in mean[p + c :]], -1)
    sd = deviations(at)
    unit = sd.index_copy(1, few, units(sd[:, few], hessian))
    expected = ArrowMoments(
        h.detach().mean(0), gradient.mean(0)[:, few], gradient.mean(0)[:, rows], hessian, first[:, rows],
        (blocks + blocks.mT) / 2, x.new_zeros(x.shape[1]), unit[:, few], unit[:, rows],
    )  # fmt: skip
    spread = _bent(expected, at, gradient, few, rows)
    for k, (row, row_mean) in enumerate(zip(products, mean, strict=True)):
        if k < p + c:
            off = (row - row_mean) * unit * unit[:, few[k], None]
        else:  # a row's latents and few numbers are among the pairs above
            off = ((row - row_mean)[..., rows] * expected.units * expected.units[..., k - p - c, None]).flatten(2)
        spread = spread + off.square().mean(0).sum(-1)
    return replace(expected, spread=spread)


def _bent(expected: ArrowMoments, at: Tensor, gradient: Tensor, few: Tensor, rows: Tensor) -> Tensor:
    """What gradients (K, S, p + q) are off a line, as in :mod:`..moments`, (S,)."""
    apart, slope = at - at.mean(0), gradient - gradient.mean(0)
    by_few = torch.einsum("sij,ksj->ksi", expected.hessian, apart[..., few])
    by_few = by_few + torch.einsum("snrm,ksnr->ksm", expected.border, apart[..., rows])
    by_rows = torch.einsum("snrm,ksm->ksnr", expected.border, apart[..., few])
    by_rows = by_rows + torch.einsum("snrt,ksnt->ksnr", expected.blocks, apart[..., rows])

    def square(of_few: Tensor, of_rows: Tensor, unit: Tensor, units: Tensor) -> Tensor:
        return ((of_few * unit).square().sum(-1) + (of_rows * units).square().sum((-1, -2))).mean(0)

    scales = expected.unit, expected.units
    off = square(slope[..., few] - by_few, slope[..., rows] - by_rows, *scales)
    digits = ROUNDING**2 * square(gradient[..., few], gradient[..., rows], *scales)
    lengths = (1 / scale.clamp_min(1e-300) for scale in scales)
    return (off - digits).clamp_min(0) / square(apart[..., few], apart[..., rows], *lengths).clamp_min(1e-300)


def newton_step(q: Arrow, expected: ArrowMoments, p: int, most: float = 3.0) -> Arrow:
    """The guide's maximum of the quadratic that the expected derivatives describe, by (2).

    Blocks that are not positive definite are kept so as in :func:`..local.newton_step`, and steps as short.
    """
    of_rows = expected.border[..., p:]  # (S, n, r, c)
    all_found = (expected.hessian, expected.border, expected.blocks, expected.gradient, expected.gradients)
    finite = torch.stack([value.flatten(1).isfinite().all(1) for value in all_found]).all(0)
    old = torch.cholesky_inverse(q.roots)
    blocks = kept_definite(old, torch.where(finite[:, None, None, None], -expected.blocks, old))
    slopes = torch.linalg.solve(blocks, torch.where(finite[:, None, None, None], expected.border, 0.0))
    roots = torch.linalg.cholesky(torch.linalg.inv(blocks))
    eliminated = expected.hessian[:, p:] + torch.einsum("snrc,snrm->scm", of_rows, slopes)
    gradient = expected.gradient[:, p:] + torch.einsum("snrc,snr->sc", slopes[..., p:], expected.gradients)
    old = torch.cholesky_inverse(q.root)
    finite = finite & eliminated.flatten(1).isfinite().all(1) & gradient.isfinite().all(1)
    precision = (
        kept_definite(old, torch.where(finite[:, None, None], -eliminated[..., p:], old)) if len(old[0]) else old
    )
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    slope = torch.linalg.solve(precision, eliminated[..., :p])
    step = torch.linalg.solve(precision, gradient[..., None]).squeeze(-1)
    steps = torch.linalg.solve(blocks, expected.gradients[..., None]).squeeze(-1)
    steps = steps + torch.einsum("snrc,sc->snr", slopes[..., p:], step)
    spread = (slopes[..., p:] @ root[:, None]).square().sum(-1) + roots.square().sum(-1)
    length = (steps / spread.sqrt()).abs().flatten(1).amax(-1)
    if step.shape[-1]:
        length = torch.maximum(length, (step / root.square().sum(-1).sqrt()).abs().amax(-1))
    free = expected.spread <= 1e-18 * expected.size.clamp_min(1e-300)
    share = torch.where(free | (length < most), 1.0, most / length.clamp_min(1e-300))
    made = Arrow(
        q.layout, q.mean + share[:, None] * step, slope, root, q.means + share[:, None, None] * steps, slopes, roots
    )  # fmt: skip
    return made.where(finite, q)


def message(q: Arrow, expected: ArrowMoments) -> Message:
    """A client's message: derivatives of its bound by the globals, all of its latents moving with them."""
    p = q.slope.shape[-1]
    eye = torch.eye(p).to(q.slope).expand(len(q.slope), p, p)
    own, rows = torch.cat([eye, q.slope], 1), q.along
    gradient = (own.mT @ expected.gradient[..., None]).squeeze(-1) + torch.einsum(
        "snrp,snr->sp", rows, expected.gradients
    )
    cross = torch.einsum("snrp,snrm,sml->spl", rows, expected.border, own)
    inner = torch.einsum("snrp,snrt,sntl->spl", rows, expected.blocks, rows)
    curvature = own.mT @ expected.hessian @ own + cross + cross.mT + inner
    return Message(expected.height + q.entropy, gradient, -curvature, expected.spread)
