"""The responses of a generalised linear mixed model, and derivatives of their log densities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.distributions import Bernoulli, Normal, Poisson
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Family


def linear_predictor(columns: Tensor, coefficients: Tensor) -> Tensor:
    """The sum of columns (..., p) times coefficients (..., p), one after the other.

    (Along a last dimension of a few numbers torch sums eight times slower than it adds, measured on a CPU.)
    """
    total = columns[..., 0] * coefficients[..., 0]
    for k in range(1, columns.shape[-1]):
        total = total + columns[..., k] * coefficients[..., k]
    return total


def response(family: Family, eta: Tensor, sd: Tensor | None = None) -> Any:
    """p(y | eta) of a family, with its canonical link.

    Args:
        family: gaussian (mean eta), binomial (log odds eta) or poisson (log rate eta).
        eta: the linear predictor.
        sd: standard deviation of a gaussian response.
    """
    if family == "binomial":
        return Bernoulli(logits=eta)
    return Poisson(eta.exp()) if family == "poisson" else Normal(eta, sd)


def slope_and_weight(density: Callable[[Tensor], Any], eta: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of each row's log p(y | eta): its derivative and minus its second one, (S, n); 0 for padding.

    Args:
        density: from eta to p(y | eta).
        eta: the linear predictor, (S, n).
        batch: whose responses.
    """
    with pyro.validation_enabled(False), torch.enable_grad():  # (numbers that have diverged are reported elsewhere)
        eta = eta if eta.requires_grad else eta.detach().requires_grad_()
        heights = density(eta).log_prob(batch.y)
        heights = heights if batch.mask is None else torch.where(batch.mask, heights, 0.0)
        (slope,) = torch.autograd.grad(heights.sum(), eta, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), eta, create_graph=True)
    return (slope, -bend) if torch.is_grad_enabled() else (slope.detach(), -bend.detach())
