"""Errors for a response that is no number, with the formula that would be one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ..data.formula.hints import written
from ..errors import UserError

#: levels that a message shows
LEVELS_SHOWN = 6


def no_numbers(name: str, levels: Sequence[object], family: str) -> UserError:
    """The error for a response of text or categories where numbers belong.

    Args:
        name: of the response.
        levels: that it has.
        family: of the model.
    """
    two = "; of two levels, or of one against the others, the family is binomial" if len(levels) > 1 else ""
    return UserError(f"the response {name!r} holds no numbers but {_shown(levels)}; a {family} one needs them{two}")


def no_zeros_and_ones(name: str, levels: Sequence[object]) -> UserError | None:
    """The error for text or categories where 0 and 1 belong; None for what is no column with levels.

    Args:
        name: of the response.
        levels: that it has.
    """
    shown, of_column = _shown(levels), re.fullmatch(r"(?:[CST]\()?([^()]*)\)?", name)
    if not levels or of_column is None:
        return None
    last, column = levels[-1], written(of_column[1])
    if isinstance(last, str) and not re.search(r"['\"]|__", last):
        way = f"{column}[{last!r}] ~ or I({column} == {last!r}) ~"
    elif isinstance(last, str):
        return UserError(
            f"the response {name!r} holds {shown}: rename the levels, without quotes and '__', and write {column}['A']"
        )
    else:
        way = f"I({column} == {last}) ~"
    which = f"write {way} for the probability of {last!r}"
    return UserError(f"the response {name!r} holds {shown}, and a binomial one is 0 or 1: {which}")


def not_binary(name: str, y: np.ndarray, family: str) -> UserError:
    """The error for numbers that are not 0 and 1.

    Args:
        name: of the response.
        y: its numbers, (n,).
        family: of the model.
    """
    values, column = np.unique(y), written(name)
    words = f"a {family} response is 0 or 1, or p(successes, trials), and {name!r} is neither"
    if re.search(r"[()]", name) and not ((values >= 0) & (values <= 1)).all():
        return UserError(words)
    if ((values >= 0) & (values <= 1)).all():
        return UserError(f"{words}; of shares write p(successes, trials), with the counts, or p(rint({column} * n), n)")
    if len(values) == 2:
        low, high = (f"{value:g}" for value in values)
        way = f"I({column} == {high}) ~"
        return UserError(f"{words}: it holds {low} and {high}; write {way} for the probability of {high}")
    return UserError(f"{words}; for the probability of one value write I({column} == {values[-1]:g}) ~")


def _shown(levels: Sequence[object]) -> str:
    more = f", ... ({len(levels)} levels)" if len(levels) > LEVELS_SHOWN else ""
    return ", ".join(map(repr, levels[:LEVELS_SHOWN])) + more if levels else "text"
