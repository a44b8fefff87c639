"""Responses that a formula transforms, as in ``np.log(days) ~ ...``: what a fit says is in their units."""

from __future__ import annotations

import re

#: a call of one of NumPy's functions or of a formula's transforms, of the whole response
CALL = re.compile(r"[A-Za-z_][\w.]*\(.*\)", re.DOTALL)
#: families of which the mean is the linear predictor
IDENTITY = ("gaussian", "student-t")


def transformed_response(formula: str, family: str) -> str:
    """The response as the formula has it, such as ``np.log(days)``; empty where it is a column.

    Args:
        formula: with a response.
        family: of it; of others than gaussian and student-t it is empty.
    """
    left = formula.split("~", 1)[0].strip()
    return left if family in IDENTITY and CALL.fullmatch(left) else ""
