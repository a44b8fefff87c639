"""Kenward and Roger's covariance of a gaussian response's coefficients, and their F test.

With variances and covariances sigma, in which V is linear, A = X^T V^-1 X, Phi = A^-1, P_i = dA / d sigma_i,
Q_ij = d^2 A / d sigma_i d sigma_j / 2, and W the inverse of sigma's expected information under REML,

    Phi_A = Phi + 2 Phi (sum_ij W_ij (Q_ij - P_i Phi P_j)) Phi

(Kenward and Roger, Biometrics 1997, with R = 0). A and log |V| are known from the clients' sums with two derivatives in
L's entries and log s, and turned into derivatives in sigma.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from hierfl.inference.state import State

from ..likelihood.gaussian.elimination import symmetric
from ..likelihood.gaussian.regions import without_regions
from ..model.equations import MixedModel

#: a variance on its bound, near which L moves nothing, is taken for known: derivatives by an entry of L below this
#: share of the largest standard deviation, and singular values below this share
ON_BOUND = 1e-3
#: information on a variance below this share of the terms that it is the sum of is rounding
ROUNDING = 1e-10


@dataclass(frozen=True)
class KenwardRoger:
    """What the test is made of, in the design's units.

    Attributes:
        phi: (X^T V^-1 X)^-1, (p, p).
        slopes: P, (k, p, p).
        spread: W, (k, k).
        adjusted: Phi_A, (p, p).
    """

    phi: Tensor
    slopes: Tensor
    spread: Tensor
    adjusted: Tensor

    @classmethod
    def from_estimates(cls, method: MixedModel, estimates: State) -> KenwardRoger:
        """Computes the correction at REML's estimates, from the sums around them.

        Args:
            method: of a gaussian response.
            estimates: with the sums "cross", "cross_1" and "cross_2".
        """
        p, numbers = len(method.network.fixed), method.numbers(estimates)
        zero = torch.zeros_like(numbers)

        def sums(step: Tensor) -> Tensor:
            """A's upper left p rows and columns, one after the other, and log |V|: (p p + 1,)."""
            packed = estimates["cross"] + step @ estimates["cross_1"]
            packed = packed + 0.5 * torch.einsum("a,abc,b->c", step, estimates["cross_2"], step)
            packed = without_regions(method, packed, numbers + step)
            a = symmetric(packed[:-1], p + 1)[:p, :p]
            return torch.cat([a.flatten(), packed[-1:]])

        slope, bend = _in_variances(method, numbers, *_derivatives(sums, zero))
        phi = torch.linalg.inv_ex(sums(zero)[:-1].unflatten(0, (p, p))).inverse
        slopes = slope[:-1].unflatten(0, (p, p)).permute(2, 0, 1)  # P
        q = 0.5 * bend[:-1].unflatten(0, (p, p)).permute(2, 3, 0, 1)  # Q
        product = slopes @ phi
        terms = torch.stack([
            -0.5 * bend[-1], -torch.einsum("ab,ijba->ij", phi, q), 0.5 * torch.einsum("iab,jba->ij", product, product),
        ])  # fmt: skip
        spread = _inverse(_above_rounding(terms))
        more = torch.einsum("ij,ijab->ab", spread, q) - torch.einsum("ij,iab,jbc->ac", spread, product, slopes)
        return cls(phi, slopes, spread, phi + 2 * phi @ more @ phi)

    def degrees_of_freedom(self, contrasts: Tensor) -> Tensor:
        """The degrees of freedom of each contrast (r, p) by itself, (r,): :meth:`f_test`'s, which are then 2 v^2 / (g
        W g),
        v its variance by Phi and g_i = l^T Phi P_i Phi l; its F is then t^2.
        """
        turn = contrasts @ self.phi
        v = (turn * contrasts).sum(1)
        g = torch.einsum("ra,iab,rb->ri", turn, self.slopes, turn)
        degrees: Tensor = 2 * v.square() / ((g @ self.spread) * g).sum(1)
        return degrees

    def f_test(self, away: Tensor, contrast: Tensor) -> tuple[float, float, float]:
        """F, its denominator's degrees of freedom, and p, of contrast (q, p) times beta (p,) being what is ``away``
        (q,) from its estimate: ``contrast @ beta`` for zero.
        """
        q = len(contrast)
        theta = contrast.T @ torch.linalg.solve(contrast @ self.phi @ contrast.T, contrast)
        products = theta @ self.phi @ self.slopes @ self.phi
        trace = torch.einsum("iaa->i", products)
        a_1 = float(trace @ self.spread @ trace)
        a_2 = float((self.spread * torch.einsum("iab,jba->ij", products, products)).sum())
        b = (a_1 + 6 * a_2) / (2 * q)
        g = ((q + 1) * a_1 - (q + 4) * a_2) / ((q + 2) * a_2) if a_2 > 0 else 0.0
        c_1, c_2, c_3 = (numerator / (3 * q + 2 * (1 - g)) for numerator in (g, q - g, q + 2 - g))
        mean = 1 / (1 - a_2 / q)
        variance = (2 / q) * (1 + c_1 * b) / ((1 - c_2 * b) ** 2 * (1 - c_3 * b))
        rho = variance / (2 * mean**2)
        df = 4 + (q + 2) / (q * rho - 1) if a_2 > 0 else float("inf")
        scale = df / (mean * (df - 2)) if abs(df - 2) > 0.01 and df < float("inf") else 1.0
        wald = float(away @ torch.linalg.solve(contrast @ self.adjusted @ contrast.T, away)) / q
        return (
            scale * wald,
            df,
            float(stats.f.sf(scale * wald, q, df) if df < float("inf") else stats.chi2.sf(q * wald, q)),
        )


