"""The functions that a formula may call, and what each of them takes. See :mod:`hierfl.data.formula.gate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: what an argument may be: an expression of columns, a number, a whole number, True or False, a level of a category,
#: which is text, a number, True or False, or a contrast
VALUE, NUMBER, INTEGER, FLAG, LEVEL, CONTRAST = "value", "number", "whole number", "True or False", "level", "contrast"
#: lists, [...] or c(...): of levels, of numbers
LEVELS, NUMBERS = "levels", "numbers"
#: of a spline: beyond five the library that evaluates it writes past its arrays
DEGREE = "degree"
#: what whole numbers may be
WHOLE_NUMBER_RANGES = {INTEGER: (1, 100), DEGREE: (0, 5)}


@dataclass(frozen=True)
class Arguments:
    """What a function takes.

    Attributes:
        places: arguments by position, {name: kind}; they may be named, too, where ``named``.
        others: arguments that have to be named.
        least: how many by position there must be.
        named: whether arguments may be named.
    """

    places: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict)
    least: int = 1
    named: bool = True


_BOUNDS = {"lower_bound": NUMBER, "upper_bound": NUMBER, "center": FLAG}
_TRIALS = Arguments({"successes": VALUE, "trials": VALUE}, least=2)
_SUCCESS = Arguments({"x": VALUE, "success": LEVEL})
_ONE_ARGUMENT = Arguments({"x": VALUE})

#: formulae's own transforms
TRANSFORMS: dict[str, Arguments] = {
    "center": _ONE_ARGUMENT, "scale": _ONE_ARGUMENT, "standardize": _ONE_ARGUMENT, "I": _ONE_ARGUMENT,
    "offset": _ONE_ARGUMENT,
    "poly": Arguments({"x": VALUE, "degree": INTEGER}, {"raw": FLAG}),
    "bs": Arguments({"x": VALUE, "df": INTEGER}, {"degree": DEGREE, "knots": NUMBERS, **_BOUNDS}),
    "cr": Arguments({"x": VALUE, "df": INTEGER}, {"knots": NUMBERS, **_BOUNDS}),
    "cc": Arguments({"x": VALUE, "period": NUMBER, "df": INTEGER}, {"lower_bound": NUMBER, "center": FLAG}, least=2),
    "tp": Arguments({"x": VALUE, "df": INTEGER}, {"center": FLAG}),
    "C": Arguments({"data": VALUE, "contrast": CONTRAST}, {"levels": LEVELS}),
    "S": Arguments({"data": VALUE, "omit": LEVEL}),
    "T": Arguments({"data": VALUE, "ref": LEVEL}),
    "B": _SUCCESS, "binary": _SUCCESS,
    "p": _TRIALS, "prop": _TRIALS, "proportion": _TRIALS,
}  # fmt: skip
#: contrasts of C(column, contrast), alone or with the level that is left out
CONTRASTS = ("Treatment", "Sum")
#: NumPy's functions, with their number of arguments; written as np.log(x) or log(x)
NUMPY: dict[str, int] = {
    **dict.fromkeys(
        ("abs", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "cbrt", "square", "sign",
         "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "floor", "ceil", "rint"), 1),
    **dict.fromkeys(("minimum", "maximum", "hypot", "arctan2"), 2), "where": 3, "clip": 3,
}  # fmt: skip
#: conditions by which these functions treat some rows otherwise than others, {0}, {1}, ... being their arguments
SELECTIONS: dict[str, tuple[str, ...]] = {
    "where": ("({0}) != 0",), "sign": ("({0}) < 0", "({0}) > 0"), "abs": ("({0}) < 0",),
    "minimum": ("({0}) < ({1})", "({0}) > ({1})"), "maximum": ("({0}) < ({1})", "({0}) > ({1})"),
    "clip": ("({0}) < ({1})", "({0}) > ({2})"), "arctan2": ("({0}) < 0", "({1}) < 0"),
}  # fmt: skip
CALLS: dict[str, Arguments] = {
    **{
        name: Arguments({f"x{k}": VALUE for k in range(count)}, least=count, named=False)
        for plain, count in NUMPY.items()
        for name in (plain, f"np.{plain}")
    },
    **TRANSFORMS,
}
