"""Levels in an order: cumulative logits (McCullagh, JRSS B 1980).

    P(y <= k | eta) = logistic(c_k - eta),    0 = c_1 < c_2 < ... < c_(K-1),    c_k - c_(k-1) = exp(g_k)

The thresholds that are reported are c_k minus the intercept, which is no coefficient of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..data.formula.units import INTERCEPT
from ..errors import UserError
from .base import Response, Rows
from .reading import Cells, Label, Observed

#: the most levels of an ordinal response
MOST_LEVELS = 50


class CumulativeLogit(TorchDistribution):
    """Levels 1, ..., K.

    Args:
        eta: (..., S, n).
        gaps: logarithms of the thresholds' distances, (..., K - 2), broadcast beside eta.
        codes: what the data have for the levels' numbers; empty for 1, ..., K.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.positive

    def __init__(self, eta: Tensor, gaps: Tensor, codes: tuple[float, ...] = ()) -> None:
        self.eta, self.gaps, self.codes = eta, gaps, codes
        super().__init__(eta.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean of the level's number."""
        return 1 + sum(((self.eta - c).sigmoid() for c in thresholds(self.gaps)), torch.zeros_like(self.eta))

    @property
    def variance(self) -> Tensor:
        """The variance of the level's number."""
        above = [(self.eta - c).sigmoid() for c in thresholds(self.gaps)]  # P(y > k)
        square = sum(((2 * k + 3) * p for k, p in enumerate(above)), torch.ones_like(self.eta))
        return (square - self.mean.square()).clamp_min(0)

    @property
    def reported(self) -> Any:
        """Mean and variance in the data's numbers."""
        if self.codes in ((), tuple(range(1, len(self.codes) + 1))):
            return self
        p, codes = self.probabilities, self.eta.new_tensor(self.codes)
        return SimpleNamespace(mean=p @ codes, variance=(p @ codes.square() - (p @ codes).square()).clamp_min(0))

    @property
    def probabilities(self) -> Tensor:
        """The probabilities of each level, (..., S, n, K)."""
        edges = [-torch.inf, *thresholds(self.gaps), torch.inf]
        levels = []
        for low, high in pairwise(torch.broadcast_to(torch.as_tensor(c).to(self.eta), self.eta.shape) for c in edges):
            # A difference of what is small, on either side of zero.
            a, b, left = low - self.eta, high - self.eta, low + high > 2 * self.eta
            levels.append(torch.where(left, (-a).sigmoid() - (-b).sigmoid(), b.sigmoid() - a.sigmoid()))
        return torch.stack(levels, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log(F(a) - F(b)) = log F(a) + log F(-b) + log(1 - exp(b - a)), a and b the level's edges minus eta."""
        above, below, top, bottom = edges(value, self.gaps)
        log_p = torch.where(top, 0.0, logsigmoid(above - self.eta)) + torch.where(
            bottom, 0.0, logsigmoid(self.eta - below)
        )
        inside = ~(top | bottom)
        return log_p + torch.where(inside, torch.log(-torch.expm1(torch.where(inside, below - above, -1.0))), 0.0)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws the level in whose interval a logistic variable lies."""
        u = torch.rand(sample_shape + self.batch_shape, dtype=self.eta.dtype, device=self.eta.device)
        latent = self.eta + u.logit()
        return 1 + sum(((latent > c).to(latent) for c in thresholds(self.gaps)), torch.zeros_like(latent))


def thresholds(gaps: Tensor) -> list[Tensor]:
    """c_1 = 0, c_2, ...: (...) each, of logarithms (..., K - 2) of their distances."""
    cuts = [torch.zeros_like(gaps[..., 0])]
    for k in range(gaps.shape[-1]):
        cuts.append(cuts[-1] + gaps[..., k].exp())
    return cuts


def edges(y: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Upper and lower thresholds of levels y (where they have one), and whether they are the highest, the lowest."""
    c = thresholds(gaps)
    above = sum((torch.where(y == k + 1, threshold, 0.0) for k, threshold in enumerate(c)), torch.zeros_like(y))
    below = sum((torch.where(y == k + 2, threshold, 0.0) for k, threshold in enumerate(c)), torch.zeros_like(y))
    return above, below, y > len(c), y <= 1


def label_of(level: Any) -> Label:
    """A level as the table has it, if it is text or a number; a whole number without decimals."""
    if isinstance(level, str) or (isinstance(level, int | float) and not isinstance(level, bool)):
        return int(level) if isinstance(level, float) and level.is_integer() else level
    return str(level)


@dataclass(frozen=True)
class OrdinalResponse(Response):
    """y ~ CumulativeLogit(eta, g).

    Attributes:
        levels: K.
        labels: what the table calls them, in their order: text, or the numbers that it has; empty for 1, ..., K.
    """

    levels: int
    labels: tuple[Any, ...] = ()

    name = "ordinal"
    about = (
        "P(y <= k) = logistic(c_k - eta): thresholds, instead of the intercept; whole numbers, or an ordered "
        "category, whose names stay"
    )
    ratio = "odds ratio"
    order = 80
    ordered = True

    @classmethod
    def read(cls, cells: Cells) -> Observed:
        """See :class:`.base.Response`: levels from 1."""
        name, order = cells.name, cells.order
        if cells.kind == "categoric":
            if order is None or len(order) != cells.values.shape[1]:
                raise UserError(f"the levels of {name!r} have no order: number them, or make it an ordered category")
            return Observed(cells.values.argmax(1) + 1.0, labels=tuple(map(label_of, order)))
        values = cells.column
        if values.ndim != 1 or cells.kind != "numeric" or not (values == np.floor(values)).all():
            raise UserError(f"an ordinal response is whole numbers or an ordered category, and {name!r} is neither")
        levels, position = np.unique(values, return_inverse=True)
        return Observed(position + 1.0, labels=tuple(map(label_of, levels.tolist())))

    @classmethod
    def check_levels(cls, name: str, counts: np.ndarray, labels: Sequence[Label] = ()) -> None:
        """Refuses levels from which no thresholds can be learned: fewer than three, too many, or one without rows."""
        if not 3 <= len(counts) <= MOST_LEVELS:
            raise UserError(
                f"an ordinal response has 3 to {MOST_LEVELS} levels, and {name!r} has {len(counts)}"
                + ("; of two, binomial" if len(counts) == 2 else "")
            )
        if not counts.all():
            position = int(np.argmin(counts > 0))
            label = labels[position] if labels else position + 1
            raise UserError(f"level {label!r} of the response {name!r} has no rows: leave it out of its levels")

    @classmethod
    def check_fixed(cls, intercept: bool) -> None:
        """See :class:`.base.Response`."""
        if not intercept:
            raise UserError("an ordinal response has thresholds, which are an intercept: write y ~ 1 + ...")

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See :class:`.base.Response`."""
        return np.stack([np.ones_like(y), np.ones_like(y)], 1)

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`: thresholds are around it."""
        return 0.0

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        return cls(design.levels, design.labels)

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """g: levels of equal frequency."""
        at = (torch.arange(1, self.levels).double() / self.levels).logit()
        return {"gaps": at.diff().log()}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return CumulativeLogit(eta, values["gaps"], self.codes)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`; F(a) + F(b) - 1, and f(a) + f(b)."""
        above, below, top, bottom = edges(y, values["gaps"])
        a, b = above - eta, below - eta
        upper, lower = torch.where(top, 1.0, a.sigmoid()), torch.where(bottom, 0.0, b.sigmoid())
        bend = torch.where(top, 0.0, a.sigmoid() * (-a).sigmoid()) + torch.where(
            bottom, 0.0, b.sigmoid() * (-b).sigmoid()
        )
        return upper + lower - 1, bend

    def coefficients(
        self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]
    ) -> tuple[Sequence[str], Tensor]:
        """All but the intercept."""
        kept = [k for k, name in enumerate(names) if name not in INTERCEPT]
        return [names[k] for k in kept], beta[:, kept]

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The thresholds."""
        (position,) = [k for k, name in enumerate(names) if name in INTERCEPT]
        cuts = thresholds(values["gaps"])
        names = self.level_names
        return {f"{names[k]} | {names[k + 1]}": c - beta[:, position] for k, c in enumerate(cuts)}

    @property
    def level_names(self) -> tuple[Any, ...]:
        """See :class:`.base.Response`."""
        return self.labels or tuple(range(1, self.levels + 1))

    @property
    def codes(self) -> tuple[float, ...]:
        """A number for each level: the table's own, or of text 1, ..., K."""
        numbers = all(isinstance(label, int | float) for label in self.level_names)
        return tuple(map(float, self.level_names if numbers else range(1, self.levels + 1)))

    def mean_of(self, fn: Any) -> Tensor:
        """See :class:`.base.Response`; of levels that are text their number's, from 1."""
        mean: Tensor = fn.reported.mean
        return mean

    def level_probabilities(self, fn: Any) -> Tensor:
        """See :class:`.base.Response`."""
        probabilities: Tensor = fn.probabilities
        return probabilities

    def in_table_numbers(self, y: Tensor) -> Tensor:
        """See :class:`.base.Response`."""
        return y.new_tensor(self.codes)[y.long() - 1]
