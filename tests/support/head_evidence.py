"""The marginal likelihood of rho by importance sampling, and its maximum: a referee for spreads that a fit has found.

    p(y | rho) = int N(w; 0, S_W^2 I) prod_j int p(y_j | w_j) N(w_j; w, rho^2 I) dw_j dw

The outer integral has a Gaussian proposal, the inner ones Student's t's, both around the joint mode of
:func:`joint_mode`, which is found here anew. The same random numbers serve at every rho.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from .simulated_heads import CLASSES, NOISE, S_W, Truth, contrasts

#: draws of w, and of each w_j at each of them; degrees of freedom of their proposal
OUTER, INNER, FREEDOM = 8, 64, 6.0


@dataclass(frozen=True)
class Padded:
    """All clients' data: design (J, n, p), responses and mask (J, n)."""

    z: Tensor
    y: Tensor
    mask: Tensor
    family: str
    back: Tensor  # from the order of the weight matrix, row by row, to the flat vector

    @property
    def rows(self) -> int:
        """Rows q of the weight matrix; d = q p."""
        return max(1, CLASSES[self.family] - 1)


def padded(truth: Truth) -> Padded:
    """Of a federation."""
    parts = [truth.fed.examples(index) for index in truth.fed.train]
    z = [truth.net.head.design(x) for x, _ in parts]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones(len(y)).double() for _, y in parts], batch_first=True) > 0
    y = pad([y for _, y in parts], batch_first=True)
    return Padded(pad(z, batch_first=True), y, mask, truth.family, truth.net.head.matrix_order)


def log_likelihood(data: Padded, j: int, heads: Tensor) -> Tensor:
    """log p(y_j | heads), heads (..., d) in the order of the weight matrix."""
    n = int(data.mask[j].sum())
    z, y = data.z[j, :n], data.y[j, :n]
    eta = z @ heads.unflatten(-1, (data.rows, -1)).mT  # (..., n, q)
    if data.family == "gaussian":
        return torch.distributions.Normal(eta[..., 0], NOISE).log_prob(y).sum(-1)
    logits = eta @ torch.tensor(contrasts(CLASSES[data.family]))
    return (logits[..., torch.arange(n), y] - logits.logsumexp(-1)).sum(-1)


