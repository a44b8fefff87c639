"""Newton's steps on a head's log joint density: direction and length."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .curvature import product_with
from .forms import Curvature, Scaled
from .target import Expansion, Spread, Target

#: halvings of a step that does not raise the log joint density
HALVINGS = 8
#: conjugate-gradient steps of a Newton direction, at most, where the curvature's form is not exact; they end where what
#: is left is so small a share, its squared norm in the metric of the preconditioner
CG_STEPS, CG_RESIDUAL = 30, 1e-12
#: a row has arrived where a step promises less: 1e-8 posterior standard deviations, and 1e-3 in single precision, whose
#: gradients know no more
ARRIVED = {torch.float64: 1e-16, torch.float32: 1e-6}
#: nats that a step promises where its row is near the mode: what a step from there leads to is as good as that
NEAR_MODE_NATS = 0.01


def nearer(
    target: Target, at: Expansion, known: tuple[Curvature, Scaled], spread: Spread | None,
    curvature: Callable[[Expansion], tuple[Curvature, Scaled]], exact: bool, steps: int,
) -> tuple[Expansion, Curvature, Scaled]:  # fmt: skip
    """The expansion, and its curvature, after steps of those rows that are not near their modes; the others stay.

    Args:
        target, at, spread, exact: as of :func:`newton_step`.
        known: curvature and B at the expansion.
        curvature: makes them.
        steps: at most.
    """
    begun = at
    for _ in range(steps):
        ahead = newton_step(target, at, known[1], spread, exact, NEAR_MODE_NATS)
        if ahead is None:
            break
        at, known = ahead, curvature(ahead) if exact else known
    return at, *(known if exact or at is begun else curvature(at))


def newton_step(
    target: Target, at: Expansion, scaled: Scaled, spread: Spread | None, exact: bool, least: float = 0.0
) -> Expansion | None:
    """Takes a Newton step; None where all rows have arrived.

    Args:
        target: the log joint density.
        at: the expansion where the step begins.
        scaled: B of the curvature there if it is ``exact``, and else a preconditioner.
        spread: of each example's predictor.
        exact: whether B^-1 is the direction as it is.
        least: a row has arrived where a step promises less, in nats, too.
    """
    slope = at.slope
    right = at.r * slope
    step = at.r * (scaled.solve(right) if exact else conjugate_gradients(at, scaled, right))
    promised = (slope * step).sum(-1)
    arrived = promised < max(least, ARRIVED[step.dtype])
    if bool(arrived.all()):
        return None
    # A row that has arrived stays, whichever rows are beside it.
    return line_search(target, at, torch.where(arrived[:, None], 0.0, step), promised, spread)


def line_search(target: Target, at: Expansion, step: Tensor, promised: Tensor, spread: Spread | None) -> Expansion:
    """Halves a step for each row until its log joint has risen (Armijo), and returns the expansion there."""
    length = torch.ones_like(promised)
    # Rounding errors of the height: near the mode it cannot rise by what a step promises.
    little = 10 * torch.finfo(step.dtype).eps * at.height.abs().clamp_min(1)
    for _ in range(HALVINGS):
        ahead = target.at(at.mu + length[:, None] * step, spread)
        enough = ahead.height >= at.height + 1e-4 * length * promised - little
        if bool(enough.all()):
            return ahead
        length = torch.where(enough, length, length / 2)
    return target.at(at.mu + torch.where(enough, length, 0.0)[:, None] * step, spread)


def conjugate_gradients(at: Expansion, scaled: Scaled, right: Tensor) -> Tensor:
    """B^-1 right with the exact B = I + r H r, preconditioned by an approximate one."""
    x, residual = torch.zeros_like(right), right
    z = scaled.solve(residual)
    p, inner = z, (residual * z).sum(-1, keepdim=True)
    most = CG_RESIDUAL * inner
    for _ in range(CG_STEPS):
        image = p + at.r * product_with(at.z, at.weights, at.r * p)
        # A row that has arrived stays, whichever rows are beside it; numbers that are not finite never do.
        length = inner / (p * image).sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        length = torch.where(inner <= most, 0.0, length)
        x, residual = x + length * p, residual - length * image
        z = scaled.solve(residual)
        new = (residual * z).sum(-1, keepdim=True)
        p, inner = z + new / inner.clamp_min(torch.finfo(x.dtype).tiny) * p, new
        if bool((inner <= most).all()):
            break
    return x
