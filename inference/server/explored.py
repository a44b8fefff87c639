"""A density of a few numbers, explored by adaptive importance sampling: many points a round.

Points are drawn by a rule that spreads them evenly (Owen-scrambled Sobol numbers) from a Student distribution around
the mode, in the metric of the curvature there; after each round the next ones are drawn around the mean and covariance
of all points so far, which are weighted by the density over the mixture of everything they were drawn from (Cornuet et
al., 2012). Of many clients, coefficients have lighter tails than standard deviations have; of few clients they do not.
So in half of a round's points coefficients have a normal's tails, and in the other half a Student's as all others have:
no weight is more than twice that of points with Student's tails alone (Hesterberg, 1995).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from scipy import stats
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..state import State

#: the height of a point that has none
NO_HEIGHT = -1e300
#: degrees of freedom of what points are drawn from, and how much wider than the density it is
DF, ROOT_FACTOR = 5.0, 1.15


@dataclass(frozen=True)
class Explored:
    """Points so far.

    Attributes:
        points: (P, k), rows of zeros where nothing was looked at yet.
        heights: log density there but for a constant, (P,), NOWHERE where nothing was looked at.
        centres, roots: of what each round's points were drawn from, (R, k) and (R, k, k).
        rounds: how many of those there are, ().
    """

    points: Tensor
    heights: Tensor
    centres: Tensor
    roots: Tensor
    rounds: Tensor

    @classmethod
    def begin(cls, k: int, size: int, rounds: int, like: Tensor) -> Explored:
        """Room for so many points in each of so many rounds."""
        return cls(
            like.new_zeros(size * rounds, k), like.new_full((size * rounds,), NO_HEIGHT), like.new_zeros(rounds, k),
            like.new_zeros(rounds, k, k), like.new_zeros(()),
        )  # fmt: skip

    @classmethod
    def read(cls, state: State) -> Explored:
        """What :meth:`state` has written."""
        return cls(**{f.name: state[f"explored.{f.name}"] for f in fields(cls)})

    def state(self) -> State:
        """All of it by name."""
        return {f"explored.{f.name}": getattr(self, f.name) for f in fields(self)}

    @property
    def each(self) -> int:
        """Points of a round."""
        return len(self.points) // len(self.centres)

    @property
    def done(self) -> int:
        """Rounds so far."""
        return int(self.rounds)

    def drawn(self, centre: Tensor, root: Tensor, num_normal: int, seed: int) -> Explored:
        """Adds the next round's points: centre (k,), root (k, k) a factor of the covariance, heavy numbers first.

        Args:
            centre, root: of the density.
            num_normal: how many of the last numbers have a normal's tails in the first half of the points.
            seed: of the points.
        """
        n, k = self.each, len(centre)
        sobol = SobolEngine(k + 1, scramble=True, seed=seed % 2**31)
        u = sobol.draw(n, dtype=torch.float64).to(centre).clamp(1e-12, 1 - 1e-12)
        z = torch.special.ndtri(u[:, :k])
        longer = (DF / chi_squared(u[:, k])).sqrt()[:, None].expand(-1, k).clone()
        longer[: n // 2, k - num_normal :] = 1.0
        z = z * longer
        first, number = self.done * n, self.done
        points, centres, roots = self.points.clone(), self.centres.clone(), self.roots.clone()
        points[first : first + n] = centre + z @ (ROOT_FACTOR * root).T
        centres[number], roots[number] = centre, ROOT_FACTOR * root
        return Explored(points, self.heights, centres, roots, self.rounds + 1)

    @property
    def asked(self) -> Tensor:
        """The points of the last round, (M, k)."""
        return self.points[(self.done - 1) * self.each : self.done * self.each]

    def with_heights(self, heights: Tensor) -> Explored:
        """Adds the heights at :attr:`asked`, (M,)."""
        all_heights = self.heights.clone()
        all_heights[(self.done - 1) * self.each : self.done * self.each] = torch.where(
            heights.isfinite(), heights, NO_HEIGHT
        )
        return Explored(self.points, all_heights, self.centres, self.roots, self.rounds)

    def log_weights(self, num_normal: int) -> Tensor:
        """The normalised log weights of the points so far, (done M,)."""
        some = self.points[: self.done * self.each]
        log_q = torch.stack(
            [log_proposal(some, self.centres[r], self.roots[r], num_normal) for r in range(self.done)]
        ).logsumexp(0)
        return (self.heights[: len(some)] - log_q).log_softmax(0)

    def effective(self, num_normal: int) -> float:
        """The number of independent draws that the weighted points are worth."""
        return float((-(2 * self.log_weights(num_normal)).logsumexp(0)).exp())

    def alone(self, number: int) -> tuple[Tensor, Tensor, float]:
        """Mean and standard deviation (k,) by one round's points alone, and their effective number; tails all alike."""
        some = slice(number * self.each, (number + 1) * self.each)
        points = self.points[some]
        w = (self.heights[some] - log_student(points, self.centres[number], self.roots[number], 0)).softmax(0)
        mean = w @ points
        sd = (w @ (points - mean).square()).clamp_min(1e-300).sqrt()
        return mean, sd, float(1 / w.square().sum())

    def moments(self, num_normal: int) -> tuple[Tensor, Tensor]:
        """Mean (k,), and a factor (k, k) of the covariance of the weighted points."""
        w, some = self.log_weights(num_normal).exp(), self.points[: self.done * self.each]
        mean = w @ some
        gap = some - mean
        covariance = (w[:, None] * gap).T @ gap
        few = covariance.diagonal().clamp_min(1e-300).sqrt()
        unit = covariance / (few[:, None] * few) + 1e-9 * torch.eye(len(mean)).to(mean)
        return mean, few[:, None] * torch.linalg.cholesky_ex(unit).L


