"""What the exploration of the globals says of itself: overlap of what was drawn with the posterior, no certificate.

All of it is about what the points have seen: of a mode that no point was near, nothing here knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hierfl.inference.server.explored import Explored, normal_share
from hierfl.inference.state import State
from hierfl.pareto import k_hat

from .names import VERDICT

#: the largest k of a client's weights, and of the globals' with many points
MAX_K = 0.7
#: the largest sum of the relative variances of the clients' estimates
NOISE = 0.5
#: the sum above which clients draw more, and the variance of one above which they propose more at the end
NOISY, NOISY_CLIENT = 0.1, 1e-3
#: what two proposals' estimates may differ by beyond Monte-Carlo error: of a mean in sds, of the log of an sd
MAX_DIFFERENCE = 0.15
#: fewer effective draws than this of a proposal compare nothing; fewer of all say a mean to no tenth of its sd
MIN_COMPARED_DRAWS, MIN_DRAWS = 20.0, 100.0
#: the smallest share that points are worth of what those of a normal posterior are
NORMAL = 1 / 3


@dataclass(frozen=True)
class Verdict:
    """Numbers of the exploration.

    Attributes:
        points: how many were looked at; 0 where nothing was explored.
        k_hat: shape of the tail of the weights of :attr:`quiet` rounds.
        worth: the number of independent draws that all points are worth.
        noise: summed relative variance of the clients' estimates at a point of the posterior.
        clients: how many there are.
        heavy: of how many the weights of their own latents have a k above 0.7.
        centrings: of how many the estimates by two proposals of their latents differ: another centring, a wider one.
        proposals: the largest difference of means and sds of globals by the last points alone and by those from a
            wider proposal alone, over what is allowed; 0 where either has too few effective draws.
        inner: draws of a client's latents at a point.
        quiet: the number of the first round whose clients drew as often as in the last. Weights of earlier ones have
            tails of the clients' noise.
        share: what the points of those rounds are worth, over what they were of a normal posterior.
        missed: in how many rounds some client was missing, where the exploration was given up for that; else 0.
    """

    points: float = 0.0
    k_hat: float = 0.0
    worth: float = 0.0
    noise: float = 0.0
    clients: float = 0.0
    heavy: float = 0.0
    centrings: float = 0.0
    proposals: float = 0.0
    inner: float = 0.0
    quiet: float = 0.0
    share: float = 1.0
    missed: float = 0.0

    @classmethod
    def read(cls, shared: State) -> Verdict:
        """Reads the verdict from a fit's shared values."""
        return cls(*shared[VERDICT].tolist())

    @property
    def values(self) -> Tensor:
        """The verdict as one shared value, (12,)."""
        return torch.tensor([getattr(self, f.name) for f in fields(self)], dtype=torch.float64)

    def next_inner(self, noise: float, *, last: bool) -> float:
        """Draws of a client's latents at each point from now on: up to eight times as many, by what their noise is.

        Args:
            noise: summed relative variance of the clients' estimates at the points of the last round.
            last: whether clients draw their latents next, where only their own noise matters.
        """
        excess = noise / NOISY
        if last:
            excess = noise / max(1.0, self.clients) / NOISY_CLIENT
        if not excess > 1:
            return self.inner
        return self.inner * 2 ** math.ceil(math.log2(min(excess, 8.0)))

    @property
    def limit(self) -> float:
        """The largest k with which so many points give means and intervals (Vehtari et al., 2024)."""
        return min(MAX_K, 1 - 1 / math.log10(max(self.points, 11)))

    @property
    def warnings(self) -> list[str]:
        """What speaks against the draws, a line each."""
        lines = []
        if self.missed:
            lines.append(
                f"the exploration was given up, since in {self.missed:.0f} rounds some client was missing: "
                "draws are the guide's, and nothing is known of how near it is to the posterior"
            )
        if self.missed or not self.points:
            return lines
        if self.k_hat > self.limit:
            lines.append(
                f"the globals' weights have heavy tails: k-hat {self.k_hat:.2f}, above {self.limit:.2f}: "
                "their intervals are not to be relied on"
            )
        if self.share < NORMAL:
            lines.append(
                f"few of the points count, {self.share:.0%} of those that would of a normal posterior: "
                "a funnel, tails or modes beyond them would not be seen"
            )
        if self.worth < MIN_DRAWS:
            lines.append(
                f"the points are worth {self.worth:.0f} independent draws, fewer than {MIN_DRAWS:.0f}: too few to tell "
                "how near they are to the posterior"
            )
        if self.proposals > 1:
            lines.append(
                "points from two proposals, one wider, give different globals: "
                "the posterior has tails, a funnel or modes that the points do not cover"
            )
        if self.heavy:
            lines.append(
                f"{self.heavy:.0f} of {self.clients:.0f} clients have heavy-tailed weights of their own latents, "
                f"k-hat above {MAX_K}: their posteriors are far from normal"
            )
        if self.centrings:
            lines.append(
                f"of {self.centrings:.0f} of {self.clients:.0f} clients two proposals give different likelihoods: "
                "their latents are not covered"
            )
        if self.noise > NOISE:
            lines.append(
                f"the clients' estimates are noisy: their relative variances sum to {self.noise:.2f}, above {NOISE}, "
                f"with {self.inner:.0f} draws at a point"
            )
        return lines

    def lines(self) -> list[str]:
        """All that there is to say, a line each."""
        if not self.points:
            return ["overlap: nothing was explored, so nothing is known of how near the guide is to the posterior"]
        first = (
            f"overlap of points and posterior, no certificate: k-hat {self.k_hat:.2f} of at most {self.limit:.2f}, "
            f"{self.worth:,.0f} effective of {self.points:,.0f} points, "
            f"{self.heavy:.0f} of {self.clients:.0f} clients with heavy tails"
        )
        return [first, *self.warnings]


