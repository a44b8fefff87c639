"""The likelihood of what clients have sent with noise, instead of a gaussian response's own.

It is a quadratic in the coefficients, as the likelihood of rows is: the search, errors, intervals and draws are the
usual ones. Clients' own effects are by their own rows, without noise, given the population.

The density of log s that draws and intervals are from is Jeffreys', of what was sent (:mod:`.residual`): flat as ever
without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.state import State

from ..likelihood.gaussian.cross_products import packed_size
from ..likelihood.gaussian.likelihood import Gaussian
from ..likelihood.protocol import Coefficients
from ..model.arithmetic import IMPOSSIBLE, sound
from .noisy_moments import NoisyMoments, Quadratic
from .release import Release

if TYPE_CHECKING:
    from ..model.equations import MixedModel

#: numbers that are computed at a time
NUMBERS_PER_PASS = 10_000_000
#: of differences, over the response's spread for roots of covariances
STEP = 1e-3


@dataclass(frozen=True)
class NoisyGaussian(Gaussian):
    """See :class:`~..likelihood.gaussian.likelihood.Gaussian`; sums are the server's own, of noisy messages.

    Args:
        method: whose model, with ``private`` set.
    """

    method: MixedModel

    def check(self) -> None:
        """Refuses settings that noise has no likelihood for."""
        if self.method.settings.kenward_roger:
            raise UserError("kenward_roger is of rows without noise: with dp='site' the errors are Satterthwaite's")

    def personal(self) -> State:
        """The sums of rows, and the message that was sent, so that it is sent only once."""
        private = self.method.private
        assert private is not None
        return {**super().personal(), "released": torch.zeros(private.numbers), "released_rows": torch.zeros(2)}

    def steps(self) -> list[LocalStep]:
        """Sums of rows, and the release."""
        return [*super().steps(), Release(self.method)]

    def moments(self, noisy: Tensor) -> NoisyMoments:
        """The moments of all clients' noisy sums of products, (J, c + 1, c + 1)."""
        private, network = self.method.private, self.method.network
        assert private is not None
        columns, half = private.columns, private.columns.half[-1]
        fixed = columns.of_design(network.fixed, network.fixed_units) / half
        random = columns.of_design(network.random, network.random_units) / half
        return NoisyMoments.from_noisy(noisy, private.sd, fixed, random)

    def packed(self, moments: NoisyMoments, numbers: Tensor) -> Tensor:
        """The packed sums at points (M, k): A, a, yy (one matrix's upper triangle row by row), volume, log density of
        log s,
        (M, cells).
        """
        parts, fixed = self.method.parts(numbers), self.method.first_roots()
        entries = parts["root"] if "root" in parts else fixed["root"].to(numbers).expand(len(numbers), -1)
        root = self.method.covariance.matrix(entries)
        quadratic = self.quadratic(moments, root @ root.mT, parts)
        p = quadratic.b.shape[-1]
        corner = torch.cat([quadratic.b, quadratic.yy[:, None]], -1)
        whole = torch.cat([torch.cat([quadratic.a, quadratic.b[:, None]], 1), corner[..., None]], -1)
        up, across = torch.triu_indices(p + 1, p + 1)
        return torch.cat([whole[:, up, across], quadratic.volume[:, None], quadratic.matching[:, None]], -1)

    @cached_property
    def cells(self) -> int:
        """The numbers of a quadratic in the coefficients, and of the density of log s."""
        return packed_size(len(self.method.network.fixed)) + 1

    def beta(self, packed: Tensor, numbers: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor]:
        """Likewise; what draws are from has the density of log s, where users give none."""
        mean, precision, height = super().beta(packed[..., :-1], numbers, coefficients)
        own = coefficients.mixing and self.method.settings.population != "bayes"
        return mean, precision, height + packed[..., -1] if own else height

    def quadratic(self, moments: NoisyMoments, covariance: Tensor, parts: Mapping[str, Tensor]) -> Quadratic:
        """The quadratic at points, with the density of the response in its own units."""
        private = self.method.private
        assert private is not None
        half = private.columns.half[-1]
        scaled = moments.quadratic(covariance, (2 * parts["log_noise"]).exp() / half**2)
        return scaled._replace(volume=scaled.volume + 2 * math.log(half) * moments.latent.counts.sum())

    def around(self, rows: Any, shared: Mapping[str, Tensor]) -> State:
        """The moments' packed sums, one row for all clients; derivatives by central differences of fourth order."""
        at, scale = shared["effects.at"].double(), self.method.network.scale
        sizes, roots = self.method.sizes, self.method.covariances
        steps = [at.new_full((size,), STEP * (scale if name in roots else 1.0)) for name, size in sizes.items()]
        derivatives = differences(lambda points: self._packed(rows, points), at, torch.cat(steps) if steps else at)
        return {
            name: order[None].contiguous()
            for name, order in zip(("cross", "cross_1", "cross_2"), derivatives, strict=True)
        }

    def _packed(self, rows: NoisyMoments, points: Tensor) -> Tensor:
        """Computes points in passes; a point whose likelihood is no number has a low one."""
        size = max(1, NUMBERS_PER_PASS // max(1, rows.latent.shared.numel()))
        packed = torch.cat([self.packed(rows, some) for some in points.split(size)])
        impossible = torch.zeros_like(packed)
        impossible[:, -2] = -2 * IMPOSSIBLE
        return torch.where(sound(packed).all(-1, keepdim=True), packed, impossible)

    def at_points(self, rows: Any, shared: Mapping[str, Tensor]) -> Tensor:
        """Likewise."""
        return self._packed(rows, shared["effects.points"].double())[None]


def differences(function: Callable[[Tensor], Tensor], at: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value (c,), first (k, c) and second (k, k, c) derivatives of a function (M, k) -> (M, c) at a point (k,)."""
    k = len(at)
    pairs = [(i, i) for i in range(k)] + [(i, j) for i in range(k) for j in range(i)]
    directions = torch.zeros(len(pairs), k).to(at)
    for row, (i, j) in zip(directions, pairs, strict=True):
        row[[i, j]] = 1.0
    shifts = at.new_tensor([1.0, -1.0, 2.0, -2.0])
    points = at + (shifts[:, None, None] * directions * steps).reshape(-1, k)
    value, rest = (
        v if n else v[0] for n, v in enumerate(function(torch.cat([at[None], points])).split([1, len(points)]))
    )
    near, back, far, far_back = rest.unflatten(0, (4, len(pairs)))
    slope = (8 * (near - back) - (far - far_back)) / 12
    bend = (16 * (near + back) - (far + far_back) - 30 * value) / 12
    second = value.new_zeros(k, k, len(value))
    for (i, j), both in zip(pairs, bend, strict=True):
        second[i, j] = both if i == j else (both - bend[i] - bend[j]) / 2
        second[j, i] = second[i, j]
    return value, slope[:k] / steps[:, None], second / (steps[:, None] * steps)[..., None]
