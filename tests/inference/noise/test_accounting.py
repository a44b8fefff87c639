"""Epsilon of composed mechanisms: against closed forms, and against what the literature has."""

from __future__ import annotations

import builtins
import math
from typing import Any

import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from hierfl.errors import UserError
from hierfl.inference.noise import Mechanism, Plan, composed_epsilon, noise_plan
from hierfl.inference.noise.accounting import _composed, gaussian_delta, gaussian_epsilon, gaussian_ratio

STATISTICS, STEPS = Mechanism("statistics", 3, 2), Mechanism("steps", 1, 50, 0.02)


def test_delta_of_one_gaussian_mechanism_is_the_integral_that_defines_it() -> None:
    for ratio, epsilon in ((0.3, 0.5), (1.0, 1.0), (2.0, 4.0)):
        privacy = quad(lambda x: max(0.0, norm.pdf(x, ratio) - math.exp(epsilon) * norm.pdf(x)), -12, 14, limit=500)[0]  # noqa: B023
        assert gaussian_delta(ratio, epsilon) == pytest.approx(privacy, rel=1e-6)
        assert gaussian_epsilon(ratio, gaussian_delta(ratio, epsilon)) == pytest.approx(epsilon, rel=1e-9)


def test_known_values() -> None:
    """Of zCDP's bound the exact value stays below; Abadi et al. (CCS 2016) have 1.26 for the last, by moments."""
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)
    rho = 0.5
    assert gaussian_epsilon(1.0, 1e-5) < rho + 2 * math.sqrt(rho * math.log(1e5))
    epsilon = composed_epsilon(1e-5, [Mechanism("steps", 1, 10_000, 0.01)], {"steps": 4.0})
    assert 0.9 < epsilon < 1.26


def test_distributions_of_the_loss_agree_with_the_closed_form() -> None:
    """A rate that is nearly 1 is no sampling: the discretised distributions say what the closed form does."""
    sampled = _composed(0.0, ((1 - 1e-12, 4.0, 9),), 1e-5)
    assert sampled == pytest.approx(gaussian_epsilon(0.75, 1e-5), abs=2e-3)
    both = _composed(0.5, ((1 - 1e-12, 4.0, 9),), 1e-5)
    assert both == pytest.approx(gaussian_epsilon(math.hypot(0.5, 0.75), 1e-5), abs=2e-3)


def test_poisson_sampling_amplifies_by_the_known_factor() -> None:
    """delta(epsilon) of one sampled release is rate times that of the whole one at log(1 + (e^epsilon - 1) / rate)."""
    rate, multiplier, delta = 0.1, 0.8, 1e-4

    def excess(epsilon: float) -> float:
        return rate * gaussian_delta(1 / multiplier, math.log1p(math.expm1(epsilon) / rate)) - delta

    composed = composed_epsilon(delta, [Mechanism("steps", 1, 1, rate)], {"steps": multiplier})
    assert composed == pytest.approx(brentq(excess, 1e-6, 10), abs=2e-3)
    assert composed < composed_epsilon(delta, [Mechanism("steps", 1, 1)], {"steps": multiplier}) / 2


def test_a_plan_without_sampling_divides_the_squared_ratio() -> None:
    parts = [Mechanism("a", 1, 1), Mechanism("b", 3, 5)]
    plan = noise_plan(2.0, 1e-6, parts)
    assert composed_epsilon(1e-6, parts, plan) == pytest.approx(2.0, rel=1e-9)
    assert composed_epsilon(1e-6, parts, plan) <= 2.0
    assert 5 / plan["b"] ** 2 == pytest.approx(3 / plan["a"] ** 2, rel=1e-9)
    assert 1 / plan["a"] ** 2 + 5 / plan["b"] ** 2 == pytest.approx(gaussian_ratio(2.0, 1e-6) ** 2, rel=1e-9)


@pytest.mark.slow
@pytest.mark.cpu(8, "distributions of the loss are composed some twenty times")
def test_a_plan_with_sampling_meets_its_budget_and_nearly_uses_it() -> None:
    plan = Plan.for_epsilon("site", 3.0, 1e-5, [STATISTICS, STEPS])
    assert 3.0 * 0.998 < plan.epsilon <= 3.0
    parts = plan.summary["parts"]
    assert parts["statistics"]["epsilon"] < 3.0
    # Parts compose to less than their sum, and fewer releases spend less.
    assert plan.epsilon < parts["statistics"]["epsilon"] + parts["steps"]["epsilon"]
    assert plan.spent({"steps": 10}) < plan.spent({"steps": 50}) < plan.epsilon
    assert plan.spent({}) == 0
    with pytest.raises(UserError, match="scores: the noise plan has no share for it, so it does not leave"):
        plan.multiplier("scores")


@pytest.mark.parametrize(
    ("epsilon", "parts", "words"),
    [
        (0.0, [STATISTICS], "noise needs epsilon above 0"),
        (float("inf"), [STATISTICS], "noise needs epsilon above 0"),
        (1.0, [], "nothing is released with noise"),
        (1.0, [STATISTICS, STATISTICS], "mechanisms with one name: statistics"),
    ],
)
def test_budgets_that_cannot_be(epsilon: float, parts: list[Mechanism], words: str) -> None:
    with pytest.raises(UserError, match=words):
        noise_plan(epsilon, 1e-5, parts)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (("a", 0, 1), "the share of a must be"), (("a", 1, 0), "a needs at least one release"),
        (("a", 1, 1, 0.0), "the sampling rate of a"), (("a", 1, 1, 1.5), "the sampling rate of a"),
    ],
)  # fmt: skip
def test_mechanisms_that_cannot_be(about: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Mechanism(*about)


def test_sampling_needs_the_extra_and_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **how: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *more, **how)

    monkeypatch.setattr(builtins, "__import__", without)
    assert noise_plan(1.5, 1e-5, [STATISTICS])["statistics"] > 0  # in closed form
    with pytest.raises(UserError, match=r"pip install 'hierfl\[privacy\]'"):
        noise_plan(1.5, 1e-5, [Mechanism("steps", 1, 3, 0.5)])
