"""Quantiles of responses under their fitted distributions.

The quantile of y is F(y), and of a discrete one drawn between F(y-) and F(y) (Dunn and Smyth, 1996; the R package
DHARMa). F is the mixture over what is not known of a row's linear predictor, at nodes: exact where the response has a
distribution function or is a whole number, and by simulation otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.responses.base import Response
from hierfl.responses.counts import CountResponse
from hierfl.responses.proportions import ProportionResponse

#: draws at each node where a response has no distribution function
DRAWS = 250
#: terms of the sums over whole numbers
MOST_TERMS = 2_000_000_000
#: a count's probability below this is none: the sum ends
MIN_PROBABILITY = 1e-300


def quantiles(family: Response, fn: Any, y: Tensor, weights: Tensor, event: Tensor | None, noise: Tensor) -> Tensor:
    """A quantile of each response, (N,), between 0 and 1.

    Args:
        family: of the response.
        fn: its distribution at nodes, (K, N).
        y: (N,).
        weights: of the nodes, (K,).
        event: whether a time ended with its event, (N,); None for all.
        noise: uniform numbers, (N,), for what is discrete or was not watched to its event.

    Raises:
        UserError: for counts whose sums would be too long.
    """
    if family.ordered:
        probabilities = family.level_probabilities(fn).movedim(-1, 0)  # (levels, K, N)
        numbers = torch.arange(1.0, len(probabilities) + 1).to(y)[:, None]
        p = torch.einsum("k,lkn->ln", weights, probabilities.expand(len(probabilities), len(weights), len(y)))
        below, at = (p * (numbers < y)).sum(0), (p * (numbers == y)).sum(0)
    elif isinstance(family, CountResponse | ProportionResponse):
        below, at = _of_counts(fn, y, weights)
    else:
        below, at = _distribution_function(fn, y, weights)
        if event is not None:  # a time that was watched until y is any above it
            at = torch.where(event > 0, at, 1 - below)
    return (below + noise * at).clamp(0, 1)


def _of_counts(fn: Any, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """P(Y < y) and P(Y = y): sums of probabilities."""
    if float(y.max()) * y.numel() * len(weights) > MOST_TERMS:
        raise UserError(
            "quantile residuals add up the probabilities of all counts below, too many here: kind='pearson'"
        )
    below, at = torch.zeros_like(y), torch.zeros_like(y)
    for k in range(int(y.max()) + 1):
        # Of successes there are no more than trials.
        p = weights @ fn.log_prob(torch.full_like(y, k).minimum(y)).exp()
        below, at = below + torch.where(y > k, p, 0.0), torch.where(y == k, p, at)
    return below, at


def _distribution_function(fn: Any, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """P(Y < y), and P(Y = y), which is zero; by simulation the share of draws below and 1 / draws."""
    try:
        below = fn.cdf(y)
    except NotImplementedError:
        drawn = fn.sample((DRAWS,)).expand(DRAWS, len(weights), len(y))
        share = (weights @ (drawn < y).to(y).sum(0)) / (DRAWS + 1)
        return share, torch.full_like(share, 1 / (DRAWS + 1))
    return weights @ below.expand(len(weights), len(y)), torch.zeros_like(y)
