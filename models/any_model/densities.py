"""Log densities of the sites of a run."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Independent, Multinomial
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from hierfl.errors import UserError


def densities(trace: Any) -> list[dict[str, Any]]:
    """Sites that have a density, those of a run."""
    return [
        site
        for site in trace.nodes.values()
        if site["type"] == "sample"
        and not poutine.util.site_is_subsample(site)
        and not site["infer"].get("_deterministic")
    ]


def log_prob(site: dict[str, Any]) -> Tensor:
    """The log density of a site of a run, scaled and masked, for each part of its plates.

    Raises:
        UserError: where its distribution has none at the value.
    """
    try:
        return scale_and_mask(_log_prob(site["fn"], site["value"]), site["scale"], site["mask"])
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
        text = " ".join(str(error).split())[:120]
        raise UserError(f"site {site['name']!r} has no log density ({kind(site['fn'])}): {text}") from error


def _log_prob(fn: Any, value: Tensor) -> Tensor:
    """The log density of a distribution at a value; torch's multinomial is written again, as vmap allows no masked
    assignment.
    """
    if not isinstance(fn, Multinomial):
        return torch.as_tensor(fn.log_prob(value))
    logits, value = torch.broadcast_tensors(fn.logits, value)
    logits = torch.where((value == 0) & (logits == -math.inf), 0.0, logits)
    return (value.sum(-1) + 1).lgamma() + (logits * value - (value + 1).lgamma()).sum(-1)


def kind(fn: Any) -> str:
    """A distribution's name."""
    return type(unwrapped(fn)).__name__


def unwrapped(fn: Any) -> Any:
    """A distribution without what is wrapped around it."""
    while isinstance(fn, Independent | ExpandedDistribution | MaskedDistribution):
        fn = fn.base_dist
    return fn
