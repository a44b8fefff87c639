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
MAX_MEDIAN_DISTANCES = 5.0
#: in median distances: who is nearer to the middle counts no more for it in a geometric median
NEAREST = 0.5
#: distances below this share of their median are none
SMALLEST = 1e-6


class RobustRule(Protocol):
    """A rule."""

    @property
    def least(self) -> int:
        """The least number of clients with which the rule works."""
        ...

    def most(self, clients: int) -> int:
        """How many of so many clients are left out at most, where whole clients are."""
        ...

    def centre(self, points: Tensor, weights: Tensor) -> Tensor:
        """One point (d,) of (R, d) with weights (R, d)."""
        ...

    def shares(self, points: Tensor, present: Tensor) -> Tensor:
        """How much of each client's message counts, (R,) in [0, 1], by its point.

        Args:
            points: (R, d).
            present: (R,), False for who is not there.
        """
        ...

    def bounded(self, points: Tensor, present: Tensor) -> Tensor:
        """Points (R, d), no coordinate of which is far from the others'; arguments are those of :meth:`shares`."""
        ...


def _weighted(points: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum(0)
    return (points * weights).sum(0) / torch.where(total > 0, total, 1)


def _middle_of(points: Tensor, present: Tensor) -> Tensor:
    return middle(points, present[:, None].expand_as(points))


def distances(points: Tensor, centre: Tensor, present: Tensor) -> Tensor:
    """(R,) from a centre (d,), in units of their median; zero for who is not there."""
    far = torch.where(present, torch.linalg.vector_norm(points - centre, dim=1), 0)
    typical = middle(far, present)
    return far / torch.where(typical > 0, typical, 1)


def _within(points: Tensor, present: Tensor, ends: Tensor) -> Tensor:
    """Points (R, d), each coordinate no further out than those that are left without so many at each end."""
    count, ends = present.sum(), ends.to(points.device)
    ends = ends.minimum((count - 1) // 2).clamp_min(0)
    ordered = torch.where(present[:, None], points, torch.inf).sort(0).values
    low, high = (
        ordered.index_select(0, at.long().clamp(0, len(points) - 1).view(1)) for at in (ends, count - 1 - ends)
    )
    return torch.where(present[:, None], points.clamp(low, high), points)


def _near(points: Tensor, present: Tensor) -> Tensor:
    """Points (R, d), each coordinate no further from its median than :data:`MAX_MEDIAN_DISTANCES` median distances."""
    centre = _middle_of(points, present)
    reach = MAX_MEDIAN_DISTANCES * _middle_of((points - centre).abs(), present)
    return torch.where(present[:, None], points.clamp(centre - reach, centre + reach), points)


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
        """The mean of the points whose ranks are not trimmed, coordinate by coordinate."""
        present = weights > 0
        count = present.sum(0)
        rank = torch.where(present, points, torch.inf).argsort(dim=0, stable=True).argsort(dim=0)
        ends = self.dropped(count)
        return _weighted(points, torch.where((rank >= ends) & (rank < count - ends), weights, 0))

    def bounded(self, points: Tensor, present: Tensor) -> Tensor:
        """Points, each coordinate clamped to the range of those that are not trimmed."""
        return _within(points, present, self.dropped(present.sum()))

    def shares(self, points: Tensor, present: Tensor) -> Tensor:
        """One for each client that is kept, zero for those furthest from the median."""
        far = torch.where(present, distances(points, _middle_of(points, present), present), torch.inf)
        return ((far.argsort(stable=True).argsort() < present.sum() - self.dropped(present.sum())) & present).to(points)


@dataclass(frozen=True)
class Median:
    """See the module."""

    @property
    def least(self) -> int:
        """The least number of messages: of two there is none."""
        return 3

    def most(self, clients: int) -> int:
        """Fewer than a half."""
        return (clients - 1) // 2

    def centre(self, points: Tensor, weights: Tensor) -> Tensor:
        """Weights say who is there alone: with others a liar of three or four would be the middle by itself."""
        return middle(points, weights > 0)

    def bounded(self, points: Tensor, present: Tensor) -> Tensor:
        """Points, each coordinate clamped to :data:`MAX_MEDIAN_DISTANCES` median distances from the median."""
        return _near(points, present)

    def shares(self, points: Tensor, present: Tensor) -> Tensor:
        """Weiszfeld's: the geometric median's weights, of which the largest is one."""
        centre, share = _middle_of(points, present), present.to(points)
        for _ in range(ITERATIONS):
            share = torch.where(present, 1 / distances(points, centre, present).clamp_min(NEAREST), 0)
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
        """The centre after a few steps of centred clipping, which start from the median."""
        positive = weights > 0
        present, centre = positive.any(1), middle(points, positive)
        for _ in range(ITERATIONS):
            gaps = torch.where(positive, points - centre, 0)
            far = distances(gaps, torch.zeros_like(centre), present)
            centre = centre + _weighted(gaps * (self.radius / far.clamp_min(SMALLEST)).clamp(max=1)[:, None], weights)
        return centre

    def bounded(self, points: Tensor, present: Tensor) -> Tensor:
        """Points, each coordinate clamped to :data:`MAX_MEDIAN_DISTANCES` median distances from the median."""
        return _near(points, present)

    def shares(self, points: Tensor, present: Tensor) -> Tensor:
        """The factor by which each point is pulled in to the radius."""
        far = distances(points, _middle_of(points, present), present)
        return torch.where(present, (self.radius / far.clamp_min(SMALLEST)).clamp(max=1), 0)


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
        present = weights > 0
        filled = torch.where(present, points, middle(points, present))
        chosen = self.shares(filled, present.any(1))
        kept = torch.where(chosen[:, None] > 0, weights, 0)
        return torch.where(kept.sum(0) > 0, _weighted(points, kept), middle(points, present))

    def bounded(self, points: Tensor, present: Tensor) -> Tensor:
        """Points, each coordinate clamped to the range without ``liars`` at each end."""
        return _within(points, present, torch.tensor(self.liars))

    def shares(self, points: Tensor, present: Tensor) -> Tensor:
        """One for those that are chosen."""
        count = present.sum()
        pairs = present[:, None] & present & ~torch.eye(len(points), dtype=torch.bool, device=points.device)
        squares = torch.where(pairs, torch.cdist(points, points, compute_mode=EXACT).square(), torch.inf)
        ordered = squares.sort(1).values
        near = torch.arange(len(points), device=points.device) < (count - self.liars - 2).clamp_min(1)
        score = torch.where(near & ordered.isfinite(), ordered, 0).sum(1)
        rank = torch.where(present, score, torch.inf).argsort(stable=True).argsort()
        return ((rank < (count - self.liars).clamp_min(1)) & present).to(points)


#: not by matrix products: differences of close points keep their digits
EXACT = "donot_use_mm_for_euclid_dist"
