"""Other responses with groups that cross the clients, such as items: the server integrates their effects out.

With w = L u for each group, u ~ N(0, I), and l_j(theta, w) the clients' log likelihoods,

    log p(D | theta)  ~  h(w^) - log |H| / 2,    h(w) = sum_j l_j(theta, w) - |u|^2 / 2,    H = -d2h/du2 at the maximum

by Laplace's approximation: of few effects, of each of which many clients know. Clients are asked at points of a stencil
around theta (:mod:`.stencil`), each with the w at which the maximum there is expected, and answer with l_j and two
derivatives in w (:mod:`.crossed`). A step of Newton's from there is the server's, and derivatives of the result follow
from the stencil. Where the maximum was expected is made of the round before; where that was not near, the same theta is
asked about once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.arithmetic import IMPOSSIBLE
from ...model.equations import MixedModel
from ...model.names import fixed_values
from ..gaussian.crossed import by_level, root_above, root_of
from ..gaussian.elimination import symmetric
from ..joint.layout import Layout
from ..protocol import Coefficients, Drawn, Normals
from .crossed import cells, cells_at
from .expected import Expected
from .likelihood import Quadrature
from .newton import damping
from .stencil import derivatives, size, stencil

#: the maximum is where it was expected, in standard deviations of an effect
SETTLED_SDS = 1e-5
#: at the stencil's other points that is not asked for where asking again has not brought it nearer than this share
MAX_SHARE_LEFT = 0.25
#: how far it was before it was asked for
UNKNOWN_DISTANCE = 1e9
#: longest Newton step, in standard deviations, whose parabola predicts the height at its end
MAX_PREDICTABLE_STEP = 5.0
#: how often clients are asked about the same point
MAX_EFFECT_MOVES = 30
#: to which heights at different points can be compared, relative to them
DIGITS = 1e-8


class Reached(NamedTuple):
    """Newton's step in the effects at points.

    Attributes:
        height: log p(D | theta), (...).
        u: at the maximum, (..., I q).
        w: likewise.
        factor: F of H = F F^T, (..., I q, I q).
        far: the step in w, in standard deviations of each effect at most, (...).
    """

    height: Tensor
    u: Tensor
    w: Tensor
    factor: Tensor
    far: Tensor


def reached(method: MixedModel, many: Tensor, numbers: Tensor, w: Tensor) -> Reached:
    """The maximum over the crossed effects that one step reaches, from sums of clients' cells.

    Args:
        method: whose.
        many: (..., cells).
        numbers: of the population, (..., k).
        w: at which clients were, (..., I q).
    """
    m = w.shape[-1]
    height, slope, upper = many.split([1, m, m * (m + 1) // 2], -1)
    bend, root = symmetric(upper, m), root_above(method, numbers)
    identity = torch.eye(m, dtype=root.dtype, device=root.device)
    factor, failed = torch.linalg.cholesky_ex(identity + root.mT @ bend @ root)
    if bool(failed.any()):  # far from a maximum l_j bends both ways
        values, vectors = torch.linalg.eigh(bend)
        safe = (vectors * values.clamp_min(0).unsqueeze(-2)) @ vectors.mT
        bend = torch.where((failed > 0)[..., None, None], safe, bend)
        factor = torch.linalg.cholesky_ex(identity + root.mT @ bend @ root).L
    ahead = slope + (bend @ w[..., None]).squeeze(-1)
    u = torch.cholesky_solve(root.mT @ ahead[..., None], factor).squeeze(-1)
    new = (root @ u[..., None]).squeeze(-1)
    step = new - w
    top = height.squeeze(-1) + (slope * step).sum(-1) - 0.5 * (step * (bend @ step[..., None]).squeeze(-1)).sum(-1)
    top = top - 0.5 * u.square().sum(-1) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    far = (step.abs() * bend.diagonal(dim1=-2, dim2=-1).clamp_min(1.0).sqrt()).amax(-1)
    return Reached(top, u, new, factor, far)


def _where_reached(maximum: Reached) -> Tensor:
    """Heights, impossible where the maximum over the effects is far from where clients were."""
    return torch.where(maximum.far <= MAX_PREDICTABLE_STEP, maximum.height, IMPOSSIBLE)


@dataclass(frozen=True)
class CrossedLaplace(Quadrature):
    """Heights with two derivatives in the effects of the groups, at the stencil's points and at many."""

    keeps_points: ClassVar[bool] = True
    both_at_once: ClassVar[bool] = False
    digits: ClassVar[float] = DIGITS

    def check(self) -> None:
        """Refuses what a factor that crosses the clients does not have with such a response."""
        super().check()
        if self.method.inside:
            Layout.for_method(self.method)
            if self.method.settings.nodes > 1:
                raise UserError(
                    "levels inside clients beside curves or a factor that crosses them are integrated by Laplace's "
                    "approximation: leave nodes out"
                )

    @property
    def columns(self) -> int:
        """All effects of groups that cross the clients and of curves."""
        return sum(level.columns for level in self.method.above)

    @property
    def cells(self) -> int:
        """A height, its slope and its curvature in the groups' effects."""
        return cells(self.columns)

    def form(self, points: int) -> dict[str, tuple[int, ...]]:
        """Shapes of what is sent at the stencil's points, and at many."""
        return {"crossed": (size(self.method.k), self.cells), "many": (points, self.cells)}

    def around(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> State:
        """Likelihoods at the stencil's points."""
        at = shared["effects.at"]
        points = at + stencil(len(at)).to(at)
        return {"crossed": self._answer(rows, shared, points, shared["effects.crossed_at"])}

    def at_points(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> Tensor:
        """Likelihoods at each point."""
        return self._answer(rows, shared, shared["effects.points"], shared["effects.crossed_points"])

    def _answer(self, rows: ClientChunk, shared: Mapping[str, Tensor], points: Tensor, w: Tensor) -> Tensor:
        same = {k: v.expand(len(points), *v.shape) for k, v in fixed_values(shared).items()}
        return cells_at(self.method, rows, {**same, **self.method.parts(points)}, w)

    # -- what the server makes of sums --------------------------------------------------------------------------------

    def height(
        self, sums: Mapping[str, Tensor], start: Tensor, step: Tensor, expected: Expected, coefficients: Coefficients
    ) -> Tensor:
        """The height of a parabola through the stencil's points."""
        with torch.no_grad():
            points = start.detach() + stencil(len(start))
            maximum = reached(self.method, sums["crossed"], points, expected.near(points))
            height, slope, bend = derivatives(_where_reached(maximum), len(start))
        return height + step @ slope + 0.5 * step @ bend @ step

    def heights(self, many: Tensor, numbers: Tensor, expected: Expected, coefficients: Coefficients) -> Tensor:
        """The criterion by Laplace's approximation at each point."""
        return _where_reached(reached(self.method, many, numbers, expected.effects(numbers)))

    def estimated(
        self, sums: Mapping[str, Tensor], numbers: Tensor, expected: Expected, coefficients: Coefficients
    ) -> State:
        """Effects at their maximum; zero of a group that is not known."""
        w = reached(self.method, sums["crossed"][0], numbers, expected.near(numbers)).w
        every = by_level(self.method, w).items()
        return {level.effects: torch.nn.functional.pad(effects, (0, 0, 1, 0)) for level, effects in every}

    def drawn(
        self, many: Tensor, points: Tensor, at: Tensor, drawn: Drawn, expected: Expected,
        coefficients: Coefficients, normals: Normals,
    ) -> Drawn:  # fmt: skip
        """Effects are drawn given the numbers, from the normal density around their maximum."""
        draws, middle = drawn
        levels = self.method.above
        z = [normals(level.effects, draws.new_zeros(len(at), level.size, level.q)) for level in levels]
        maxima = reached(self.method, many, points, expected.effects(points))
        noise = torch.cat([normals_of_level[:, 1:].flatten(1) for normals_of_level in z], -1)
        u = maxima.u[at] + torch.linalg.solve_triangular(maxima.factor.mT[at], noise[..., None], upper=True).squeeze(-1)
        for normals_of_level, (level, effects) in zip(z, by_level(self.method, u).items(), strict=True):
            w = torch.cat([normals_of_level[:, :1], effects], 1) @ root_of(self.method, level, points)[at].mT
            draws, middle = torch.cat([draws, w.flatten(1)], -1), torch.cat([middle, w.mean(0).flatten()])
        return Drawn(draws, middle)

    # -- where the effects are expected -------------------------------------------------------------------------------

    def questions(self, memory: Mapping[str, Tensor], at: Tensor, points: Tensor) -> State:
        """The effects at which clients answer."""
        expected = self.known(memory, before=False)
        return {"crossed_at": expected.near(at + stencil(len(at))), "crossed_points": expected.effects(points)}

    def moved(self, state: State, total: State, memory: State) -> bool:
        """Whether the maximum was not where it was expected."""
        before, at = self.known(memory, before=False), state["at"]
        maximum = reached(self.method, total["crossed"], at + stencil(len(at)), state["crossed_at"])
        step = maximum.w - state["crossed_at"]
        w = state["crossed_at"] + damping(step.abs().amax(-1, keepdim=True)) * step
        middle, slope, bend = derivatives(w, len(at))
        memory.update({f"before.{k}": v for k, v in before.state().items()})
        memory.update(Expected(at, middle, slope, bend).state())
        tries = memory.get("tries", torch.zeros(()).double())
        far, last = maximum.far.amax(), memory.get("far", torch.full((), UNKNOWN_DISTANCE).double())
        # Terms of third order in the stencil's steps are left in. They are small, see stencil.
        converged = bool(maximum.far[0] < SETTLED_SDS) and bool((far < SETTLED_SDS) | (far > MAX_SHARE_LEFT * last))
        again = not converged and int(tries) < MAX_EFFECT_MOVES
        memory["tries"] = tries + 1 if again else 0 * tries
        memory["far"] = far if again else torch.full_like(last, UNKNOWN_DISTANCE)
        return again

    def known(self, memory: Mapping[str, Tensor], *, before: bool) -> Expected:
        """The expected effects of the last round, or those of now."""
        kept = {k.removeprefix("before."): v for k, v in memory.items() if k.startswith("before.")}
        return Expected.read(self.method.k, self.columns, kept if before else memory)
