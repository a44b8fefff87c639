"""The responses that a mixed model can have: what a table must hold for each, and where a fit begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...errors import UserError
from .response_words import not_binary, text_response

Family = Literal[
    "gaussian", "binomial", "poisson", "negative-binomial", "zero-inflated-poisson", "beta-binomial", "gamma",
    "ordinal", "exponential", "weibull",
]  # fmt: skip
#: what a table calls a level
Label = str | int | float
#: times until something happens
SURVIVAL = ("exponential", "weibull")
COUNTS = ("poisson", "negative-binomial", "zero-inflated-poisson")
#: successes among trials
PROPORTIONS = ("binomial", "beta-binomial")
#: the most levels of an ordinal response
MOST_LEVELS = 50


@dataclass(frozen=True)
class Response:
    """A table's response.

    Attributes:
        y: numbers (n,): successes where there are trials, levels from 1.
        trials: (n,); None where there are none.
        labels: of an ordinal response, what the table calls its levels, in their order.
    """

    y: np.ndarray
    trials: np.ndarray | None = None
    labels: tuple[Label, ...] = ()

    @property
    def levels(self) -> int:
        """Of an ordinal response, else 0."""
        return len(self.labels)


def read_response(response: Any, family: Family, order: Sequence[Any] | None) -> Response:
    """The response as numbers that the family can have.

    Args:
        response: formulae's.
        family: of the model.
        order: its levels, in an order that somebody has said; None where nobody has.

    Raises:
        UserError: for one that the family cannot have.
    """
    name, kind, cells = response.name, response.kind, np.asarray(response.design_matrix)
    if family == "ordinal":
        return _ordinal(name, kind, cells, order)
    if kind == "proportion":
        return _proportion(name, cells, family)
    y = cells[:, 0] if cells.ndim == 2 and cells.shape[1] == 1 else cells
    if kind == "categoric":
        raise text_response(name, response.levels or (), family)
    if y.ndim != 1 or y.dtype.kind not in "biuf" or kind != "numeric":
        raise UserError(f"the response {name!r} holds no numbers; a {family} one needs them")
    y = y.astype(float)
    if not np.isfinite(y).all():
        raise UserError(f"the response {name!r} is not finite everywhere")
    if family == "beta-binomial":
        raise UserError(f"a beta-binomial response is p(successes, trials), and {name!r} has no trials")
    if family == "binomial" and not np.isin(y, (0, 1)).all():
        raise not_binary(name, y)
    if family in COUNTS and not ((y >= 0) & (y == np.floor(y))).all():
        raise _impossible(name, y, (y >= 0) & (y == np.floor(y)), f"a {family} response is a whole number from 0")
    if family in ("gamma", *SURVIVAL) and not (y > 0).all():
        raise _impossible(name, y, y > 0, f"a response of the family {family} is above zero")
    return Response(y)


def _impossible(name: str, y: np.ndarray, fits: np.ndarray, rule: str) -> UserError:
    """The error for a response with numbers that the family does not have."""
    return UserError(f"{rule}, and {name!r} is not in {int((~fits).sum())} of {len(y)} rows, such as {y[~fits][0]:g}")


def _proportion(name: str, cells: np.ndarray, family: Family) -> Response:
    """Successes and trials."""
    if family not in PROPORTIONS:
        raise UserError(f"{name} is successes among trials, which a {family} response is not")
    y, trials = cells.astype(float).T
    whole = np.isfinite(cells.astype(float)).all() and (cells == np.floor(cells)).all()
    if not whole or (y < 0).any() or (y > trials).any() or (trials < 1).any():
        raise UserError(f"{name} is whole numbers, of at least one trial, and no more successes than trials")
    return Response(y, trials)


def _ordinal(name: str, kind: str, cells: np.ndarray, order: Sequence[Any] | None) -> Response:
    """Levels from 1."""
    if kind == "categoric":
        if order is None or len(order) != cells.shape[1]:
            raise UserError(f"the levels of {name!r} have no order: number them, or make it an ordered category")
        return Response(cells.argmax(1) + 1.0, labels=tuple(map(label_of, order)))
    values = cells[:, 0] if cells.ndim == 2 and cells.shape[1] == 1 else cells
    if values.ndim != 1 or kind != "numeric" or not (values == np.floor(values)).all():
        raise UserError(f"an ordinal response is whole numbers or an ordered category, and {name!r} is neither")
    found, place = np.unique(values, return_inverse=True)
    return Response(place + 1.0, labels=tuple(map(label_of, found.tolist())))


def label_of(level: Any) -> Label:
    """A level as the table has it, if it is text or a number; a whole number without decimals."""
    if isinstance(level, str) or (isinstance(level, int | float) and not isinstance(level, bool)):
        return int(level) if isinstance(level, float) and level.is_integer() else level
    return str(level)


def check_levels(name: str, counts: np.ndarray, labels: Sequence[Label] = ()) -> None:
    """Refuses levels from which no thresholds can be learned.

    Args:
        name: of the response.
        counts: rows of each level.
        labels: what the table calls them.

    Raises:
        UserError: for fewer than three, too many, or one without rows.
    """
    if not 3 <= len(counts) <= MOST_LEVELS:
        raise UserError(
            f"an ordinal response has 3 to {MOST_LEVELS} levels, and {name!r} has {len(counts)}"
            + ("; of two, binomial" if len(counts) == 2 else "")
        )
    if not counts.all():
        place = int(np.argmin(counts > 0))
        label = labels[place] if labels else place + 1
        raise UserError(f"level {label!r} of the response {name!r} has no rows: leave it out of its levels")


def centre_parts(y: np.ndarray, rows: Mapping[str, np.ndarray], family: Family) -> np.ndarray:
    """Two numbers of each row, (n, 2), the ratio of whose sums is about the response's mean.

    Args:
        y: the response.
        rows: what rows have beside it, by the names of :class:`.design.Columns`.
        family: of the response.
    """
    one, offset = np.ones_like(y), rows.get("offset", np.zeros_like(y))
    if family == "gaussian":
        return np.stack([y - offset, one], 1)
    if family == "ordinal":
        return np.stack([one, one], 1)
    if family in PROPORTIONS:
        return np.stack([y, rows.get("trials", one)], 1)
    if family in SURVIVAL:
        return np.stack([rows.get("event", one), y * np.exp(offset)], 1)
    return np.stack([y, np.exp(offset)], 1)


def response_centre(total: float, of: float, family: Family) -> float:
    """The linear predictor of a mean (inside, where all successes or all zeros are alike).

    Args:
        total, of: the sums of :func:`centre_parts`.
        family: of the response.

    Raises:
        UserError: for times without an event.
    """
    if family == "gaussian":
        return total / of
    if family == "ordinal":
        return 0.0
    if family in SURVIVAL and not total:
        raise UserError("no row has an event: nothing can be learned of when they happen")
    if family in PROPORTIONS:
        mean = min(max(total / of, 1 / of), 1 - 1 / of)
        return float(np.log(mean) - np.log1p(-mean))
    return float(np.log((total if family == "gamma" else max(total, 1.0)) / of))
