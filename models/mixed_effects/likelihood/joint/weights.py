"""Rows whose weights are functions of the population's numbers: of formulas of dispersion, and of serial correlation.

Sums of products over a client's rows are G = sum_r w_r e_r e_r^T, and all else of a gaussian likelihood is a function
of G. With several levels inside clients e_r are rows in groups, and G is made in blocks.

    of a formula       w = W exp(-2 d^T gamma),     log |W| = sum log W - 2 d^T gamma
    of a series        e e^T + D_d phi / (1 - phi^2) - P_d phi / (1 + phi)

The latter is of :mod:`..gaussian.serial_sums`: rows, whose weight loses phi / (1 + phi) for each neighbour, and
differences of neighbours. Where any two rows of a group correlate it is rows less their group's mean, and means.
A series lies in one group of each level, and so do its differences and means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Columns
from hierfl.responses.serial import Serial

from ...model.equations import MixedModel
from ..gaussian.crossed import columns_above
from ..gaussian.row_sums import counts_of, precisions, times_of
from ..gaussian.serial_sums import SerialSums
from .jets import Jet, Order, orders
from .layout import Layout

#: of the population's numbers
GAMMA, SERIAL = "log_noise", "serial"


class Weights(Protocol):
    """The weights of rows, as functions of the numbers."""

    def at(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Weights (M, S, n) and log |W| (M, S) at the population's values {name: (M, *shape)}."""
        ...

    def around(self, values: Mapping[str, Tensor], first: int) -> tuple[Jet, Jet]:
        """The same, (S, n) and (S,), with derivatives in the numbers from ``first``, at values {name: (*shape)}."""
        ...


