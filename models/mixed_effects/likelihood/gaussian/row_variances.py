"""The likelihood of a gaussian response whose rows have standard deviations of their own, by a formula.

    log s_ij = d_ij^T gamma,    W = diag exp(-2 D gamma) (times precision weights),    G = [Z X y]^T W [Z X y]

G is a function of gamma, made from the rows at each point, with

    d G / d gamma_a = -2 [Z X y]^T W diag(d_a) [Z X y],    d log |W| / d gamma_a = -2 sum d_a.

All else is that of one standard deviation (:mod:`.cross_products`), with W in it and s = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.state import State

from ...model.equations import MixedModel
from .cross_products import expanded, of_points
from .draws import Effects, effects_at, gaussian_mode, joined
from .effects import conditional_of, joint_of
from .likelihood import Gaussian
from .row_sums import both_columns, counts_of, precisions, times_of
from .taylor import Taylor

#: weights x rows x entries of G that are held at a time
NUMBERS_PER_PASS = 20_000_000
#: of the population's numbers
GAMMA = "log_noise"


class Products(NamedTuple):
    """What a batch's G is made of, as a function of gamma.

    Attributes:
        entries: products of columns [Z_in Z Z_out X y], (S, n, m^2).
        d: columns of the formula, (S, n, c).
        weight: how often a row counts, times its precision weight, (S, n).
        total: sums over rows of d, each as often as it counts, (S, c).
        rows: [n, sum log W, region, groups], (4, S), as if gamma were zero.
        group: numbers of the groups inside, (S, n), and how many there may be; None for none.
    """

    entries: Tensor
    d: Tensor
    weight: Tensor
    total: Tensor
    rows: Tensor
    group: tuple[Tensor, int] | None

    @classmethod
    def from_batch(cls, method: MixedModel, batch: Batch) -> Products:
        """Returns the products of rows."""
        columns = method.network.split(batch.x)
        assert columns.dispersion is not None
        both = both_columns(method, columns, batch)
        entries = (both[..., :, None] * both[..., None, :]).flatten(-2)
        times = times_of(columns, batch)
        total = (times[..., None] * columns.dispersion).sum(-2)
        inner = None if columns.inner is None else (columns.inner.long(), method.inside[0].size)
        return cls(
            entries, columns.dispersion, times * precisions(columns, batch), total,
            counts_of(method, batch).mT, inner,
        )  # fmt: skip

    def gram(self, weights: Tensor) -> Tensor:
        """G (P, m, m, S), or (P, m, m, groups S) group by group, of weights (P, S, n) of the rows."""
        m = round(self.entries.shape[-1] ** 0.5)
        if self.group is None:
            sums = weights.transpose(0, 1) @ self.entries  # (S, P, m^2)
            return sums.permute(1, 2, 0).unflatten(1, (m, m))
        (index, size), (p, s, _) = self.group, weights.shape
        flat_index = (index + size * torch.arange(s, device=index.device)[:, None]).flatten()
        rows = (weights[..., None] * self.entries).flatten(1, 2)  # (P, S n, m^2)
        sums = rows.new_zeros(p, s * size, m * m).index_add_(1, flat_index, rows).unflatten(1, (s, size))
        return sums.permute(0, 3, 2, 1).flatten(2).unflatten(1, (m, m))

    def at(self, gamma: Tensor) -> tuple[Tensor, list[Tensor]]:
        """G and [n, sum log W, ...] at points (M, c): (M, m, m, S), and (S,) or (M, S) each."""
        scale = torch.einsum("snc,mc->msn", self.d, gamma)
        log_w = self.rows[1] - 2 * torch.einsum("sc,mc->ms", self.total, gamma)
        return self.gram(self.weight * (-2 * scale).exp()), [self.rows[0], log_w, *self.rows[2:]]

    def around(self, gamma: Tensor, first: int, k: int) -> tuple[Taylor, list[Taylor | Tensor]]:
        """The same around gamma (c,), which are the numbers from ``first`` of k."""
        c, d = len(gamma), self.d.movedim(-1, 0)  # (c, S, n)
        w = self.weight * (-2 * (self.d * gamma).sum(-1)).exp()
        pairs = (4 * w * d[:, None] * d[None]).flatten(0, 1)
        whole = self.gram(torch.cat([w[None], -2 * w * d, pairs]))
        value, slope, bend = whole.split([1, c, c * c])
        own = slice(first, first + c)
        slopes, bends = value.new_zeros(k, *value.shape[1:]), value.new_zeros(k, k, *value.shape[1:])
        slopes[own], bends[own, own] = slope, bend.unflatten(0, (c, c))
        moved = self.total.new_zeros(k, len(self.total))
        moved[own] = -2 * self.total.mT
        log_w = Taylor(self.rows[1] - 2 * self.total @ gamma, moved, moved.new_zeros(k, *moved.shape))
        return Taylor(value[0], slopes, bends), [self.rows[0], log_w, *self.rows[2:]]

    @property
    def points(self) -> int:
        """How many go at a time."""
        sums = self.entries[:, 0].numel()
        numbers_each = self.weight.numel() + sums if self.group is None else self.entries.numel() + sums * self.group[1]
        return max(1, NUMBERS_PER_PASS // numbers_each)


@dataclass(frozen=True)
class RowVariances(Gaussian):
    """See :class:`.likelihood.Gaussian`; what clients compute from are their rows, at each point."""

    def check(self) -> None:
        """Refuses what needs sums that are made once.

        Raises:
            UserError: for it.
        """
        if self.method.settings.kenward_roger:
            raise UserError("kenward_roger is of one residual deviation: no dispersion formula beside it")
        if self.method.settings.one_round:
            raise UserError("one_round is of one residual deviation: no dispersion formula beside it")

    def personal(self) -> State:
        """Nothing."""
        return {}

    def steps(self) -> list[LocalStep]:
        """None."""
        return []

    def rows(self, chunk: ClientChunk) -> ClientChunk:  # type: ignore[override]
        """The rows themselves."""
        return chunk

    def counts(self, chunk: ClientChunk) -> Tensor:
        """One pass over the rows where there are groups inside."""
        counts = [torch.ones_like(chunk.n), chunk.n]
        for _ in self.method.inside:
            counts.append(torch.cat([counts_of(self.method, part.batch())[:, 3] for part in parts_of(chunk)]))
        return torch.stack([column.to(torch.float64) for column in counts], 1)

    def around(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> State:  # type: ignore[override]
        """See :func:`.cross_products.polynomial`."""
        numbers = shared["effects.at"]
        names = list(self.method.sizes)
        first = sum(self.method.sizes[name] for name in names[: names.index(GAMMA)])
        gamma = self.method.parts(numbers)[GAMMA]
        parts = []
        for part in parts_of(rows):
            gram, counts = Products.from_batch(self.method, part.batch()).around(gamma, first, len(numbers))
            parts.append(expanded(self.method, gram, counts, numbers))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def at_points(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        """See :func:`.cross_products.at_points`."""
        points, parts = shared["effects.points"], []
        for part in parts_of(rows):
            products = Products.from_batch(self.method, part.batch())
            of_part = [
                of_points(self.method, *products.at(self.method.parts(some)[GAMMA]), some)
                for some in points.split(products.points)
            ]
            parts.append(torch.cat(of_part, 1))
        return torch.cat(parts)

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Modes from the sums of products at these values."""
        return gaussian_mode(self.method, *self.sums_at(batch, shared), without_gamma(shared))

    def sums_at(self, batch: Batch, shared: State) -> tuple[Tensor, Tensor]:
        """G (m, m, S) of clients or groups, and [n, ...] as clients of one standard deviation keep them."""
        products = Products.from_batch(self.method, batch)
        return products.at(shared[GAMMA][None])[0][0], products.rows.mT.unsqueeze(1)

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """The exact moments of the effects."""
        parts = [
            conditional_of(self.method, *self.sums_at(part.batch(), shared), without_gamma(shared))
            for part in parts_of(chunk)
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Moments are the mixture's own."""
        parts = []
        for part in parts_of(chunk):
            products = Products.from_batch(self.method, part.batch())

            def drawn(z: Mapping[str, Tensor], products: Products = products) -> tuple[Effects, Effects | None]:
                return self._drawn(products, draws, z)

            parts.append(joint_of(self.method, part, draws, phase, drawn))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _drawn(
        self, products: Products, draws: State, z: Mapping[str, Tensor]
    ) -> tuple[Effects, Effects | None]:  # fmt: skip
        """Effects at draws, some at a time: each has sums of its own."""
        size, parts = products.points, list[tuple[Effects, Effects | None]]()
        rows = products.rows.mT.unsqueeze(1)
        for first in range(0, len(draws["beta"]), size):
            some = {k: v[first : first + size] for k, v in draws.items()}
            gram, _ = products.at(some[GAMMA])
            own = {k: v[first : first + size] for k, v in z.items()}
            parts.append(effects_at(self.method, gram, rows, without_gamma(some), own))
        inner = [of_groups for _, of_groups in parts if of_groups is not None]
        return joined([own_effects for own_effects, _ in parts]), joined(inner) if inner else None


def without_gamma(shared: State) -> State:
    """Values of a model whose rows have their precisions in G."""
    return {k: v for k, v in shared.items() if k != GAMMA}


def parts_of(chunk: ClientChunk) -> Sequence[ClientChunk]:
    """Rows that are padded little."""
    return [chunk.part(first, last) for first, last in buckets(chunk.sizes)]
