"""Integrals over a client's own log standard deviation: its mode, nodes around it, and draws."""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..quadrature.nodes import rule
from .given_spread import GivenSpread

#: default number of nodes, and the number for means and covariances of effects
NODES, MOMENTS = 25, 9
#: derivatives are those of nodes that are held, which so many have
LEAST_NODES = 11
#: of Newton's method: steps at most, their length in e, where it ends in standard deviations, the least curvature in t
MAX_NEWTON_STEPS, MAX_STEP_LENGTH, ARRIVED_STANDARD_DEVIATIONS, MIN_CURVATURE = 40, 1.0, 0.02, 0.3
#: of second differences, in standard deviations of the prior and of e
STEP = 1e-3
#: draws are by the density at so many points, so many standard deviations around the mode
GRID_POINTS, GRID_STANDARD_DEVIATIONS = 65, 7.0


def nodes_of(method: MixedModel) -> int:
    """Number of nodes: the setting's, or :data:`NODES`."""
    return int(method.settings.nodes) or NODES


def mode(given: GivenSpread, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum over t of exp l_j(theta, omega t) N(t | 0, 1), and its standard deviation there, (M, S) each.

    Derivatives are finite differences, which is enough to place nodes.
    """
    s = len(given.products.weight)
    omega = given.omega(numbers)[:, None]
    t = numbers.new_zeros(len(numbers), s)
    step = STEP / omega.abs().clamp_min(1.0)
    far = MAX_STEP_LENGTH / omega.abs().clamp_min(1e-300)
    for _ in range(MAX_NEWTON_STEPS):
        below, at, above = given.heights(numbers, torch.stack([t - step, t, t + step]))
        slope, bend = (above - below) / (2 * step), (2 * at - above - below) / step.square()
        bend = torch.where(bend > MIN_CURVATURE, bend, MIN_CURVATURE)
        move = (slope / bend).nan_to_num(0.0).clamp(-far, far)
        t = t + move
        if bool((move.abs() * bend.sqrt() < ARRIVED_STANDARD_DEVIATIONS).all()):
            break
    return t, bend.rsqrt()


def nodes_around(given: GivenSpread, numbers: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes t and their log weights, (K, M, S) each, at points (M, k)."""
    middle, sd = mode(given, numbers)
    at, log_weight = rule(nodes, 1, numbers)
    t = middle + sd * at[..., None]
    return t, log_weight[:, None, None] + sd.log() - 0.5 * torch.log(2 * torch.pi * torch.ones_like(t))


def derivatives(given: GivenSpread, numbers: Tensor, t: Tensor, log_weight: Tensor) -> State:
    """The integral's logarithm at a point (k,), its gradient and curvature: height (S,), slope (S, k), curvature.

    Args:
        given: the likelihood given e.
        numbers: the point.
        t: nodes, (K, S).
        log_weight: theirs, (K, S).
    """
    at = given.around(numbers, t)
    logs = at.value + log_weight
    share = logs.softmax(0)
    slope = torch.einsum("ks,aks->sa", share, at.slope)
    bend = torch.einsum("ks,abks->sab", share, at.bend) + torch.einsum("ks,aks,bks->sab", share, at.slope, at.slope)
    return {
        "height": logs.logsumexp(0), "slope": slope, "curvature": slope[:, :, None] * slope[:, None] - bend
    }  # fmt: skip


def drawn_spreads(given: GivenSpread, numbers: Tensor, z: Tensor) -> Tensor:
    """Draws of t at points (D, k), (D, S): where the distribution function is that of standard normals z (D, S)."""
    middle, sd = mode(given, numbers)
    away = torch.linspace(-GRID_STANDARD_DEVIATIONS, GRID_STANDARD_DEVIATIONS, GRID_POINTS).to(numbers)
    logs = given.heights(numbers, middle + sd * away[:, None, None])
    density = (logs - logs.amax(0)).exp()
    between = 0.5 * (density[1:] + density[:-1])
    # Of a cubic through four points.
    around = density[:-3] + density[3:] - density[1:-2] - density[2:-1]
    between[1:-1] = (between[1:-1] - around / 24).clamp_min(0)
    total = torch.cat([torch.zeros_like(between[:1]), between.cumsum(0)])
    wanted = torch.special.ndtr(z) * total[-1]
    cell = (total[1:-1] < wanted).sum(0, keepdim=True)  # the one in which it is
    low, mass = total.gather(0, cell)[0], between.gather(0, cell)[0].clamp_min(1e-300)
    # Inside a cell the density is taken for linear.
    left, right = density.gather(0, cell)[0], density.gather(0, cell + 1)[0]
    left, slope = (2 * v / (left + right).clamp_min(1e-300) for v in (left, right - left))
    part = ((wanted - low) / mass).clamp(0, 1)
    share = 2 * part / (left + (left.square() + 2 * slope * part).clamp_min(0).sqrt()).clamp_min(1e-300)
    return middle + sd * (away[cell[0]] + share.clamp(0, 1) * (away[1] - away[0]))
