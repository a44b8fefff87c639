"""First and second derivatives of a log likelihood in a network's output."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import Bernoulli, Normal, Poisson
from torch import Tensor

from ..errors import UserError
from .likelihoods import Softmax


def output_derivatives(fn: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of log p(y | output), and minus its expected second derivative, by the output.

    Each likelihood has its natural link (softmax; a mean; a logit; a log rate): there the expected second derivative is
    the observed one, and the generalised Gauss-Newton matrix of a linear head is its Hessian.

    Args:
        fn: the response's distribution, batch shape (S, n).
        y: the response (S, n).

    Returns:
        (S, n, outputs) and (S, n, outputs, outputs).

    Raises:
        UserError: for another likelihood.
    """
    if isinstance(fn, Softmax):
        p = fn.probs
        gradient = torch.nn.functional.one_hot(y.long(), p.shape[-1]).to(p) - p
        return gradient, torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    if isinstance(fn, Normal):
        precision = fn.scale.pow(-2).expand(fn.batch_shape)
        first, second = (y - fn.mean) * precision, precision
    elif isinstance(fn, Bernoulli):
        p = fn.probs
        first, second = y - p, p * (1 - p)
    elif isinstance(fn, Poisson):
        first, second = y - fn.rate, fn.rate
    else:
        raise UserError(
            f"the curvature of {type(fn).__name__} is not known: that of Softmax, Normal, Bernoulli and Poisson is"
        )
    return first[..., None], second[..., None, None]
