"""Which response a design has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hierfl.data.formula.design import Design

from .dispersed import BetaBinomialFamily, NegativeBinomialFamily, ZeroInflatedPoissonFamily
from .families import BinomialFamily, GammaFamily, GaussianFamily, PoissonFamily, ResponseFamily
from .ordinal import OrdinalFamily
from .survival import PiecewiseExponentialFamily, WeibullFamily, read_cuts


def family_of(design: Design, settings: Any) -> ResponseFamily:
    """A design's response.

    Args:
        design: whose.
        settings: of the method.
    """
    made: Mapping[str, Callable[[], ResponseFamily]] = {
        "gaussian": lambda: GaussianFamily(design.known, settings.noise_0 * design.scale),
        "binomial": BinomialFamily, "poisson": PoissonFamily, "gamma": GammaFamily,
        "negative-binomial": NegativeBinomialFamily, "zero-inflated-poisson": ZeroInflatedPoissonFamily,
        "beta-binomial": BetaBinomialFamily, "ordinal": lambda: OrdinalFamily(design.levels, design.labels),
        "exponential": lambda: PiecewiseExponentialFamily(read_cuts(settings.cuts)),
        "weibull": lambda: WeibullFamily(design.offset),
    }  # fmt: skip
    return made[design.family]()