def _derivatives(function, at: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """First (m, k) and second (m, k, k) derivatives of a function (k,) -> (m,)."""
    first = torch.autograd.functional.jacobian(function, at)
    second = torch.autograd.functional.jacobian(
        lambda x: torch.autograd.functional.jacobian(function, x, create_graph=True), at
    )
    return first, second


def _in_variances(method: MixedModel, numbers: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives in L's entries and log s as derivatives in L L^T's entries and s^2."""

    def variances(at: Tensor) -> Tensor:
        parts, parts_moved = method.parts(at), []
        for name in method.sizes:
            if name in method.covariances:
                root = method.covariances[name].matrix(parts[name])
                parts_moved.append(method.covariances[name].of_matrix(root @ root.T))
            else:
                parts_moved.append((2 * parts[name]).exp().reshape(-1))
        return torch.cat(parts_moved)

    slope, bend = _derivatives(variances, numbers)
    moved = slope.norm(dim=0)
    of_root = torch.cat([torch.full((size,), name in method.covariances) for name, size in method.sizes.items()])
    largest = variances(numbers).max().sqrt()
    if method.network.known:  # beside standard errors that are no variance of these
        largest = largest.clamp_min(method.network.scale)
    is_known = of_root.to(moved.device) & (moved < ON_BOUND * largest)
    unit = torch.where(is_known | (moved == 0), 1.0, moved)
    back = torch.linalg.pinv(torch.where(is_known, 0.0, slope / unit), rtol=ON_BOUND) / unit[:, None]
    # L L^T bends along the bound, and A moves with it: its slope across the bound is in what moves nothing else
    across, bent = (derivative[:, is_known][:, :, is_known].flatten(1) for derivative in (bend, second))
    slopes, moves = (torch.where(is_known, 0.0, derivative / unit) for derivative in (slope, first))
    every = torch.cat([moves, bent], 1) @ torch.linalg.pinv(torch.cat([slopes, across], 1), rtol=ON_BOUND)
    return first @ back, back.T @ (second - torch.einsum("mc,cab->mab", every, bend)) @ back


def _above_rounding(terms: Tensor) -> Tensor:
    """The sum of terms (m, k, k) of the information on variances, where they cancel as much as rounding may leave.

    The sign of what rounding leaves differs between machines. A negative rest would take the variance for known. Little
    information makes degrees of freedom near zero, and such coefficients have no tests.
    """
    information, size = terms.sum(0), terms.abs().sum(0).diagonal()
    cancel = (size > 0) & (information.diagonal() < ROUNDING * size)
    rest = torch.diag(torch.where(cancel, ROUNDING * size, 0.0))
    return torch.where(cancel | cancel[:, None], 0.0, information) + rest


def _inverse(information: Tensor) -> Tensor:
    """The inverse in units of the diagonal, with zeros for what is taken as known."""
    scale = information.diagonal().clamp_min(0).sqrt()
    positive = scale > 0
    unit = torch.where(positive, scale, 1.0)
    inverse = torch.linalg.pinv(information / unit / unit[:, None], rtol=1e-10, hermitian=True)
    return torch.where(positive & positive[:, None], inverse / unit / unit[:, None], 0.0)
