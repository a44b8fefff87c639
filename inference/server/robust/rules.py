"""Robust rules: of points, of which a few may lie anywhere, one in the middle of the others.

- ``trimmed:SHARE``: each coordinate's mean without that share of the clients at each end (Yin et al., ICML 2018).
- ``median``: each coordinate's median of those that say something of it, whatever their weights (ibid.).
- ``centred-clip:RADIUS``: the mean, where no point pulls by more than a radius (Karimireddy et al., ICML 2021). It is
  in units of the median distance from the middle, and the middle to begin with is the median.
- ``krum:LIARS``: the mean of all but LIARS points, those far from their neighbours (multi-Krum, m = n - f; Blanchard et
  al., NeurIPS 2017).

Each works on points (R, d) with weights (R, d), zero where a client says nothing of a coordinate. Nothing waits for the
device. :meth:`RobustRule.shares` is for what has no coordinatewise middle, such as sums of matrices: there whole
clients count less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .weights import middle

#: iterations of centred clipping and of the geometric median
ITERATIONS = 5
#: in median distances from the median, beyond which a coordinate of a sum counts as no more: 3.4 standard deviations
REACH = 5.0
#: in median distances: who is nearer to the middle counts no more for it in a geometric median
NEAREST = 0.5
#: distances below this share of their median are none
SMALLEST = 1e-6


class RobustRule(Protocol):
    """A rule."""

    @property
    def least(self) -> int:
        """With fewer clients it cannot do what it says."""
        ...

    def most(self, clients: int) -> int:
        """How many of so many clients are left out at most, where whole clients are."""
        ...

    def centre(self, points: Tensor, weights: Tensor) -> Tensor:
        """One point (d,) of (R, d) with weights (R, d)."""
        ...

    def shares(self, points: Tensor, there: Tensor) -> Tensor:
        """How much of each client's message counts, (R,) in [0, 1], by its point.

        Args:
            points: (R, d).
            there: (R,), False for who is not there.
        """
        ...

    def bounded(self, points: Tensor, there: Tensor) -> Tensor:
        """Points (R, d), no coordinate of which is far from the others'; arguments are those of :meth:`shares`."""
        ...


