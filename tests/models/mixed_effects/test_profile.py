"""Profile-likelihood intervals, beside lme4's and constrained searches by SciPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import chi2
from support.mixed import DYESTUFF, table
from support.responses import CASES, quadrature, referee_point

from hierfl import mixed_model
from hierfl.errors import UserError


def bounds(fit) -> dict[str, tuple[float, float]]:
    effects = fit.summary().table.set_index("effect")
    return {name: (effects.lower[name], effects.upper[name]) for name in effects.index}


def test_they_are_lme4s() -> None:
    """As confint(lmer(Yield ~ 1 + (1 | Batch), Dyestuff, REML = FALSE)) prints them."""
    fit = mixed_model(DYESTUFF, "Yield ~ 1 + (1 | Batch)", profile=0.95, population="ml", draws=0)
    limits = bounds(fit)
    assert limits["sd(Intercept)"] == pytest.approx((12.198, 84.063), abs=0.002)
    assert limits["sd(residual)"] == pytest.approx((38.230, 67.658), abs=0.002)
    # At another level there are none, and without draws nothing else.
    assert np.isnan(fit.summary(0.9).table.lower[1])


def test_they_are_the_ends_of_what_is_likely_enough() -> None:
    """Slopes that go with intercepts, uncentred: extremes over all populations, found by SciPy."""
    df = table(10)
    fit = mixed_model(df, "y ~ 1 + x + (1 + x | site)", profile=0.9, population="ml", draws=0)
    effects = fit.summary(0.9).table.set_index("effect")
    parts = [(rows.x.to_numpy(), rows.y.to_numpy()) for _, rows in df.groupby("site")]

    def height(theta: np.ndarray) -> float:
        """Of log sds, atanh of the correlation, log sd of the residual; coefficients are the best."""
        sd, rho = np.exp(theta[:2]), np.tanh(theta[2])
        cov = np.array([[sd[0] ** 2, rho * sd[0] * sd[1]], [rho * sd[0] * sd[1], sd[1] ** 2]])
        a, b, c, volume = np.zeros((2, 2)), np.zeros(2), 0.0, 0.0
        for x, y in parts:
            z = np.column_stack([np.ones_like(x), x])
            v = z @ cov @ z.T + np.exp(2 * theta[3]) * np.eye(len(x))
            inverse = np.linalg.inv(v)
            a, b, c = a + z.T @ inverse @ z, b + z.T @ inverse @ y, c + y @ inverse @ y
            volume += np.linalg.slogdet(v)[1] + len(y) * np.log(2 * np.pi)
        return -0.5 * (volume + c - b @ np.linalg.solve(a, b))

    names = ["sd(Intercept)", "sd(x)", "corr(Intercept, x)", "sd(residual)"]
    turns = [np.log, np.log, np.arctanh, np.log]
    best = np.array([turn(effects.estimate[name]) for turn, name in zip(turns, names, strict=True)])
    least = height(best) - 0.5 * chi2.ppf(0.9, 1)
    assert height(best) == pytest.approx(fit.log_likelihood, abs=1e-6)
    for k, name in enumerate(names):
        for end, sign in (("lower", 1.0), ("upper", -1.0)):
            theirs = minimize(
                lambda t, k=k, sign=sign: sign * t[k], best, method="SLSQP", options={"maxiter": 300, "ftol": 1e-10},
                constraints={"type": "ineq", "fun": lambda t: height(t) - least},
            )  # fmt: skip
            assert turns[k](effects[end][name]) == pytest.approx(theirs.x[k], abs=2e-3), (name, end)


@pytest.mark.parametrize(
    ("family", "index"), [pytest.param("negative-binomial", 3, marks=pytest.mark.slow), ("poisson", 2)]
)
def test_other_responses(family: str, index: int) -> None:
    """At a bound the best that exact quadrature can do is l*."""
    case = CASES[family]
    df = case.table(8, rows=(2, 20))
    fit = mixed_model(df, case.formula, family=family, profile=0.95, population="ml", draws=0)  # type: ignore[arg-type]
    name = "size" if index == 3 else "sd(Intercept)"
    at = referee_point(case, fit)
    for value in bounds(fit)[name]:
        fixed = np.log(value)
        rest = np.delete(at, index)
        best = minimize(lambda t, f=fixed: quadrature(np.insert(t, index, f), df, case), rest, method="BFGS")
        assert fit.log_likelihood + best.fun == pytest.approx(0.5 * chi2.ppf(0.95, 1), abs=2e-3)


def test_a_spread_that_may_be_none_begins_at_zero() -> None:
    rng = np.random.default_rng(2)
    df = pd.DataFrame({"y": rng.normal(size=60), "site": np.repeat([f"s{j}" for j in range(12)], 5)})
    limits = bounds(mixed_model(df, "y ~ 1 + (1 | site)", profile=0.95, population="ml", draws=0))
    assert limits["sd(Intercept)"][0] == 0
    assert 0.1 < limits["sd(Intercept)"][1] < 1
    assert limits["sd(residual)"][0] < df.y.std(ddof=0) < limits["sd(residual)"][1]


FEW = pd.DataFrame({"y": np.random.default_rng(2).normal(size=40), "site": np.repeat([f"s{j}" for j in range(4)], 10)})


@pytest.mark.slow
@pytest.mark.cpu(4, "a fit with profiles")
def test_what_has_no_end_is_infinite_or_at_its_bound() -> None:
    """Degrees of freedom of which the likelihood stays high to the end."""
    df = FEW
    fit = mixed_model(df, "y ~ 1 + (1 | site)", family="student-t", profile=0.95, draws=0)
    limits = bounds(fit)
    assert limits["df"][1] == np.inf
    assert 1 < limits["df"][0] < 20
    assert limits["sd(Intercept)"][0] == 0
    assert limits["scale"][0] < 1 < limits["scale"][1]


@pytest.mark.slow
def test_ends_are_found_beside_far_outliers() -> None:
    """Standard deviations of zero beside outliers from which a search would begin too high."""
    rng = np.random.default_rng(2)
    rng.normal(size=40)
    fit = mixed_model(
        FEW.assign(y=rng.standard_cauchy(40)), "y ~ 1 + (1 | site)", family="student-t", profile=0.95, draws=0
    )
    limits = bounds(fit)
    assert limits["df"][0] == 1 < limits["df"][1] < 5
    assert np.isfinite([limits[name] for name in ("sd(Intercept)", "scale")]).all()


def test_ends_that_are_not_found_are_said() -> None:
    fit = mixed_model(DYESTUFF, "Yield ~ 1 + (1 | Batch)", profile=0.95, population="ml", draws=0, rounds=14)
    assert "not found, for want of rounds" in str(fit)


def test_a_posterior_has_none() -> None:
    with pytest.raises(UserError, match="profile"):
        mixed_model(DYESTUFF, "Yield ~ 1 + (1 | Batch)", profile=0.95, population="bayes")
