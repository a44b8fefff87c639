"""The server's side: a temperature and a threshold from rounds of sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hierfl.metrics.calibration import conformal_rank, edges
from hierfl.metrics.pooling import MetricSums

from .question import Question

#: asks all clients, and adds up
AskSums = Callable[[Question], Mapping[str, MetricSums]]
#: weight a of a prior on 1 / T: -log p = a (1/T - 1 - log 1/T), whose least is at T = 1. Near it log T has the standard
#: deviation 1 / sqrt(a), one half. It keeps T finite and positive where all validation labels are the likeliest, and
#: from going far with a hundred of them; and it is convex as the likelihood is
PRIOR = 4.0
#: log T is found where the next step is below the first; at most so many rounds of sums, no step above the last
LOG_T_TOLERANCE, MOST_ROUNDS, LONGEST_STEP = 1e-6, 60, 2.0
#: how often a cell of scores is divided: to a millionth
DIVISIONS = 2


@dataclass
class PowerSearch:
    """Newton's steps in log(1 / T), kept between points where the slope is known to have either sign.

    The objective is convex in 1 / T (a log-sum-exp, and the prior): there is one optimum, and the slope's sign says on
    which side it is.

    Attributes:
        power: 1 / T so far.
        done: whether the last step was short enough: Newton's next is of the order of its square.
    """

    power: float = 1.0
    done: bool = False
    _below: float = field(default=0.0, repr=False)
    _above: float = field(default=math.inf, repr=False)

    def take(self, slope: float, curvature: float) -> None:
        """Goes on from the sums over all clients at :attr:`power`."""
        if self.done:
            return
        slope += PRIOR * (1 - 1 / self.power)
        curvature += PRIOR / self.power**2
        if slope < 0:
            self._below = self.power
        else:
            self._above = self.power
        step = -slope / (curvature * self.power)
        new = self.power * math.exp(max(-LONGEST_STEP, min(LONGEST_STEP, step)))
        if abs(step) > LOG_T_TOLERANCE and not self._below < new < self._above:
            new = math.sqrt(self._below * self._above)  # both are known: a step is cut off before it is so long
        self.power, self.done = new, abs(step) <= LOG_T_TOLERANCE


def find_powers(ask: AskSums, draws: tuple[int, ...]) -> tuple[tuple[float, ...], int]:
    """1 / T of each kind of prediction, and of how many validation examples.

    It is the maximum of the likelihood of all clients' validation labels together (every example counts once) times
    the prior: each T by itself, all in the same rounds of sums.

    Args:
        ask: for the sums.
        draws: of each kind.
    """
    searches = [PowerSearch() for _ in draws]
    n = 0
    for _ in range(MOST_ROUNDS):
        sums = ask(Question("temperature", draws, tuple(search.power for search in searches)))
        for kind, search in enumerate(searches):
            examples, _, slope, curvature = map(float, sums[str(kind)]["terms"])
            search.take(slope, curvature)
            n = max(n, int(examples))
        if all(search.done for search in searches):
            break
    return tuple(search.power for search in searches), n


def find_threshold(ask: AskSums, draws: int, alpha: float) -> tuple[float, int]:
    """The threshold of the scores, and of how many validation examples.

    It is the :func:`~hierfl.metrics.calibration.conformal_rank`-th smallest of all clients' scores, rounded up by at
    most a millionth: counts in cells say in which it is, and that cell is divided again. 1, where every label stays,
    if there are too few.

    Args:
        ask: for the sums.
        draws: of the predictions.
        alpha: how often a set may miss.
    """
    low, high, n = 0.0, 1.0, 0
    for _ in range(DIVISIONS):
        counts = np.asarray(ask(Question("scores", (draws,), (1.0,), low, high))["scores"]["counts"])
        n = int(counts.sum())
        reached = np.cumsum(counts)[:-1] >= conformal_rank(n, alpha)  # at each cell's end
        if not reached.any():
            return 1.0, n
        ends, first = edges(low, high), int(reached.argmax())
        if first == 0:
            return float(ends[0]), n
        low, high = float(ends[first - 1]), float(ends[first])
    return high, n