def _weighted(points: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum(0)
    return (points * weights).sum(0) / torch.where(total > 0, total, 1)


def _middle_of(points: Tensor, there: Tensor) -> Tensor:
    return middle(points, there[:, None].expand_as(points))


def distances(points: Tensor, centre: Tensor, there: Tensor) -> Tensor:
    """(R,) from a centre (d,), in units of their median; zero for who is not there."""
    far = torch.where(there, torch.linalg.vector_norm(points - centre, dim=1), 0)
    typical = middle(far, there)
    return far / torch.where(typical > 0, typical, 1)


def _within(points: Tensor, there: Tensor, ends: Tensor) -> Tensor:
    """Points (R, d), each coordinate no further out than those that are left without so many at each end."""
    count, ends = there.sum(), ends.to(points.device)
    ends = ends.minimum((count - 1) // 2).clamp_min(0)
    ordered = torch.where(there[:, None], points, torch.inf).sort(0).values
    low, high = (
        ordered.index_select(0, at.long().clamp(0, len(points) - 1).view(1)) for at in (ends, count - 1 - ends)
    )
    return torch.where(there[:, None], points.clamp(low, high), points)


def _near(points: Tensor, there: Tensor) -> Tensor:
    """Points (R, d), each coordinate no further from its median than :data:`REACH` median distances."""
    centre = _middle_of(points, there)
    reach = REACH * _middle_of((points - centre).abs(), there)
    return torch.where(there[:, None], points.clamp(centre - reach, centre + reach), points)


@dataclass(frozen=True)
class Trimmed:
    """See the module.

    Args:
        share: of the clients, at each end.
    """

    share: float

    @property
    def least(self) -> int:
        """One is left."""
        return 3

    def most(self, clients: int) -> int:
        """The share."""
        return int(self.dropped(torch.tensor(clients)))

    def dropped(self, count: Tensor) -> Tensor:
        """How many at each end, of so many: at least one is left."""
        return (self.share * count - SMALLEST).ceil().minimum((count - 1) // 2).clamp_min(0)

    def centre(self, points: Tensor, weights: Tensor) -> Tensor:
        """By ranks."""
        there = weights > 0
        count = there.sum(0)
        rank = torch.where(there, points, torch.inf).argsort(dim=0, stable=True).argsort(dim=0)
        ends = self.dropped(count)
        return _weighted(points, torch.where((rank >= ends) & (rank < count - ends), weights, 0))

    def bounded(self, points: Tensor, there: Tensor) -> Tensor:
        """Between those that are not trimmed."""
        return _within(points, there, self.dropped(there.sum()))

    def shares(self, points: Tensor, there: Tensor) -> Tensor:
        """Without those furthest from the median."""
        far = torch.where(there, distances(points, _middle_of(points, there), there), torch.inf)
        return ((far.argsort(stable=True).argsort() < there.sum() - self.dropped(there.sum())) & there).to(points)


@dataclass(frozen=True)
class Median:
    """See the module."""

    @property
    def least(self) -> int:
        """Of two there is none."""
        return 3

    def most(self, clients: int) -> int:
        """Fewer than a half."""
        return (clients - 1) // 2

    def centre(self, points: Tensor, weights: Tensor) -> Tensor:
        """Weights say who is there alone: with others a liar of three or four would be the middle by itself."""
        return middle(points, weights > 0)

    def bounded(self, points: Tensor, there: Tensor) -> Tensor:
        """Within :data:`REACH` median distances."""
        return _near(points, there)

    def shares(self, points: Tensor, there: Tensor) -> Tensor:
        """Weiszfeld's: the geometric median's weights, of which the largest is one."""
        centre, share = _middle_of(points, there), there.to(points)
        for _ in range(ITERATIONS):
            share = torch.where(there, 1 / distances(points, centre, there).clamp_min(NEAREST), 0)
            centre = (share[:, None] * points).sum(0) / share.sum().clamp_min(SMALLEST)
        return share / share.amax().clamp_min(SMALLEST)


@dataclass(frozen=True)
class CentredClip:
    """See the module.

    Args:
        radius: in median distances.
    """

    radius: float

    @property
    def least(self) -> int:
        """A median of distances needs three."""
        return 3

    def most(self, clients: int) -> int:
        """Fewer than a half."""
        return (clients - 1) // 2

    def centre(self, points: Tensor, weights: Tensor) -> Tensor:
        """From the median, by a few steps."""
        there = weights > 0
        present, found = there.any(1), middle(points, there)
        for _ in range(ITERATIONS):
            gaps = torch.where(there, points - found, 0)
            far = distances(gaps, torch.zeros_like(found), present)
            found = found + _weighted(gaps * (self.radius / far.clamp_min(SMALLEST)).clamp(max=1)[:, None], weights)
        return found

    def bounded(self, points: Tensor, there: Tensor) -> Tensor:
        """Within :data:`REACH` median distances."""
        return _near(points, there)

    def shares(self, points: Tensor, there: Tensor) -> Tensor:
        """By how much each is pulled in."""
        far = distances(points, _middle_of(points, there), there)
        return torch.where(there, (self.radius / far.clamp_min(SMALLEST)).clamp(max=1), 0)


@dataclass(frozen=True)
class Krum:
    """See the module.

    Args:
        liars: f.
    """

    liars: int

    @property
    def least(self) -> int:
        """2 f + 3 (Blanchard et al., Proposition 1)."""
        return 2 * self.liars + 3

    def most(self, clients: int) -> int:
        """The liars."""
        return self.liars

    def centre(self, points: Tensor, weights: Tensor) -> Tensor:
        """The mean of those that are chosen; what a client says nothing of is where the median is."""
        there = weights > 0
        filled = torch.where(there, points, middle(points, there))
        chosen = self.shares(filled, there.any(1))
        kept = torch.where(chosen[:, None] > 0, weights, 0)
        return torch.where(kept.sum(0) > 0, _weighted(points, kept), middle(points, there))

    def bounded(self, points: Tensor, there: Tensor) -> Tensor:
        """Between those that so many at each end leave."""
        return _within(points, there, torch.tensor(self.liars))

    def shares(self, points: Tensor, there: Tensor) -> Tensor:
        """One for those that are chosen."""
        count = there.sum()
        pairs = there[:, None] & there & ~torch.eye(len(points), dtype=torch.bool, device=points.device)
        squares = torch.where(pairs, torch.cdist(points, points, compute_mode=EXACT).square(), torch.inf)
        ordered = squares.sort(1).values
        near = torch.arange(len(points), device=points.device) < (count - self.liars - 2).clamp_min(1)
        score = torch.where(near & ordered.isfinite(), ordered, 0).sum(1)
        rank = torch.where(there, score, torch.inf).argsort(stable=True).argsort()
        return ((rank < (count - self.liars).clamp_min(1)) & there).to(points)


#: not by matrix products: differences of close points keep their digits
EXACT = "donot_use_mm_for_euclid_dist"