def log_proposal(points: Tensor, centre: Tensor, root: Tensor, num_normal: int) -> Tensor:
    """The log density (n,) at points (n, k) of what :meth:`Explored.drawn` draws from, ``root`` lower triangular."""
    log_density = log_student(points, centre, root, 0)
    if num_normal:
        log_density = torch.logaddexp(log_density, log_student(points, centre, root, num_normal)) - math.log(2)
    return log_density


def log_student(points: Tensor, centre: Tensor, root: Tensor, num_normal: int) -> Tensor:
    """The log density of a Student distribution whose last ``light`` numbers have a normal's tails, (n,); others as
    of log_proposal.
    """
    z = torch.linalg.solve_triangular(root, (points - centre).T, upper=False).T
    heavy = points.shape[-1] - num_normal
    log_density = (
        -root.diagonal().log().sum() - 0.5 * z[:, heavy:].square().sum(-1) - 0.5 * num_normal * math.log(2 * math.pi)
    )
    if heavy:
        norm = math.lgamma((DF + heavy) / 2) - math.lgamma(DF / 2) - 0.5 * heavy * math.log(DF * math.pi)
        log_density = log_density + norm - 0.5 * (DF + heavy) * torch.log1p(z[:, :heavy].square().sum(-1) / DF)
    return log_density


def normal_share(numbers: int) -> float:
    """What a point is worth in independent draws of a normal density of so many numbers, all tails alike.

    It is 1 / E[w], w the density over that of the points, which are wider by :data:`ROOT_FACTOR`: by quantiles of
    the squared radius.
    """
    radius = torch.from_numpy(stats.chi2.ppf((torch.arange(2000).double() + 0.5).numpy() / 2000, numbers))
    norm = math.lgamma((DF + numbers) / 2) - math.lgamma(DF / 2) - 0.5 * numbers * math.log(DF * math.pi)
    log_q = norm - numbers * math.log(ROOT_FACTOR) - 0.5 * (DF + numbers) * torch.log1p(radius / (DF * ROOT_FACTOR**2))
    return float(1 / (-0.5 * radius - 0.5 * numbers * math.log(2 * math.pi) - log_q).exp().mean())


def chi_squared(u: Tensor) -> Tensor:
    """The quantiles at u of a chi-squared with DF degrees of freedom."""
    return torch.from_numpy(stats.chi2.ppf(u.cpu().numpy(), DF)).to(u)


def systematic(log_weights: Tensor, number: int, seed: int) -> Tensor:
    """So many places (number,), each as often as its weight says but for less than one, in a random order."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    start = torch.rand((), generator=generator, dtype=torch.float64)
    at = (torch.arange(number, dtype=torch.float64) + start) / number
    ends = log_weights.exp().cumsum(0).cpu()
    places = torch.searchsorted(ends / ends[-1], at).clamp(max=len(log_weights) - 1)
    return places[torch.randperm(number, generator=generator)].to(log_weights.device)
