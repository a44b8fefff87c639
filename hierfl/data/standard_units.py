"""A federation whose responses, and inputs that are far from unit scale, are standardised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..errors import UserError
from .federation import Federation
from .input_scales import far_constants
from .response_units import ResponseUnits


def in_standard_units(federation: Federation, *, alone: bool = False) -> Federation:
    """The same federation, whose responses are standardised when they are batched.

    Args:
        federation: of a regression.
        alone: whether it is one of several sites, whose own responses do not say the mean of all.

    Raises:
        UserError: for a site that does not know the mean and standard deviation of all sites' responses.
    """
    units = federation.response_units
    if units is None:
        if alone:
            raise UserError("the mean and sd of all sites' responses are not known: noise=SD keeps the user's units")
        rows = [index.cpu() for index in federation.train]
        everyone = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
        units = ResponseUnits.from_responses(federation.y.cpu()[everyone].numpy(), _weights(federation, everyone))
    return replace(federation, response_units=units, standard_response=True)


def with_scaled_inputs(federation: Federation) -> Federation:
    """The same federation, whose columns are standardised as "auto" does where nothing else standardises them."""
    rowless = federation.outline or not len(federation.x)  # a loaded run's has the scales of the fit, or none
    if federation.mean is not None or rowless or federation.x.dim() != 2:
        return federation
    rows = torch.cat([index.cpu() for index in federation.train])
    constants = far_constants(
        federation.x.cpu()[rows].numpy(), numbers="columns" in federation.about, weights=_weights(federation, rows)
    )
    if constants is None:
        return federation
    mean, std = (torch.as_tensor(v, device=federation.device) for v in constants)
    return replace(federation, mean=mean, std=std)


def _weights(federation: Federation, rows: torch.Tensor) -> np.ndarray | None:
    """Weights of some of the pool's rows (n,); None where each counts once."""
    return None if federation.weights is None else federation.weights.cpu()[rows].numpy()
