"""Sums over a client's rows whose residuals correlate within series: G is a function of z, made of sums that are not.

    V = s^2 W^-1/2 C W^-1/2 + Z L L^T Z^T,    G(z) = [Z X y]^T W^1/2 C(z)^-1 W^1/2 [Z X y]

Rows e of a series, times the roots of W, in the order of their times, lie d apart. With phi = rho^d

    G = sum e e^T + sum_d phi / (1 - phi^2) D_d - phi / (1 + phi) P_d,      log |C| = sum_d n_d log(1 - phi^2)
    D_d = sum (e - e_before) (e - e_before)^T,    P_d = sum e e^T + e_before e_before^T

over pairs at the distance d. Where any two rows of a group of n correlate by rho, with e_mean the group's,

    G = sum_n D_n / (1 - rho) + P_n / (1 + (n - 1) rho)
    log |C| = sum_n N_n ((n - 1) log(1 - rho) + log(1 + (n - 1) rho))
    D_n = sum (e - e_mean) (e - e_mean)^T,        P_n = sum n e_mean e_mean^T

over the N_n groups of n. So one pass over the rows serves all z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.responses.serial import Serial

from ...model.equations import MixedModel
from .row_sums import whitened_rows
from .taylor import Taylor


@dataclass(frozen=True)
class SerialSums:
    """The sums of U clients, or of groups inside clients, group by group.

    Attributes:
        serial: the correlation.
        base: what does not depend on z, (m, m, U).
        apart, pairs: D and P, (m, m, U, K) at K distances or sizes of groups.
        lag: these distances or sizes, (U, K).
        count: how many pairs or groups there are of each, (U, K).
    """

    serial: Serial
    base: Tensor
    apart: Tensor
    pairs: Tensor
    lag: Tensor
    count: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of G."""
        return self.base.shape

    @classmethod
    def from_batch(cls, method: MixedModel, batch: Batch) -> SerialSums:
        """One pass over rows (S, n)."""
        serial = Serial.from_correlation(method.network.correlation)
        assert serial is not None
        e, columns = whitened_rows(method, batch)  # (S, n, m)
        number, n, m = e.shape
        present = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
        client = torch.arange(number, device=e.device)[:, None].expand(number, n)
        unit, groups = client, 1
        for level in method.inside:
            group = columns.for_level(level.kind)[1]
            assert group is not None
            unit, groups = client + number * group.long(), level.size
        assert columns.series is not None
        own = torch.stack([client.to(e), columns.series], -1)[present]
        series = torch.unique(own, dim=0, return_inverse=True)[1]
        e, unit = e[present], unit[present]
        time = torch.zeros_like(e[:, 0]) if columns.time is None else columns.time[present]
        order = time.argsort(stable=True)
        order = order[series[order].argsort(stable=True)]
        e, unit, series, time = e[order], unit[order], series[order], time[order]
        if serial.kind == "cs":
            return cls._of_groups(serial, e, unit, series, number * groups)
        after = torch.nonzero(series[1:] == series[:-1]).squeeze(-1) + 1
        now, before = e[after], e[after - 1]
        by_lag = _by_lag(
            unit[after], time[after] - time[after - 1], _outer(now - before), _outer(now) + _outer(before),
            number * groups,
        )  # fmt: skip
        base = e.new_zeros(number * groups, m, m).index_add_(0, unit, _outer(e))
        return cls(serial, base.movedim(0, -1).contiguous(), *by_lag)

    @classmethod
    def _of_groups(cls, serial: Serial, e: Tensor, unit: Tensor, series: Tensor, units: int) -> SerialSums:
        number, m = int(series.max()) + 1, e.shape[1]
        size = torch.bincount(series, minlength=number).to(e)
        mean = e.new_zeros(number, m).index_add_(0, series, e) / size[:, None]
        within = e.new_zeros(number, m, m).index_add_(0, series, _outer(e - mean[series]))
        of_series = torch.zeros(number, dtype=torch.long, device=e.device).scatter_(0, series, unit)
        by_lag = _by_lag(of_series, size, within, size[:, None, None] * _outer(mean), units)
        return cls(serial, e.new_zeros(m, m, units), *by_lag)

    def given(self, z: Any) -> tuple[Any, Any]:
        """G and log |C| of each unit: with derivatives, (m, m, U) and (U,), or at M points z (M, 1), (M, m, m, U)."""
        most = self.serial.most
        if isinstance(z, Tensor):
            z = z.clamp(-most, most)
            apart, pairs, volume = self._weights(self._correlations(z[..., None]))
            return self._sum(apart, pairs) + self.base, volume.sum(-1)
        if abs(float(z.value)) > most:  # where nothing changes any more
            fixed = self.given(z.value.clamp(-most, most)[None, None])
            grams, volumes = ((v[0], 0 * v[0], 0 * v[0]) for v in fixed)
            return _through(z, *grams), _through(z, *volumes)
        (own,) = Taylor.variables(z.value[None])
        parts = [(self._sum(a, p), v.sum(-1)) for a, p, v in self._around(own)]
        grams, volumes = zip(*parts, strict=True)
        return _through(z, self.base + grams[0], *grams[1:]), _through(z, *volumes)

    def weights(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights of D and P, and log |C|'s parts, (..., U, K) at z (..., 1, 1)."""
        apart, pairs, volume = self._weights(self._correlations(z))
        return apart, pairs, volume

    def derivatives(self, z: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The same (U, K) at z (), and their first and second derivatives."""
        most = self.serial.most
        (own,) = Taylor.variables(z.clamp(-most, most)[None])
        orders = self._around(own)
        if abs(float(z)) <= most:
            return orders
        apart, pairs, volume = orders[0]  # beyond that nothing changes any more
        return [orders[0], *[(0 * apart, 0 * pairs, 0 * volume)] * 2]

    def _around(self, z: Taylor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The weights of D and P, and log |C|'s parts, by how often they are derived."""
        return list(zip(*(_derivatives(weight) for weight in self._weights(self._correlations(z))), strict=True))

    def _correlations(self, z: Any) -> Any:
        """phi at each distance, or rho at each size."""
        value = z.value if isinstance(z, Taylor) else z
        if self.serial.kind != "cs":
            orders = self.serial.phi(value, self.lag)
        else:
            share, least = value.sigmoid(), self.serial.least
            rest = (1 - least) * share * (1 - share)
            all_lags = torch.ones_like(self.lag)
            value_slope_bend = least + (1 - least) * share, rest, rest * (1 - 2 * share)
            a, b, c = (v * all_lags for v in value_slope_bend)
            orders = a, b, c
        return _through(z, *orders) if isinstance(z, Taylor) else orders[0]

    def _weights(self, phi: Any) -> tuple[Any, Any, Any]:
        """The weights of D and P, and log |C|'s parts."""
        if self.serial.kind != "cs":
            rest = 1.0 - phi * phi
            return phi / rest, -(phi / (phi + 1.0)), rest.log() * self.count
        within, between = 1.0 - phi, phi * (self.lag - 1) + 1.0
        volume = (within.log() * (self.lag - 1) + between.log()) * self.count
        return 1.0 / within, 1.0 / between, volume

    def _sum(self, apart: Tensor, pairs: Tensor) -> Tensor:
        """(..., m, m, U) of weights (..., U, K)."""
        return torch.einsum("ijuk,...uk->...iju", self.apart, apart) + torch.einsum(
            "ijuk,...uk->...iju", self.pairs, pairs
        )

    def split(self, size: int, groups: int) -> list[SerialSums]:
        """The sums of so many clients at a time."""

        def parts(x: Tensor, dim: int) -> list[Tensor]:
            return [part.flatten(dim, dim + 1) for part in x.unflatten(dim, (groups, -1)).split(size, dim + 1)]

        split_parts = [parts(self.base, 2), parts(self.apart, 2), parts(self.pairs, 2), parts(self.lag, 0)]
        return [SerialSums(self.serial, *some) for some in zip(*split_parts, parts(self.count, 0), strict=True)]


def at_population(gram: Any, shared: Any) -> Tensor:
    """G (..., m, m, U) at shared values {name: (D, *shape)}, of sums over rows, or of those over series."""
    return gram.given(shared["serial"][:, None])[0] if isinstance(gram, SerialSums) else gram


def _outer(e: Tensor) -> Tensor:
    return e[:, :, None] * e[:, None, :]


def _through(z: Taylor, value: Tensor, first: Tensor, second: Tensor) -> Taylor:
    """A function of the number z, by its values (*shape) and derivatives there."""
    return z.expand(value.shape).through(value, first, second)


def _derivatives(x: Taylor) -> tuple[Tensor, Tensor, Tensor]:
    return x.value, x.slope[0], x.bend[0, 0]


def _by_lag(
    unit: Tensor, lag: Tensor, apart: Tensor, pairs: Tensor, units: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of matrices (N, m, m) over those of one unit and lag, the lags, and how many matrices each has."""
    kinds, index = torch.unique(torch.stack([unit.to(lag), lag], -1), dim=0, return_inverse=True)
    unit_of_kind = kinds[:, 0].long()
    first = torch.searchsorted(unit_of_kind, unit_of_kind)  # kinds are in order, unit by unit
    rank, m = torch.arange(len(unit_of_kind), device=unit_of_kind.device) - first, apart.shape[-1]
    most = int(rank.max()) + 1 if len(rank) else 1
    sums = []
    for matrices in (apart, pairs):
        total = matrices.new_zeros(len(unit_of_kind), m, m).index_add_(0, index, matrices)
        whole = matrices.new_zeros(units, most, m, m)
        whole[unit_of_kind, rank] = total
        sums.append(whole.permute(2, 3, 0, 1).contiguous())
    where, count = lag.new_ones(units, most), lag.new_zeros(units, most)
    where[unit_of_kind, rank] = kinds[:, 1]
    count[unit_of_kind, rank] = torch.bincount(index, minlength=len(unit_of_kind)).to(lag)
    return sums[0], sums[1], where, count
