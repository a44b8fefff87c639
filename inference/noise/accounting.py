"""Epsilon of Gaussian mechanisms: exact without sampling, by privacy loss distributions with it.

Neighbours differ by one unit that is added or removed. Gaussian mechanisms without sampling compose to one, whose
epsilon is Balle and Wang's (ICML 2018, theorem 8). Poisson-sampled ones are composed by dp-accounting (Koskela et al.,
AISTATS 2020; Doroshenko et al., PoPETs 2022), whose discretisation is pessimistic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr

from hierfl.errors import UserError

#: a first guess of all multipliers is multiplied by up to so much, in such steps
MOST_FACTOR, STEP = 1e6, 1.15
#: relative distance of multipliers from the smallest ones with which epsilon is met
MULTIPLIER_TOLERANCE = 3e-4


@dataclass(frozen=True)
class Mechanism:
    """One kind of release of a fit, with Gaussian noise.

    Attributes:
        name: what is released, as "statistics" or "steps".
        share: of the budget, relative to other mechanisms' shares; above 0.
        releases: how often it is released in the whole fit; at least 1.
        rate: the probability with which a unit is in one release (Poisson sampling), in (0, 1].
        most: releases in the round that has the most of them; 0 where that is not known. A round that is computed
            again is charged as so many releases, or as all of them.
    """

    name: str
    share: float
    releases: int
    rate: float = 1.0
    most: int = 0

    def __post_init__(self) -> None:
        if not self.share > 0 or not math.isfinite(self.share):
            raise UserError(f"the share of {self.name} must be a number above 0, not {self.share}")
        if self.releases < 1:
            raise UserError(f"{self.name} needs at least one release, not {self.releases}")
        if not 0 <= self.most <= self.releases:
            raise UserError(f"a round of {self.name} has {self.most} of {self.releases} releases: that cannot be")
        if not 0 < self.rate <= 1:
            raise UserError(f"the sampling rate of {self.name} must lie in (0, 1], not {self.rate}")


def noise_plan(epsilon: float, delta: float, mechanisms: Sequence[Mechanism]) -> dict[str, float]:
    """How much noise each mechanism needs, so that all of them together have this epsilon.

    The noise of a release has the standard deviation multiplier * sensitivity, the sensitivity being the largest
    L2 norm of the change when one unit is added or removed. Shares divide the squared signal to noise ratio: a
    mechanism of share s has s times that of the single Gaussian mechanism with this epsilon. For sampled releases that
    holds about, by a central limit; the composed epsilon is met whatever the shares.

    Args:
        epsilon: of everything together; above 0.
        delta: likewise, in (0, 1).
        mechanisms: all that is released, with names of their own.

    Returns:
        The noise multiplier of each mechanism, by name. Their composed epsilon is at most ``epsilon``.

    Raises:
        UserError: for a budget that cannot be met, or without dp-accounting where something is sampled.
    """
    _check(epsilon, delta, mechanisms)
    return dict(_planned(float(epsilon), float(delta), tuple(mechanisms)))


def composed_epsilon(delta: float, mechanisms: Sequence[Mechanism], multipliers: Mapping[str, float]) -> float:
    """Epsilon of mechanisms with these noise multipliers, all of their releases composed.

    Args:
        delta: in (0, 1).
        mechanisms: what is released; 0 without any.
        multipliers: of each mechanism, by name; above 0.

    Raises:
        UserError: without dp-accounting where something is sampled.
    """
    squared = sum(m.releases / multipliers[m.name] ** 2 for m in mechanisms if m.rate == 1)
    sampled = tuple((m.rate, multipliers[m.name], m.releases) for m in mechanisms if m.rate < 1)
    return _composed(math.sqrt(squared), sampled, float(delta))


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Delta of one Gaussian mechanism at this epsilon; ``ratio`` is sensitivity / standard deviation."""
    if ratio == 0:
        return 0.0
    first = float(log_ndtr(ratio / 2 - epsilon / ratio))
    second = epsilon + float(log_ndtr(-ratio / 2 - epsilon / ratio))
    return math.exp(first) - math.exp(second) if second < first else 0.0


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism at this delta; ``ratio`` is sensitivity / standard deviation."""
    if ratio == 0 or gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    most = ratio**2 / 2 + ratio * math.sqrt(2 * math.log(1 / delta)) + 1
    return float(brentq(lambda e: gaussian_delta(ratio, e) - delta, 0.0, most, xtol=1e-12, rtol=1e-12))


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """The largest ratio sensitivity / standard deviation of a Gaussian mechanism with at most this epsilon."""
    return float(brentq(lambda r: gaussian_delta(r, epsilon) - delta, 1e-9, 1e6, xtol=1e-14, rtol=1e-13))


def _check(epsilon: float, delta: float, mechanisms: Sequence[Mechanism]) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon)) or not 0 < delta < 1:
        raise UserError(f"noise needs epsilon above 0 and delta in (0, 1), not {epsilon} and {delta}")
    names = [m.name for m in mechanisms]
    if len(set(names)) < len(names):
        raise UserError(f"mechanisms with one name: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    if not names:
        raise UserError("nothing is released with noise: there is no budget to divide")


@cache
def _planned(epsilon: float, delta: float, mechanisms: tuple[Mechanism, ...]) -> tuple[tuple[str, float], ...]:
    whole, shares = gaussian_ratio(epsilon, delta), sum(m.share for m in mechanisms)
    multipliers = {}
    for m in mechanisms:
        ratio = whole * math.sqrt(m.share / shares)
        multipliers[m.name] = math.sqrt(m.releases) / ratio if m.rate == 1 else _sampled(m, ratio)
    if all(m.rate == 1 for m in mechanisms):
        return tuple((name, value * (1 + 1e-12)) for name, value in multipliers.items())

    def excess(factor: float) -> float:
        return composed_epsilon(delta, mechanisms, {name: v * factor for name, v in multipliers.items()}) - epsilon

    factor = _factor(excess)
    return tuple((name, value * factor) for name, value in multipliers.items())


def _sampled(mechanism: Mechanism, ratio: float) -> float:
    """About the multiplier with which a sampled mechanism is a Gaussian of this ratio, by its central limit.

    Bu, Dong, Long and Su, "Deep learning with Gaussian differential privacy", 2020: many releases are one with
    ratio rate sqrt(releases (exp(1 / multiplier^2) - 1)).
    """
    return 1 / math.sqrt(math.log1p(ratio**2 / (mechanism.rate**2 * mechanism.releases)))


def _factor(excess: Callable[[float], float]) -> float:
    """About the smallest factor at which a falling function is at most 0."""
    high = low = 1.0
    while excess(high) > 0:  # from above: little noise takes long to be accounted for
        low, high = high, high * STEP
        if high > MOST_FACTOR:
            raise UserError("no noise meets this budget: fewer releases, or a larger epsilon or delta")
    while low == high or excess(low) <= 0:
        low, high = low / STEP, min(high, low)
    factor = math.exp(
        brentq(lambda logarithm: excess(math.exp(logarithm)), math.log(low), math.log(high), xtol=MULTIPLIER_TOLERANCE)
    )
    while excess(factor) > 0:
        factor *= 1 + MULTIPLIER_TOLERANCE
    return factor


@cache
def _composed(ratio: float, sampled: tuple[tuple[float, float, int], ...], delta: float) -> float:
    if not sampled:
        return gaussian_epsilon(ratio, delta)
    event, accountant = _dp_accounting()
    for rate, multiplier, releases in sampled:
        single = event.PoissonSampledDpEvent(rate, event.GaussianDpEvent(multiplier))
        accountant.compose(event.SelfComposedDpEvent(single, releases))
    if ratio > 0:
        accountant.compose(event.GaussianDpEvent(1 / ratio))
    return float(accountant.get_epsilon(delta))


def _dp_accounting() -> tuple[Any, Any]:
    """The module of events and a new accountant."""
    try:
        from dp_accounting import dp_event
        from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
    except ImportError as error:
        raise UserError(
            "sampled releases with noise are accounted for by dp-accounting: pip install 'hierfl[privacy]'"
        ) from error
    return dp_event, PLDAccountant()
