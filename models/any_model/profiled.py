"""Points of clients (``pyro.param`` within their plate) at draws of the globals that are far from the guide's mean.

The guide has them on a line, w_j(x) = a_w + C_w (x - m), the maximum of the client's likelihood to first order. An
exploration looks at points where that curve has left its tangent: there each client takes Newton steps in w_j, its
latents at their means, so that the globals' heights are those of the profile likelihood.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .evaluating import Clients
from .local import Conditional, kept_definite

#: Newton steps, and how often half of one is tried
STEPS, HALVES = 4, 4
#: rises of a log joint, relative to it, that its rounding can hide
ROUNDING = 1e-12


def profiled(clients: Clients, guide: Conditional, x: Tensor, v: Tensor) -> Tensor:
    """Means v (M, S, q) at unconstrained globals x (M, S, p), clients' points where their log joint is highest.

    A step by which it does not rise is halved, and not taken in the end. Where the expected rise, g' step / 2, is below
    rounding the whole step is taken: by its height alone a maximum is known to the root of the rounding only.
    """
    points = (~guide.spread).nonzero().squeeze(-1)
    if not len(points):
        return v
    written = replace(clients, at_once=0, marginals=None)
    root = guide.root[:, points[:, None], points]
    old = torch.cholesky_inverse(root).expand(len(x), *root.shape)
    for _ in range(STEPS):
        height, gradient, hessian = _derivatives(written, x, v, points)
        finite = hessian.flatten(-2).isfinite().all(-1) & gradient.isfinite().all(-1)
        precision = kept_definite(old, torch.where(finite[..., None, None], -hessian, old))
        step = torch.linalg.solve(precision, torch.where(finite[..., None], gradient, 0.0))
        last = (gradient * step).sum(-1) / 2 <= ROUNDING * (1 + height.abs())
        at, taken = v, torch.zeros_like(last)
        for k in range(HALVES):
            tried = v.index_add(-1, points, step / 2**k)
            better = ~taken & (last | (written.log_joint(x, tried) > height))
            at, taken = torch.where(better[..., None], tried, at), taken | better
            if bool(taken.all()):
                break
        v = at
        if bool((last | ~taken).all()):
            break
    return v


def _derivatives(clients: Clients, x: Tensor, v: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log joints (M, S), with first and second derivatives by the points, (M, S, k) and (M, S, k, k)."""
    w = v[..., points].detach().requires_grad_()
    with torch.enable_grad():
        h = clients.log_joint(x, v.index_copy(-1, points, w))
        (gradient,) = torch.autograd.grad(h.sum(), w, create_graph=True, materialize_grads=True)
        rows = [
            torch.autograd.grad(part.sum(), w, retain_graph=True, materialize_grads=True)[0]
            if gradient.requires_grad
            else torch.zeros_like(w)
            for part in gradient.unbind(-1)
        ]
    hessian = torch.stack(rows, -1)
    return h.detach(), gradient.detach(), (hessian + hessian.mT) / 2
