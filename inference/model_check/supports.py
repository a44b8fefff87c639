"""Supports of sites, and constraints of parameters."""

from __future__ import annotations

from typing import Any

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
    """A constraint in words for a message: "greater than 0.0"."""
    text = repr(constraint)
    return text if len(text) < 60 else type(constraint).__name__


def kind_of(fn: Any) -> type:
    """The class of a distribution, of what is inside an Independent."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return type(fn)
