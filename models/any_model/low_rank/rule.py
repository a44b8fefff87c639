"""What clients send of a model with many globals, and what the server makes of the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.rng import normals

from ..evaluating import global_prior
from ..guide import UNSURE_STEP, Climb
from ..local import Conditional
from ..names import MEAN, PRECISION, Phase
from ..remembered import Remembered
from ..rule import NaturalGradient
from .climb import LowRankClimb
from .family import LowRankFamily
from .products import Derivatives, SketchedBound, height_beyond, sketched
from .sketch import Sketched, along, directions

#: products by which the diagonal of the prior's curvature is found: one is enough where globals are independent
PRIOR_PROBES = 32


@dataclass(frozen=True)
class SketchedPrior:
    """Derivatives of log p(x), expected under the guide.

    Attributes:
        of: as of one client without latents; ``sketch`` and ``diagonal`` are of minus the Hessian.
    """

    of: SketchedBound

    @property
    def height(self) -> Tensor:
        """E[log p(x)], (1,)."""
        return self.of.bound

    @property
    def spread(self) -> Tensor:
        """The spread of the prior's derivatives, as in :class:`..moments.Moments`, (1,)."""
        return self.of.spread


@dataclass(frozen=True)
class SketchedGradient(NaturalGradient):
    """Sums of gradients and of sketches of the curvature."""

    climbs: ClassVar[type[Climb]] = LowRankClimb
    MEANINGS: ClassVar[Mapping[str, str]] = {
        **{name: text for name, text in NaturalGradient.MEANINGS.items() if name != "precision"},
        "diagonal": "the diagonal of second derivatives of its bound by the globals, as a change likewise",
        "sketch": "and their products with a fixed matrix of few columns, as a change likewise",
    }

    def _prior(self, values: State, seed: int, *, fine: bool) -> SketchedPrior:
        method, mean, precision = self.method, values[MEAN], values[PRECISION]
        p = len(mean)
        w = directions(p, method.rank, seed).to(mean)
        draws = method.draws_of_round(fine=fine)
        moved = method.family.moved(self._noise(mean, seed, draws, fine=fine), precision)
        none = moved[..., :0]
        at = Derivatives(lambda x, _: global_prior(method.program, method.sites, method.network, x), mean + moved, none)
        no_points = torch.zeros(0, dtype=torch.bool, device=mean.device)
        alone = Conditional(none[0], mean.new_zeros(1, 0, p), mean.new_zeros(1, 0, 0), no_points)
        bound = sketched(at, alone, w, self._signs(moved, seed), rows=False)
        if method.rank < p and bool(method.family.spread.any()):
            block = cast("LowRankFamily", method.family).of_spread(precision)
            above = height_beyond(bound, w, moved, block, method.family.spread.to(w.device))
            bound = replace(bound, bound=bound.bound - above)
        return SketchedPrior(bound)

    def _noise(self, mean: Tensor, seed: int, draws: int, *, fine: bool) -> Tensor:
        if self.method.rank >= len(mean):
            return self._lattice(mean, seed, draws, fine=fine)
        shape = torch.Size((draws // 2, 1, len(mean)))
        half = normals(shape, seed, "server's draws", fine, dtype=mean.dtype, device=mean.device)
        return torch.cat([half, -half])

    @staticmethod
    def _signs(moved: Tensor, seed: int) -> Iterator[Tensor]:
        for i in range(PRIOR_PROBES):
            z = normals(moved.shape, seed, "server's signs", i, dtype=moved.dtype, device=moved.device)
            yield torch.where(z < 0, -1.0, 1.0).to(z)

    def _derivatives(
        self, remembered: Remembered, prior: SketchedPrior, mean: Tensor, seed: int
    ) -> tuple[Tensor, Sketched]:
        p, r, prior_bound = len(mean), self.method.rank, prior.of
        w = directions(p, r, seed).to(mean)
        diagonal, sketch = remembered.curvature.split([p, p * r])
        sketch = sketch.reshape(p, r)
        gradient = remembered.linear - along(diagonal, sketch, w, mean) + prior_bound.gradient[0]
        points = ~self.method.family.spread.to(mean.device)
        whole = Sketched(
            diagonal + prior_bound.diagonal[0], sketch + prior_bound.sketch[0], prior_bound.diagonal[0], w, points
        )
        return gradient, whole

    def _size(self, curvature: Sketched, precision: Tensor) -> Tensor:
        return curvature.square().sum()

    @property
    def _sees_curves(self) -> bool:
        """Points are the same in all draws: of a network's weights these say nothing."""
        return bool(self.method.family.spread.all())

    def _damping(self, context: AggregationContext) -> float:
        """Less where fewer report: how gradients of the others have changed since is known roughly."""
        return UNSURE_STEP * float(context.reported) / max(1, context.num_clients)

    @property
    def _when_exact(self) -> Phase:
        """A posterior that is Gaussian, and has another covariance than a guide of low rank, may be explored."""
        return Phase.DONE if self.method.rank >= len(self.method.sites.start) else self._after
