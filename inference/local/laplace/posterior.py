"""Gaussian posteriors of some rows' heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.ppl.lattice import standard_points
from hierfl.rng import ClientNoise

from ...state import State
from .forms import Curvature, Scaled
from .target import Expansion, Target


@dataclass(frozen=True)
class AtDraws:
    """A Gaussian posterior of some rows' heads at some draws of the shared values, all with one precision.

    Attributes:
        places: of these draws, (K,).
        target: the rows at them: the population's mean is one for each, (K, 1, 1, d).
        centre: means, (K, S, d) or (S, d).
        r, h, scaled: standard deviations of the prior, the curvature, and B of both.
    """

    places: Tensor
    target: Target
    centre: Tensor
    r: Tensor
    h: Curvature
    scaled: Scaled


@dataclass(frozen=True)
class Posterior:
    """q(w_j) of some rows: mean (S, d), what carries its covariance (M, S, d), and where its precision comes from."""

    mu: Tensor
    away: Tensor | None
    known: tuple[Expansion, Curvature, Scaled] | None = None

    @property
    def expansion(self) -> tuple[Expansion, Curvature, Scaled]:
        """Expansion and curvature of the last turn."""
        assert self.known is not None
        return self.known


def pairs(noise: ClientNoise, site: str, d: int, number: int) -> Tensor:
    """Standard normals (K, S, d) in pairs e, -e: first all of the first, then of the second; an odd one is zero."""
    odd = noise.keys.new_zeros((number % 2, len(noise.keys), d), dtype=noise.dtype)
    if number == 1:
        return odd
    e = noise.normal(f"{site}/laplace", None, torch.Size((d,))).squeeze(2)
    return torch.cat([e, odd, -e])


def alike(shared: State, target: Target, own: str, number: int) -> Iterator[tuple[Tensor, State, State]]:
    """Draws (places) that share all but w: these values, {name: (*shape)}, and the rows' own, (S, 1, *shape).

    Args:
        shared: draws of all shared values but w, {name: (K, *shape)}.
        target: the rows.
        own: the personal value of a client's own log rho_j; "" for none.
        number: K.
    """
    if own:
        centre, sd = (target.cast(target.chunk.values[name]) for name in (own, f"{own}_sd"))
        points, pair = standard_points(centre.shape[-1]).to(centre), torch.arange(number, device=centre.device)
        pair = pair % (number - number // 2)
        for k, z in enumerate(points):
            places = (pair % len(points) == k).nonzero().flatten()
            if len(places):
                yield places, {}, {own: centre + sd * z}
        return
    _, which = torch.unique(torch.cat([v.flatten(1) for v in shared.values()], 1), dim=0, return_inverse=True)
    for k in range(int(which.max()) + 1):
        places = (which == k).nonzero().flatten()
        yield places, {name: v[places[0]] for name, v in shared.items()}, {}
