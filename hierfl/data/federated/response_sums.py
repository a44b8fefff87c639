"""Mean and standard deviation of all sites' responses, from sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import UserError, unknown
from ...nn.likelihoods import Learned
from ..response_units import ResponseUnits
from .sums import Moments, NamedSums

#: what a study says of a regression's standard deviation: a number, or whose is learned
LEARN_SD = ("no", "shared", "clients")
PREFIX = "y_"
#: of the mean's distance from the centre: sums of squares in float64 do not say a smaller standard deviation
LEAST_SD = 1e-6


def noise_of(response_sd: float, learn_sd: str) -> float | Learned:
    """What :func:`~hierfl.nn.networks.build.architecture` takes as noise.

    Raises:
        UserError: for another word.
    """
    if learn_sd not in LEARN_SD:
        raise unknown("learn_sd", learn_sd, LEARN_SD)
    return response_sd if learn_sd == "no" else learn_sd  # type: ignore[return-value]


def response_form() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the sums."""
    return {f"{PREFIX}n": (), f"{PREFIX}total": (1,), f"{PREFIX}square": (1,)}


def response_meanings(name: str) -> dict[str, str]:
    """What each of them is."""
    return {
        f"{PREFIX}n": f"training rows that have {name}", f"{PREFIX}total": f"sum of {name}",
        f"{PREFIX}square": f"sum of squares of {name}",
    }  # fmt: skip


def response_sums(y: np.ndarray, centre: float) -> dict[str, Any]:
    """The sums of a site's training responses (n,), around a centre that all sites know."""
    return Moments.from_columns(np.asarray(y, dtype=float)[:, None], np.array([centre])).sums(PREFIX)


def response_units(totals: NamedSums, centre: float) -> ResponseUnits:
    """The units of the response, from all sites' sums.

    Raises:
        UserError: where there are no training rows, and where the responses' mean is so far from the centre that sums
            do not say their standard deviation.
    """
    moments = Moments.named(totals, np.array([centre]), PREFIX)
    if moments.n < 1:
        raise UserError("the sites have no training rows")
    mean, sd = float(moments.mean[0]), float(moments.sd[0])
    if sd < LEAST_SD * abs(mean - centre):
        raise UserError(
            f"the responses' mean is {mean:.6g}, and they differ by less than {LEAST_SD:g} of it: subtract one number, "
            "the same at all sites, from them"
        )
    return ResponseUnits(mean, sd if sd > 0 else 1.0)
