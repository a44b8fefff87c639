"""The name of a split with its parameter and options, as it is written on the command line."""

from __future__ import annotations

from ...errors import UserError, unknown
from .registry import SPLITS


def parse(name: str) -> tuple[str, float, dict[str, float]]:
    """Reads "kind:parameter,option,option=number,..." .

    Raises:
        UserError: for an unknown kind or option, a parameter missing, superfluous or out of range.
    """
    head, *given = name.split(",")
    kind, colon, text = head.partition(":")
    if kind not in SPLITS:
        raise unknown("split", kind, (f"{k}:{s.parameter}" if s.parameter else k for k, s in SPLITS.items()))
    options: dict[str, float] = {}
    for option in given:
        key, equals, number = option.partition("=")
        flags = ("redraw", *SPLITS[kind].flags)
        if key not in (*flags, "keep", *SPLITS[kind].options):
            raise unknown("split option", option, [*flags, "keep=SHARE", *(f"{k}=N" for k in SPLITS[kind].options)])
        if key in options:
            raise UserError(f"split {name} says {key} twice")
        options[key] = 1.0 if key in flags else _option(name, key, number)
        if key in flags and equals:
            raise UserError(f"{key} is an option without a number; got {name}")
    wanted = SPLITS[kind].parameter
    if wanted is None:
        if colon:
            raise UserError(f"split {kind} takes no parameter")
        return kind, 0.0, options
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    whole = SPLITS[kind].whole
    if not (0 < value < float("inf")) or (whole and value != int(value)):
        number = "a whole number above zero" if whole else "a number above zero"
        got = repr(text) if text else "nothing"
        raise UserError(f"split {kind} needs {number}, as in {kind}:{5 if whole else 0.3}; got {got}")
    return kind, value, options


def _option(split: str, key: str, text: str) -> float:
    """The number of a split's option."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if key == "keep" and not 0 < value <= 1:
        raise UserError(f"keep is a share of the data above 0 and at most 1, as in keep=0.25; got {split}")
    if key != "keep" and not (value >= 1 and value == int(value)):
        raise UserError(f"{key} is a whole number above zero, as in {key}=100; got {split}")
    return value
