"""Robust rules by name."""

from __future__ import annotations

import math

from hierfl.errors import UserError

from .rules import CentredClip, Krum, Median, RobustRule, Trimmed


def parse_rule(spec: str) -> RobustRule | None:
    """What ``trimmed:SHARE``, ``median``, ``centred-clip:RADIUS`` or ``krum:LIARS`` names; None for "none".

    Raises:
        UserError: for anything else.
    """
    kind, _, number = spec.partition(":")
    if spec == "none":
        return None
    if spec == "median":
        return Median()
    try:
        if kind == "trimmed" and 0 < float(number) < 0.5:
            return Trimmed(float(number))
        if kind == "centred-clip" and 0 < float(number) < math.inf:
            return CentredClip(float(number))
        if kind == "krum" and int(number) >= 1:
            return Krum(int(number))
    except ValueError:
        pass  # no number: said below
    raise UserError(
        "robust is none, trimmed:SHARE with a share in (0, 0.5), median, centred-clip:RADIUS with a radius above 0, or "
        f"krum:LIARS with a whole number from 1, as in trimmed:0.2; not {spec!r}"
    )
