"""The value of a guide's site as a differentiable function of standard normals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import Delta
from torch import Tensor

from ..errors import UserError


def reparametrise(fn: Any, noise: Callable[[], Tensor] | None, name: str) -> Tensor:
    """The value of a guide site as a differentiable function of standard normals.

    Args:
        fn: the site's distribution, batch shape (S, 1) or (S, n).
        noise: draws standard normals that broadcast to the value; None for the distribution's mean (for a transformed
            one without a mean of its own, the image of its base's mean).
        name: the site's name, for the error message.

    Raises:
        UserError: for a distribution that cannot be written as a function of normals.
    """
    d = torch.distributions
    if isinstance(fn, d.Independent):
        return reparametrise(fn.base_dist, noise, name)
    if isinstance(fn, Delta):
        return fn.v
    if noise is None:
        with contextlib.suppress(NotImplementedError):
            return fn.mean
    if isinstance(fn, d.TransformedDistribution):
        value = reparametrise(fn.base_dist, noise, name)
        for transform in fn.transforms:
            value = transform(value)
        return value
    if noise is None:
        raise UserError(f"guide site {name!r}: {type(fn).__name__} has no mean to be held at")
    if isinstance(fn, d.Normal):
        return torch.addcmul(fn.loc, fn.scale, noise())
    if isinstance(fn, d.MultivariateNormal):
        return fn.loc + (fn.scale_tril @ noise().unsqueeze(-1)).squeeze(-1)
    if fn.has_rsample and type(fn).icdf is not d.Distribution.icdf:
        normals = noise()
        tiny = torch.finfo(normals.dtype).eps
        return fn.icdf(torch.special.ndtr(normals).clamp(tiny, 1 - tiny))
    raise UserError(
        f"guide site {name!r}: {type(fn).__name__} cannot be drawn with client-keyed noise; "
        "use a Normal, LogNormal, MultivariateNormal, Delta or another distribution with an inverse cdf"
    )