@dataclass(frozen=True)
class OfFormula:
    """The weights by a formula of dispersion.

    Attributes:
        d: its columns, (S, n, c).
        weight: how often a row counts, times its precision weight, (S, n).
        total: sums over rows of d, each as often as it counts, (S, c).
    """

    d: Tensor
    weight: Tensor
    total: Tensor

    def at(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """See :class:`Weights`."""
        scale = torch.einsum("snc,mc->msn", self.d, values[GAMMA])
        return self.weight * (-2 * scale).exp(), -2 * torch.einsum("sc,mc->ms", self.total, values[GAMMA])

    def around(self, values: Mapping[str, Tensor], first: int) -> tuple[Jet, Jet]:
        """See :class:`Weights`."""
        gamma, d = values[GAMMA], self.d.unbind(-1)
        w = self.weight * (-2 * (self.d * gamma).sum(-1)).exp()
        weights, logs = dict[Order, Tensor]({(): w}), dict[Order, Tensor]({(): -2 * self.total @ gamma})
        for order in orders(range(len(gamma))):
            part = w
            for a in order:
                part = -2 * d[a] * part
            weights[tuple(first + a for a in order)] = part
        logs |= {(first + a,): -2 * self.total[:, a] for a in range(len(gamma))}
        return Jet(weights), Jet(logs)


@dataclass(frozen=True)
class OfSeries:
    """The weights of residuals that correlate within series: rows, or rows less their group's mean, and differences
    or means.

    Attributes:
        sums: whose ``lag`` and ``count`` are of rows, (S, n): of each neighbour before, or first row of a group.
    """

    sums: SerialSums

    def at(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """See :class:`Weights`."""
        most = self.sums.serial.most
        apart, pairs, volume = self.sums.weights(values[SERIAL].clamp(-most, most)[:, None, None])
        return self._of_rows(apart, pairs), -volume.sum(-1)

    def around(self, values: Mapping[str, Tensor], first: int) -> tuple[Jet, Jet]:
        """See :class:`Weights`."""
        parts = self.sums.derivatives(values[SERIAL])
        every = list[Order]([(), (first,), (first, first)])
        weights = [
            self._of_rows(apart, pairs, unit) for (apart, pairs, _), unit in zip(parts, (1.0, 0.0, 0.0), strict=True)
        ]
        return (
            Jet(dict(zip(every, weights, strict=True))),
            Jet({order: -volume.sum(-1) for order, (_, _, volume) in zip(every, parts, strict=True)}),
        )

    def _of_rows(self, apart: Tensor, pairs: Tensor, unit: float = 1.0) -> Tensor:
        """Weights (..., S, 2 n) of those of D and P, (..., S, n); what does not depend on z has the derivative 0."""
        present = self.sums.count > 0
        if self.sums.serial.kind == "cs":
            return torch.cat([apart, pairs * present], -1)
        pairs = pairs * present
        after = torch.nn.functional.pad(pairs[..., 1:], (0, 1))
        return torch.cat([unit + pairs + after, apart * present], -1)


@dataclass(frozen=True)
class WeightedRows:
    """Rows of S clients.

    Attributes:
        columns: of each level, columns of its effects (S, n, q) and each row's group (S, n).
        more: [Z_out X y], (S, n, m).
        counts: of :func:`~..gaussian.row_sums.counts_of`, (S, 3 + levels inside).
        weights: of the rows.
    """

    columns: list[tuple[Tensor, Tensor]]
    more: Tensor
    counts: Tensor
    weights: Weights

    @classmethod
    def from_batch(cls, method: MixedModel, batch: Batch) -> WeightedRows:
        """Returns the weights of a batch."""
        columns = method.network.split(batch.x)
        away = batch.y - method.network.offset - (0.0 if columns.offset is None else columns.offset)
        above = [columns_above(level, columns) for level in method.above]
        more = torch.cat([*above, columns.x, away[..., None]], -1)
        levels, counts = Layout.for_method(method).columns(columns), counts_of(method, batch)
        times = times_of(columns, batch)
        weight = times * precisions(columns, batch)
        if columns.dispersion is not None:
            total = (times[..., None] * columns.dispersion).sum(-2)
            return cls(levels, more, counts, OfFormula(columns.dispersion, weight, total))
        root = weight.sqrt()[..., None]
        return _in_series(method, batch, columns, [(z * root, group) for z, group in levels], more * root, counts)


def _in_series(
    method: MixedModel, batch: Batch, columns: Columns, levels: list[tuple[Tensor, Tensor]], more: Tensor,
    counts: Tensor,
) -> WeightedRows:  # fmt: skip
    """Rows in the order of their series and times, and then differences or means."""
    serial = Serial.from_correlation(method.network.correlation)
    assert serial is not None
    assert columns.series is not None
    mask = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
    series = torch.where(mask, columns.series, torch.inf)
    time = torch.zeros_like(series) if columns.time is None else columns.time
    order = time.argsort(dim=-1, stable=True)
    order = order.gather(-1, series.gather(-1, order).argsort(dim=-1, stable=True))
    series, time, mask = (row_values.gather(-1, order) for row_values in (series, time, mask))
    before = torch.nn.functional.pad((series[:, 1:] == series[:, :-1]) & mask[:, 1:], (1, 0))
    if serial.kind == "cs":
        number = (~before).cumsum(-1) - 1  # of each row's series
        size = torch.zeros_like(time).scatter_add_(-1, number, mask.to(time)).gather(-1, number).clamp_min(1.0)
        lag, count = size, (mask & ~before).to(time)
    else:
        gap = time - torch.nn.functional.pad(time[:, :-1], (1, 0))
        lag, count = torch.where(before, gap, 1.0), before.to(time)

    def both(x: Tensor) -> Tensor:
        x = x.gather(1, order[..., None].expand_as(x))
        if serial.kind != "cs":
            last = torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))
            return torch.cat([x, torch.where(before[..., None], x - last, 0.0)], 1)
        at = number[..., None].expand_as(x)
        mean = torch.zeros_like(x).scatter_add_(1, at, x).gather(1, at) / size[..., None]
        return torch.cat([x - mean, mean * size.sqrt()[..., None]], 1)

    twice = [(both(z), group.gather(-1, order).repeat(1, 2)) for z, group in levels]
    nothing = more.new_zeros(0)
    return WeightedRows(twice, both(more), counts, OfSeries(SerialSums(serial, nothing, nothing, nothing, lag, count)))
