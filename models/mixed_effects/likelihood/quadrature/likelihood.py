"""The likelihood of other responses: by quadrature around each client's mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ...model.names import fixed_values
from ..gaussian.row_sums import counts_of
from ..joint import modes
from ..joint.layout import Layout
from ..protocol import Coefficients, Drawn, Likelihood, Normals
from .draws import conditional, joint
from .integral import expansion, heights_at, passes
from .newton import NEWTON_STEPS, Problem, damping


@dataclass(frozen=True)
class Quadrature(Likelihood):
    """A height with two derivatives in all numbers, coefficients among them.

    Args:
        method: whose model.
    """

    method: MixedModel
    searches_beta: ClassVar[bool] = True
    automatic: ClassVar[Literal["reml", "auto"]] = "auto"
    #: each point is a search of its own
    most_points: ClassVar[int] = 128
    newton_steps: ClassVar[int] = NEWTON_STEPS
    keeps_points: ClassVar[bool] = False

    def check(self) -> None:
        """Refuses what is of a gaussian response alone."""
        s, family = self.method.settings, self.method.network.family
        if len(self.method.inside) > 1:
            Layout.for_method(self.method)
            if s.nodes > 1:
                raise UserError(
                    "several levels inside clients are integrated by Laplace's approximation: leave nodes out"
                )
        if s.kenward_roger:
            raise UserError(f"kenward_roger is of a gaussian response, not of a {family} one")
        if s.population == "reml" and self.method.above:
            raise UserError(
                "population=reml with groups of clients, or that cross them, is of a gaussian response: population=auto"
            )
        if s.population == "reml" and s.profile:
            raise UserError("profile intervals of other responses than gaussian are of population=auto or ml")

    # -- what clients keep and send -----------------------------------------------------------------------------------

    def personal(self) -> State:
        """The mode of all effects, from which the next search begins."""
        unknowns = self.method.covariance.q + sum(level.size * level.q for level in self.method.inside)
        return {"u_mode": torch.zeros(unknowns)}

    @property
    def cells(self) -> int:
        """The height alone."""
        return 1

    def form(self, points: int) -> dict[str, tuple[int, ...]]:
        """See :func:`.integral.expansion`."""
        k = self.method.k
        return {"height": (), "slope": (k,), "curvature": (k, k), "many": (points,)}

    def rows(self, chunk: ClientChunk) -> ClientChunk:
        """The rows themselves."""
        return chunk

    def counts(self, chunk: ClientChunk) -> Tensor:
        """One pass over the rows where there are groups inside."""
        counts = [torch.ones_like(chunk.n), chunk.n]
        if self.method.inside:
            rows = torch.cat([counts_of(self.method, part.batch()) for part in passes(self.method, chunk, 1)])
            counts += rows[:, 3:].unbind(1)
        return torch.stack([column.to(torch.float64) for column in counts], 1)

    def around(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> State:
        """Height, slope and curvature."""
        values = {**fixed_values(shared), **self.method.parts(shared["effects.at"])}
        return expansion(self.method, rows, list(self.method.sizes), values)

    def at_points(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> Tensor:
        """Heights alone."""
        return heights_at(self.method, rows, self.points(shared))

    def points(self, shared: Mapping[str, Tensor]) -> State:
        """All shared values at the points that are asked about, {name: (M, *shape)}."""
        points = shared["effects.points"]
        same = {k: v.expand(len(points), *v.shape) for k, v in fixed_values(shared).items()}
        return {**same, **self.method.parts(points)}

    # -- what the server makes of sums --------------------------------------------------------------------------------

    def height(
        self, sums: Mapping[str, Tensor], start: Tensor, step: Tensor, nodes: Any, coefficients: Coefficients
    ) -> Tensor:
        """The height of a parabola."""
        return sums["height"] + step @ sums["slope"] - 0.5 * step @ sums["curvature"] @ step

    def derivatives(
        self, sums: Mapping[str, Tensor], coefficients: Coefficients
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """The derivatives that were sent, where no groups are above clients; else None."""
        if self.method.above:
            return None
        return sums["height"], sums["slope"], 0.5 * (sums["curvature"] + sums["curvature"].mT)

    def heights(self, many: Tensor, numbers: Tensor, nodes: Any, coefficients: Coefficients) -> Tensor:
        """The heights that were sent."""
        return many

    def drawn(
        self, many: Tensor, points: Tensor, at: Tensor, drawn: Drawn, nodes: Any, coefficients: Coefficients,
        normals: Normals,
    ) -> Drawn:  # fmt: skip
        """The numbers are all that there is."""
        return drawn

    # -- what clients know in the end ---------------------------------------------------------------------------------

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Modes by Newton's method from zero."""
        if len(self.method.inside) > 1:
            return modes.marginal(self.method, batch, shared, torch.zeros_like(values["u_mode"].squeeze(1)))
        mode, factors = Problem.from_batch(self.method, batch, shared).mode(
            torch.zeros_like(values["u_mode"].squeeze(1))
        )
        return mode[..., : self.method.covariance.q], factors[0]

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """Mode and curvature."""
        if len(self.method.inside) > 1:
            return modes.conditional(self.method, chunk, shared)
        return conditional(self.method, chunk, shared)

    @property
    def searched(self) -> Sequence[str]:
        """The mode, from which the next search begins."""
        return ("u_mode",)

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Draws effects by Metropolis chains of independent proposals; moments are the draws'."""
        if len(self.method.inside) > 1:
            return modes.joint(self.method, chunk, draws, phase)
        return joint(self.method, chunk, draws, phase)

    def damping(self, far: Tensor) -> Tensor:
        """See :func:`.newton.damping`."""
        return damping(far)
