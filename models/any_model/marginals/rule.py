"""The server's rule for a guide whose marginals have a skew and a tail.

First a Gaussian guide climbs. If the posterior is not Gaussian where it ends, transforms (:mod:`.transform`) are placed
around the guide's mean and standard deviations. Then guide and transforms climb together. A linear-Gaussian model gets
no transforms, and is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hierfl.inference.server.explored import Explored
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State

from ..evaluating import global_prior
from ..guide import Climb
from ..moments import Moments, moments
from ..names import DRAWS, MEAN, PHASE, POINTS, PRECISION, SHAPE, Phase
from ..remembered import Remembered, triangle_size
from ..rule import NaturalGradient, unpacked
from .climb import ShapedClimb, ShapedCurvature
from .expected import Metric, log_slope, metric
from .sums import by_shape
from .transform import Marginals, unconstrained

#: draws by which the metric of skews and tails is averaged, at least, and for each number
MIN_DRAWS, DRAWS_PER_NUMBER = 1024, 4
#: so many standard deviations of the guide from its mean, points of an exploration do not count
MAX_POINT_SDS = 12.0


@dataclass(frozen=True)
class ShapedPrior:
    """Derivatives of log p(z) + sum_k log T_k'(x_k), expected under the guide.

    Attributes:
        of: by the numbers x of the guide.
        shape: by skews and tails, (2 p,).
        metric: of these.
        covariance: of the guide, (p, p).
        free: which of these are learned, (2 p,) of bool; none in a Gaussian guide.
    """

    of: Moments
    shape: Tensor
    metric: Metric
    covariance: Tensor
    free: Tensor

    @property
    def height(self) -> Tensor:
        """E[log p(z)] with the log slopes, (1,)."""
        return self.of.height

    @property
    def spread(self) -> Tensor:
        """The spread of the prior's derivatives, as in :class:`..moments.Moments`, (1,)."""
        return self.of.spread


@dataclass(frozen=True)
class ShapedGradient(NaturalGradient):
    """Sums of the bound's derivatives by the guide's mean, and by skew and tail of each number."""

    climbs: ClassVar[type[Climb]] = ShapedClimb
    MEANINGS: ClassVar[Mapping[str, str]] = {
        **NaturalGradient.MEANINGS,
        "shape": "first derivatives of its bound by skew and tail of each number of the globals, as a change likewise",
    }

    def _climbed(self, values: State, total: State, context: AggregationContext, stage: Phase) -> State:
        values = super()._climbed(values, total, context, stage)
        climb, shape = ShapedClimb.read(context.rule_state), values[SHAPE].clone()
        if stage == Phase.ROUGH and int(values[PHASE]) == Phase.FINE:
            sd = self.method.family.root(values[PRECISION]).square().sum(-1).sqrt()
            shape[0], shape[1] = values[MEAN], torch.where(sd > 0, sd, 1.0)
        shape[2:] = climb.tried
        values[SHAPE] = shape
        # These were made with the transforms of the round before.
        values[DRAWS] = self._of_guide(values, context)
        if int(values[PHASE]) == Phase.EXPLORE:
            asked = Explored.read(context.rule_state).asked
            values[POINTS] = self._written(values, self.method.family.within(asked, values[MEAN]))
        return values

    def _prior(self, values: State, seed: int, *, fine: bool) -> ShapedPrior:
        method, mean, precision = self.method, values[MEAN], values[PRECISION]
        p, marginals = len(mean), Marginals.read(values)
        moved = method.family.moved(self._lattice(mean, seed, method.draws_of_round(fine=fine), fine=fine), precision)

        def prior(z: Tensor) -> Tensor:
            return global_prior(method.program, method.sites, method.network, z)

        expected = moments(lambda x, _: prior(unconstrained(marginals, x)), mean + moved, moved[..., :0])
        free = method.family.spread.to(mean.device).repeat(2) & fine
        if not fine:
            none = mean.new_zeros(2 * p)
            return ShapedPrior(expected, none, Metric(none.diag(), none, none), torch.zeros_like(precision), free)
        marginals, root = Marginals.unpacked(values[SHAPE]), method.family.root(precision)
        sd = root.square().sum(-1).sqrt()
        slope = log_slope(marginals, mean, sd)
        whole = Moments(
            expected.height + slope.height, expected.gradient + slope.gradient,
            expected.hessian + slope.curvature.diag(),
            expected.spread, expected.unit,
        )  # fmt: skip
        shape = by_shape(prior, marginals, mean + moved)[0] + slope.shape
        many = self._lattice(mean, seed, max(MIN_DRAWS, DRAWS_PER_NUMBER * p), fine=fine)
        p_of_spread = torch.zeros_like(precision)
        at = free[:p].nonzero().squeeze(-1)
        p_of_spread[at[:, None], at] = torch.cholesky_inverse(method.family.root_of_spread(precision))
        found_metric = metric(marginals, method.family.moved(many, precision)[:, 0], mean, p_of_spread)
        return ShapedPrior(whole, shape, found_metric, root @ root.mT, free)

    def _derivatives(
        self, remembered: Remembered, prior: ShapedPrior, mean: Tensor, seed: int
    ) -> tuple[Tensor, ShapedCurvature]:
        p = len(mean)
        triangle, shape = remembered.curvature.split([triangle_size(p), 2 * p])
        precisions = unpacked(triangle, p)
        gradient = remembered.linear - precisions @ mean + prior.of.gradient[0]
        matrix = precisions - prior.of.hessian[0]
        widened = 1 - (prior.covariance * matrix).sum(-1)  # of the bound, by the logarithm of each number's sd
        metric = prior.metric
        shape = shape + prior.shape - metric.offset * gradient.repeat(2) - metric.stretch * widened.repeat(2)
        return gradient, ShapedCurvature(matrix, shape, metric, prior.free)

    def _size(self, curvature: Any, precision: Tensor) -> Tensor:
        return super()._size(curvature.matrix, precision)

    def _written(self, values: State, x: Tensor) -> Tensor:
        return unconstrained(Marginals.read(values), x)

    def _log_slopes(self, values: State, x: Tensor) -> Tensor:
        marginals = Marginals.read(values)
        if marginals is None:
            return x.new_zeros(len(x))
        sd = self.method.family.root(values[PRECISION]).square().sum(-1).sqrt()
        # Long tails reach scales of e^-50, where a model's sums have no digits left, and weights could be anything.
        near = ((x - values[MEAN]).abs() <= MAX_POINT_SDS * sd).all(-1)
        return torch.where(near, marginals.log_slope(x).sum(-1), -torch.inf)
