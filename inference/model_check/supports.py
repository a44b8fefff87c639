"""Supports of sites, and constraints of parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, constraints


def unbounded(constraint: Any) -> bool:
    """Whether a constraint is none: all real numbers, or arrays of them."""
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    return isinstance(constraint, type(constraints.real))


def support_of(fn: Any) -> Any | None:
    """A distribution's support; None where it does not declare one."""
    try:
        support = fn.support
    except NotImplementedError:
        return None
    return None if constraints.is_dependent(support) else support


def outside(fn: Any, value: Tensor) -> bool:
    """Whether any of the values is outside a distribution's support."""
    support = support_of(fn)
    return support is not None and not bool(support.check(value).all())


def example_outside(fn: Any, value: Tensor) -> float:
    """The first number of a value that is outside the support, for a message."""
    support = support_of(fn)
    assert support is not None
    wrong = ~support.check(value)
    return float(value[wrong].flatten()[0])


def described(constraint: Any) -> str:
    """A constraint in words, for a message: "positive", "from 0 to 1", or the name of its class."""
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    low, high = (_number(getattr(constraint, name, None)) for name in ("lower_bound", "upper_bound"))
    if constraint.is_discrete and (low is not None or high is not None):
        reach = "" if low is None else f" from {low:g}"
        return f"whole numbers{reach}" + ("" if high is None else f" to {high:g}")
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    if low == 0:
        return "positive" if isinstance(constraint, type(constraints.positive)) else "not negative"
    if low is not None or high is not None:
        return f"above {low:g}" if low is not None else f"below {high:g}"
    return type(constraint).__name__.strip("_")


def _number(bound: Any) -> float | None:
    """A bound, where it is the same for all numbers."""
    values = torch.as_tensor(bound).flatten() if bound is not None else torch.zeros(0)
    return float(values[0]) if values.numel() and bool((values == values[0]).all()) else None


def kind_of(fn: Any) -> type:
    """The class of a distribution, of what is inside an Independent."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return type(fn)
