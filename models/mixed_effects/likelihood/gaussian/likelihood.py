"""The likelihood of a gaussian response: in closed form, from sums of products over rows.

With A = X^T V^-1 X and a = X^T V^-1 y of all clients,

    beta = A^-1 a                                                                                           (12)
    l    = -1/2 (log |V| + y^T V^-1 y - a^T beta)                                                           (13)
    l_R  = l - 1/2 log |A| + p/2 log 2 pi                                                                   (14)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.state import State

from ...model.arithmetic import log_normal
from ...model.equations import MixedModel
from ..protocol import Coefficients, Drawn, Likelihood, Normals
from .cross_products import at_points, packed_size, polynomial
from .crossed import matrices
from .derivatives import quadratic
from .draws import gaussian_mode
from .effects import conditional, joint
from .elimination import symmetric
from .regions import region_draws, without_regions
from .row_sums import RowSums, clients_last, columns_of
from .serial_sums import SerialSums

#: G (m, m, S) of clients or groups, or the sums that it is made of, and n, sum log W, ... (., S)
Rows = tuple[Any, Tensor]


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """A quadratic in the coefficients, whose coefficients are functions of L and the residual's deviation.

    Args:
        method: whose model.
    """

    method: MixedModel
    searches_beta: ClassVar[bool] = False
    automatic: ClassVar[Literal["reml", "auto"]] = "reml"
    most_points: ClassVar[int] = 256
    newton_steps: ClassVar[int] = 1
    keeps_points: ClassVar[bool] = True

    # -- what clients keep and send -----------------------------------------------------------------------------------

    def personal(self) -> State:
        """G, and n with sum log W, see :class:`.row_sums.RowSums`."""
        m = columns_of(self.method) + sum(level.q for level in self.method.inside)
        groups = [level.size for level in self.method.inside]
        return {"gram": torch.zeros(*groups, m, m), "rows": torch.zeros(4)}

    def steps(self) -> list[LocalStep]:
        """One pass over the rows."""
        return [RowSums(self.method)]

    @cached_property
    def cells(self) -> int:
        """The numbers of a quadratic in the coefficients, and in effects of groups of clients, for each of those
        groups.
        """
        return packed_size(columns_of(self.method) - self.method.covariance.q - 1) * matrices(self.method.above)

    def form(self, points: int) -> dict[str, tuple[int, ...]]:
        """See :func:`.cross_products.polynomial`."""
        k, cells = self.method.k, self.cells
        return {"cross": (cells,), "cross_1": (k, cells), "cross_2": (k, k, cells), "many": (points, cells)}

    def rows(self, chunk: ClientChunk) -> Rows:
        """Sums of products of the clients' rows."""
        return self.sums(chunk.values, chunk.batch), chunk.values["rows"].squeeze(1).mT.contiguous()

    def sums(self, values: State, batch: Callable[[], Batch]) -> Any:
        """G of clients, kept; where residuals correlate, sums that are made of their rows again."""
        if self.method.network.correlation is not None:
            return SerialSums.from_batch(self.method, batch())
        return clients_last(values["gram"])

    def counts(self, chunk: ClientChunk) -> Tensor:
        """Counts by the protocol, from the sums of products."""
        counts = [torch.ones_like(chunk.n), chunk.n]
        counts += [chunk.values["rows"].squeeze(1)[:, 3] for _ in self.method.inside]
        return torch.stack([column.to(torch.float64) for column in counts], 1)

    def around(self, rows: Rows, shared: Mapping[str, Tensor]) -> State:
        """See :func:`.cross_products.polynomial`."""
        return polynomial(self.method, *rows, shared["effects.at"])

    def at_points(self, rows: Rows, shared: Mapping[str, Tensor]) -> Tensor:
        """See :func:`.cross_products.at_points`."""
        return at_points(self.method, *rows, shared["effects.points"])

    # -- what the server makes of sums --------------------------------------------------------------------------------

    @property
    def kept_sums(self) -> list[str]:
        """The sums around the estimates, by how often they are derived."""
        return ["cross", "cross_1", *(["cross_2"] if self.method.settings.kenward_roger else [])]

    def kept(self) -> State:
        """Zeros of the sums around the estimates."""
        k = self.method.k
        return {name: torch.zeros(*[k] * order, self.cells) for order, name in enumerate(self.kept_sums)}

    def beta(self, packed: Tensor, numbers: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients' mean (..., p), precision (..., p, p) and the criterion's height, given the other numbers.

        Args:
            packed: sums of :func:`.cross_products.packed`, (..., c).
            numbers: the others, (..., k).
            coefficients: what the criterion does with them.
        """
        p = len(self.method.network.fixed)
        packed = without_regions(self.method, packed, numbers)
        cross = symmetric(packed[..., :-1], p + 1)
        a, b, yy = cross[..., :p, :p], cross[..., :p, p], cross[..., p, p]
        height = -0.5 * packed[..., -1]
        if coefficients.prior is not None:
            mean, sd = (v.to(packed) for v in coefficients.prior)
            a, b = a + torch.diag_embed(sd.square().reciprocal()), b + mean / sd.square()
            height = height + log_normal(torch.zeros_like(mean), mean, sd)
        factor = torch.linalg.cholesky_ex(a).L
        beta = torch.cholesky_solve(b[..., None], factor).squeeze(-1)
        height = height - 0.5 * (yy - (b * beta).sum(-1))
        if coefficients.integrated:
            height = height - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * p * math.log(2 * math.pi)
        return beta, a, height

    def height(
        self, sums: Mapping[str, Tensor], start: Tensor, step: Tensor, nodes: None, coefficients: Coefficients
    ) -> Tensor:
        """The height of the sums' Taylor polynomials."""
        c = sums["cross"] + step @ sums["cross_1"]
        c = c + 0.5 * torch.einsum("a,abc,b->c", step, sums["cross_2"], step)
        return self.beta(c, start + step, coefficients)[2]

    def derivatives(
        self, sums: Mapping[str, Tensor], coefficients: Coefficients
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Derivatives in closed form where only coefficients are eliminated, without noise; else None."""
        if self.method.above or self.method.private or coefficients.prior is not None:
            return None
        return quadratic(sums, len(self.method.network.fixed), coefficients.integrated)

    def heights(self, many: Tensor, numbers: Tensor, nodes: None, coefficients: Coefficients) -> Tensor:
        """The heights of the sums at each point."""
        return self.beta(many, numbers, coefficients)[2]

    def estimated(self, sums: Mapping[str, Tensor], numbers: Tensor, nodes: None, coefficients: Coefficients) -> State:
        """Coefficients, the sums themselves, and effects of groups of clients."""
        beta = self.beta(sums["cross"], numbers, coefficients)[0]
        values = {"beta": beta} | {name: sums[name] for name in self.kept_sums}
        if self.method.above:
            every = region_draws(self.method, sums["cross"][None], numbers[None], beta[None], None)
            values |= {name: effects[0] for name, effects in every.items()}
        return values

    def drawn(
        self, many: Tensor, points: Tensor, at: Tensor, drawn: Drawn, nodes: None, coefficients: Coefficients,
        normals: Normals,
    ) -> Drawn:  # fmt: skip
        """Coefficients are drawn given the numbers, and effects of groups of clients given all."""
        numbers, middle = drawn
        mean, precision, _ = self.beta(many, points, coefficients)
        factor = torch.linalg.cholesky_ex(precision).L
        z = normals("population", mean.new_zeros(len(at), mean.shape[-1]))
        away = torch.linalg.solve_triangular(factor.mT[at], z[..., None], upper=True).squeeze(-1)
        beta = mean[at] + away
        draws, middle = torch.cat([numbers, beta], -1), torch.cat([middle, mean[at].mean(0)])
        above = region_draws(self.method, many[at], numbers, beta, normals) if self.method.above else {}
        for w in above.values():
            draws, middle = torch.cat([draws, w.flatten(1)], -1), torch.cat([middle, w.mean(0).flatten()])
        return Drawn(draws, middle)

    # -- what clients know in the end ---------------------------------------------------------------------------------

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Modes from the sums of products."""
        gram = self.sums(values, lambda: batch)
        return gaussian_mode(self.method, gram, values["rows"], shared)

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """The exact moments of the effects."""
        return conditional(self.method, chunk, self.sums(chunk.values, chunk.batch), shared)

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Moments are the mixture's own."""
        return joint(self.method, chunk, self.sums(chunk.values, chunk.batch), draws, phase)

    def damping(self, far: Tensor) -> float:
        """A step is the whole way."""
        return 1.0
