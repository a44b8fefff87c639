"""A method's fit with noise: its plan, or why there is none, in one line."""

from __future__ import annotations

from typing import Any

from hierfl.errors import UserError

from ..noise.plan import Plan
from ..noise.privacy import Privacy
from ..options import Options
from .base import Method
from .capabilities import AddsNoise


def privacy_of(method: Method, options: Options) -> Privacy | None:
    """What a fit's clients need for noise; None for a fit without.

    Raises:
        UserError: for a method whose messages have no noise, options that leave without any, or a budget that cannot
            be met.
    """
    if options.dp == "none":
        return None
    name = method.name or type(method).__name__
    if not isinstance(method, AddsNoise):
        raise UserError(f"{name}: its messages cannot have noise (dp={options.dp!r}): another method, or dp='none'")
    if options.calibrate != "none" or options.conformal:
        raise UserError(
            "calibrate and conformal ask for sums on validation data, which have no share of epsilon: no dp"
        )
    plan = Plan.for_epsilon(options.dp, options.epsilon, options.delta, tuple(method.mechanisms(options)))
    return Privacy(plan, options.clip, options.patient_rows, options.seed)


def plan_of(method: Any, options: Options) -> Plan | None:
    """The noise plan of a fit; None for a fit without. See :func:`privacy_of`."""
    privacy = privacy_of(method, options)
    return privacy.plan if privacy else None
