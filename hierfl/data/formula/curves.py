"""Splines whose columns add up to zero: they are curves of R's beside an intercept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ...errors import UserError

_CENTERED = re.compile(r"(?:bs|cr)\((?!.*\bcenter ?= ?False)")


def check_curves(effects: Iterable[Any], where: str = "") -> None:
    """Refuses a centered spline without an intercept.

    R's ``bs(x)`` loses a column for the intercept, formulae's its mean: beside an intercept both span the same curves,
    and alone they are different models.

    Args:
        effects: formulae's, of the fixed effects or of one random term.
        where: which term it is, as a message says it.

    Raises:
        UserError: for such a spline.
    """
    names = {effect.name: [part.kind for part in getattr(effect, "components", ())] for effect in effects}
    # The columns of all levels of a category add up to the intercept; an offset is no effect, and is numeric.
    if any(set(kinds) <= {"categoric"} for kinds in names.values()):
        return
    for curve in filter(_CENTERED.match, names):
        raise UserError(
            f"the columns of {curve!r} add up to zero, and are R's curves beside an intercept in the same term{where}: "
            "write 1 + there, or center=False for curves that hold their mean"
        )