def verdict(
    explored: Explored, noise: float, inner: float, clients: tuple[float, float, float], before: Verdict
) -> Verdict:
    """The verdict on an exploration.

    Points of the second round are wider than the posterior on purpose, and at those far from it guides of clients are
    wrong: the noise at the first round's bounds that at the posterior too.

    Args:
        explored: with the heights of its last points.
        noise: summed relative variance of the clients' estimates at those.
        inner: draws of a client's latents at them.
        clients: how many; how many with heavy tails, and whose centrings differ.
        before: after the round before.
    """
    weights, last = explored.log_weights(0), explored.done - 1
    quiet = before.quiet if before.inner == inner else float(last)
    if explored.done == 2:
        noise = min(noise, before.noise)
    these = weights[int(quiet) * explored.each :].log_softmax(0)
    share = float((-(2 * these).logsumexp(0)).exp()) / len(these) / normal_share(explored.points.shape[-1])
    return Verdict(
        float(len(weights)), min(float(k_hat(these)), 1e6), explored.effective(0), noise, *clients,
        _difference(explored), inner, quiet, share,
    )  # fmt: skip


def _difference(explored: Explored) -> float:
    """The difference of estimates by the second round's points alone, which are wider, and by the last's, over what
    is allowed.
    """
    if explored.done < 2:
        return 0.0
    last = explored.done - 1 if explored.done > 2 else 0
    (mean, sd, worth), (other, wide, rest) = explored.alone(last), explored.alone(1)
    if min(worth, rest) < MIN_COMPARED_DRAWS:
        return 0.0
    allowed = MAX_DIFFERENCE + 4 * math.sqrt(1 / worth + 1 / rest)
    moved, widened = (mean - other).abs() / torch.maximum(sd, wide), (sd / wide).log().abs()
    return min(1e6, float(torch.maximum(moved, widened).max()) / allowed)
