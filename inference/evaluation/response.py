"""The site that is predicted, and what it says of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from hierfl.data.batch import Batch
from hierfl.data.response_units import ResponseUnits
from hierfl.errors import UserError
from hierfl.metrics.classification import classification_rows
from hierfl.metrics.regression import regression_rows
from hierfl.ppl.restrict import Site


def response(sites: Mapping[str, Site]) -> Site:
    """The site that is predicted: the one called y, or else the only one observed in the data plate.

    Raises:
        UserError: if there are none or several.
    """
    observed = {name: site for name, site in sites.items() if site.kind == "observed" and site.per_example}
    if "y" in observed:
        return observed["y"]
    if len(observed) != 1:
        names = ", ".join(observed) or "none"
        raise UserError(f"which site is predicted? Call it y; observed in the data plate: {names}")
    return next(iter(observed.values()))


def log_probs(fn: Any) -> Tensor:
    """log p(class) of a categorical site, averaged over draws: (S, n, C)."""
    values = fn.log_probs if hasattr(fn, "log_probs") else fn.logits.log_softmax(-1)
    values = values.flatten(0, -4) if values.dim() > 3 else values.unsqueeze(0)
    return values.logsumexp(0) - math.log(values.shape[0])


def over_draws(values: Tensor) -> Tensor:
    """(..., S, n) -> (K, S, n)."""
    return values.flatten(0, -3) if values.dim() > 2 else values.unsqueeze(0)


def predictive_terms(site: Site, y: Tensor, task: str, units: ResponseUnits | None = None) -> list[Tensor]:
    """What a response site says of targets (S, n), examples in the last dimension but those of a class.

    Args:
        site: the response.
        y: targets as the model sees them.
        task: "classification" or "regression".
        units: the user's, in which log densities are; means and standard deviations are as the model sees them.
    """
    if task == "classification":
        return [log_probs(site.fn).mT]  # (S, C, n)
    fn = site.fn
    spread = [over_draws(fn.stddev)] if isinstance(fn, Normal) else []
    terms = [over_draws(fn.mean), over_draws(fn.log_prob(y)), *spread]  # (K, S, n)
    return terms if units is None else [terms[0], units.density(terms[1]), *spread]


def site_rows(
    parts: Sequence[Sequence[Tensor]], batch: Batch, task: str, units: ResponseUnits | None = None
) -> dict[str, Tensor]:
    """Metrics per row of what was said of the pieces of a batch, one after the other; ``units`` as before."""
    whole = [torch.cat(same, -1) if len(same) > 1 else same[0] for same in zip(*parts, strict=True)]
    if task == "classification":
        return classification_rows(whole[0].mT, batch.y, batch.mask)
    mean, log_density, *spread = whole
    rows = regression_rows(mean, spread[0] if spread else None, log_density, batch.y, batch.mask)
    return rows if units is None else units.metrics(rows)


def predictions(fn: Any, task: str, units: ResponseUnits | None = None) -> Tensor:
    """What a response's distribution says, averaged over draws: class probabilities (n, C), or mean and standard
    deviation (n, 2), in the user's units; in float64 where responses were standardised.
    """
    if task == "classification":
        return log_probs(fn)[0].exp()
    fn = getattr(fn, "reported", fn)  # a response whose numbers in the data are others than in the model
    mean, variance = over_draws(fn.mean), over_draws(fn.variance)
    centre, spread = mean.mean(0)[0], (variance.mean(0) + mean.var(0, unbiased=False)).sqrt()[0]
    return torch.stack([centre, spread] if units is None else [units.users(centre), units.sd * spread.double()], -1)
