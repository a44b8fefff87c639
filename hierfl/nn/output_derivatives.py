"""A log likelihood as a function of a network's output: moved, and its first and second derivatives.

Each likelihood has its natural link (softmax; a mean; a logit; a log rate): there the expected second derivative is the
observed one, and the generalised Gauss-Newton matrix of a linear head is its Hessian.
"""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import Bernoulli, Normal, Poisson
from torch import Tensor

from ..errors import UserError
from .likelihoods import Softmax


def moved_output(fn: Any, by: Tensor) -> Any:
    """The same likelihood where the output is another.

    Args:
        fn: the response's distribution, batch shape (S, n).
        by: what is added to its output, (K, S, n, outputs).

    Returns:
        One of batch shape (K, S, n).

    Raises:
        UserError: for a likelihood that is not known.
    """
    if isinstance(fn, Softmax):
        return Softmax(fn.logits + by, validate_args=False)
    by = by.squeeze(-1)
    if isinstance(fn, Normal):
        return Normal(fn.loc + by, fn.scale, validate_args=False)
    if isinstance(fn, Bernoulli):
        return Bernoulli(logits=fn.logits + by, validate_args=False)
    if isinstance(fn, Poisson):
        return Poisson(fn.rate * by.exp(), validate_args=False)
    raise _unknown(fn)


def output_gradient(fn: Any, y: Tensor) -> Tensor:
    """Gradient of log p(y | output) by the output, (..., S, n, outputs) for a batch shape (..., S, n)."""
    if isinstance(fn, Softmax):
        p = fn.probs
        return torch.nn.functional.one_hot(y.long(), p.shape[-1]).to(p) - p
    if isinstance(fn, Normal):
        return ((y - fn.mean) * fn.scale.pow(-2))[..., None]
    if isinstance(fn, Bernoulli):
        return (y - fn.probs)[..., None]
    if isinstance(fn, Poisson):
        return (y - fn.rate)[..., None]
    raise _unknown(fn)


def mean_output_curvature(fn: Any, directions: Tensor | None = None) -> Tensor:
    """Minus the expected second derivative of log p by the output, averaged over draws: (S, n, q, q).

    Args:
        fn: of batch shape (K, S, n).
        directions: directions (q, outputs) in which it is wanted; None for each output, q of them.
    """
    if isinstance(fn, Softmax):
        p = fn.probs
        directions = torch.eye(p.shape[-1]).to(p) if directions is None else directions
        squares = (directions[:, None] * directions).flatten(0, 1)  # (q q, outputs)
        projections = (p @ directions.mT).movedim(0, -2)  # (S, n, K, q)
        return (p.mean(0) @ squares.mT).unflatten(-1, (len(directions), -1)) - projections.mT @ projections / len(p)
    if isinstance(fn, Normal):
        second = fn.scale.pow(-2).expand(fn.batch_shape)
    elif isinstance(fn, Bernoulli):
        second = fn.probs * (1 - fn.probs)
    elif isinstance(fn, Poisson):
        second = fn.rate
    else:
        raise _unknown(fn)
    return second.mean(0)[..., None, None]


def _unknown(fn: Any) -> UserError:
    return UserError(
        f"the curvature of {type(fn).__name__} is not known: that of Softmax, Normal, Bernoulli and Poisson is"
    )