def derivatives(data: Padded, heads: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (J, d) and curvature (J, d, d) of all log likelihoods at heads (J, d)."""
    eta = data.z @ heads.unflatten(-1, (data.rows, -1)).mT  # (J, n, q)
    if data.family == "gaussian":
        first = (data.y[..., None] - eta) / NOISE**2
        second = torch.full((*data.y.shape, 1, 1), NOISE**-2).double()
    else:
        q = torch.tensor(contrasts(CLASSES[data.family]))
        p = (eta @ q).softmax(-1)
        first = (torch.nn.functional.one_hot(data.y, p.shape[-1]) - p) @ q.T
        second = q @ (torch.diag_embed(p) - p[..., :, None] * p[..., None, :]) @ q.T
    first, second = first * data.mask[..., None], second * data.mask[..., None, None]
    h = torch.einsum("jnab,jnp,jnr->japbr", second, data.z, data.z)
    return (first.mT @ data.z).flatten(-2), h.flatten(-2).flatten(1, 2)


def joint_mode(data: Padded, rho: float, turns: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Laplace's m (d,) and S^-1 (d, d) of w, heads integrated out, and mu_j (J, d) and P_j (J, d, d) at w = m."""
    clients, d = len(data.y), data.rows * data.z.shape[-1]
    identity = torch.eye(d, dtype=torch.float64)
    m, mu = torch.zeros(d).double(), torch.zeros(clients, d).double()
    for _ in range(turns):
        g, h = derivatives(data, mu)
        p = h + identity / rho**2
        # w's step, every head following it
        linear = g + (h @ mu[..., None])[..., 0]
        a = h - h @ torch.linalg.solve(p, h)
        b = linear - (h @ torch.linalg.solve(p, linear)[..., None])[..., 0]
        precision = a.sum(0) + identity / S_W**2
        m = torch.linalg.solve(precision, b.sum(0))
        new = torch.linalg.solve(p, linear + m / rho**2)
        arrived = bool((new - mu).abs().max() < 1e-9)
        mu = new
        if arrived:
            break
    return m, precision, mu, p


def log_evidence(data: Padded, rho: float, seed: int = 0) -> float:
    """log p(y | rho)."""
    m, precision, mu, p = joint_mode(data, rho)
    d, rng = len(m), torch.Generator().manual_seed(seed)
    e = torch.randn(OUTER // 2, d, generator=rng, dtype=torch.float64)
    e = torch.cat([e, -e])
    factor = torch.linalg.cholesky(precision)
    w = m + torch.linalg.solve_triangular(factor.mT, e.mT, upper=True).mT  # (K, d)
    log_q = -0.5 * e.square().sum(-1) + factor.diagonal().log().sum()
    total = -0.5 * (w / S_W).square().sum(-1) - d * np.log(S_W) - log_q  # the 2 pi's cancel
    for j in range(len(mu)):
        total = total + _integrated(data, j, rho, w, m, mu[j], p[j], rng)
    return float(total.logsumexp(0) - np.log(OUTER))


def _integrated(
    data: Padded, j: int, rho: float, w: Tensor, m: Tensor, mu: Tensor, p: Tensor, rng: torch.Generator
) -> Tensor:
    """log int p(y_j | w_j) N(w_j; w, rho^2 I) dw_j at each w, (K,)."""
    d = len(m)
    factor = torch.linalg.cholesky(p)
    normal = torch.randn(INNER // 2, d, generator=rng, dtype=torch.float64)
    uniform = torch.rand(INNER // 2, generator=rng, dtype=torch.float64)
    t = normal * (FREEDOM / torch.tensor(chi2.ppf(uniform.numpy(), FREEDOM))).sqrt()[:, None]
    t = torch.cat([t, -t])
    centre = mu + torch.linalg.solve(p, (w - m).mT / rho**2).mT  # (K, d)
    heads = centre[:, None] + torch.linalg.solve_triangular(factor.mT, t.mT, upper=True).mT
    log_q = _log_t(t) + factor.diagonal().log().sum()
    away = (heads - w[:, None]) / rho
    log_prior = -0.5 * away.square().sum(-1) - d * (np.log(rho) + 0.5 * np.log(2 * np.pi))
    return (log_likelihood(data, j, heads) + log_prior - log_q).logsumexp(-1) - np.log(INNER)


def _log_t(t: Tensor) -> Tensor:
    """Log density of a standard multivariate t, (..., d)."""
    d = t.shape[-1]
    half = (FREEDOM + d) / 2
    constant = np.log(np.pi * FREEDOM) * d / 2
    gamma = torch.lgamma(torch.tensor([half, FREEDOM / 2], dtype=torch.float64))
    return gamma[0] - gamma[1] - constant - half * (t.square().sum(-1) / FREEDOM).log1p()


def maximum(truth: Truth, start: float | None = None) -> dict[str, float]:
    """rho at the maximum, over two sets of random numbers, and half of their difference."""
    data, maxima = padded(truth), []
    for seed in (0, 1):
        at = np.log(start or max(truth.rho, 0.1))
        for width in (0.3, 0.12):
            log_rho = at + width * np.arange(-2, 3)
            height = [log_evidence(data, float(np.exp(t)), seed) for t in log_rho]
            cubic = np.polynomial.Polynomial.fit(log_rho, height, 3)
            fine = np.linspace(log_rho[0], log_rho[-1], 401)
            at = float(fine[cubic(fine).argmax()])
        maxima.append(np.exp(at))
    return {"rho": float(np.mean(maxima)), "mc_error": float(abs(maxima[0] - maxima[1]) / 2)}
