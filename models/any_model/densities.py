"""Log densities of the sites of a run."""

from __future__ import annotations

from typing import Any

from pyro import poutine
from pyro.distributions import Independent
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
    """Of a site of a run, scaled and masked, for each part of its plates.

    Raises:
        UserError: where its distribution has none at the value.
    """
    try:
        return scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"])
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
        text = " ".join(str(error).split())[:120]
        raise UserError(f"site {site['name']!r} has no log density ({kind(site['fn'])}): {text}") from error


def kind(fn: Any) -> str:
    """A distribution's name."""
    return type(unwrapped(fn)).__name__


def unwrapped(fn: Any) -> Any:
    """A distribution without what is wrapped around it."""
    while isinstance(fn, Independent | ExpandedDistribution | MaskedDistribution):
        fn = fn.base_dist
    return fn
