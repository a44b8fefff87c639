"""Groups inside clients, and groups of clients."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal
from support.levels import PASTES, dense, log_likelihood, point, table
from support.representatives import of_all
from support.responses import CASES, Case, hessian

from hierfl import mixed_model

GAUSSIAN = CASES["gaussian"]
OTHERS = [case for case in CASES.values() if case.family != "gaussian"]


def over_families(*quick: str) -> pytest.MarkDecorator:
    """Cases: what levels do with one does not depend on its density, but on its own numbers and on its modes."""
    return pytest.mark.parametrize("case", of_all(OTHERS, [CASES[name] for name in quick], lambda case: case.family))


def estimates(fitted) -> pd.Series:
    return fitted.summary().table.set_index("effect").estimate


def covariance(effects: pd.Series, factor: str = "", slope: bool = False) -> np.ndarray:
    end = f" | {factor}" if factor else ""
    if not slope:
        return np.array([[effects[f"sd(Intercept{end})"] ** 2]])
    sd, rho = effects[[f"sd(Intercept{end})", f"sd(x{end})"]].to_numpy(), effects[f"corr(Intercept, x{end})"]
    return np.outer(sd, sd) * np.array([[1, rho], [rho, 1]])


@pytest.mark.parametrize(
    ("formula", "places"),
    [
        ("y ~ x + (1 | site/patient)", {"site": ("", False), "both": ("patient", False)}),
        ("y ~ x + (1 | site) + (1 + x | site:patient)", {"site": ("", False), "both": ("patient", True)}),
        ("y ~ x + (1 + x | region/site)", {"region": ("region", True), "site": ("", True)}),
        (
            "y ~ x + (1 + x | region) + (1 | region:site) + (1 | region:site:patient)",
            {"region": ("region", True), "site": ("", False), "both": ("patient", False)},
        ),
    ],
)
def test_the_likelihood_is_the_dense_normal_density(formula: str, places: dict) -> None:
    df = table(GAUSSIAN, 4, 5, 3, 4)
    df["both"] = df.site + df.patient
    fitted = mixed_model(df, formula, client="site", population="ml", draws=0)
    e = estimates(fitted)
    mean, residual = e["Intercept"] + e["x"] * df.x.to_numpy(), np.full(len(df), e["sd(residual)"] ** 2)
    levels = {level: covariance(e, *how) for level, how in places.items()}
    assert fitted.log_likelihood == pytest.approx(dense(df, mean, levels, residual), rel=1e-10)
    assert fitted.summary().numbers["off_maximum"] < 1e-6


def test_a_diagonal_covariance_is_of_columns_as_they_are() -> None:
    """lme4's `||`: no correlation where x is zero, however far its values are from there."""
    df = table(GAUSSIAN, 1, 8, 3, 4).assign(x=lambda d: d.x + 3)
    df["both"] = df.site + df.patient
    how: dict = {"covariance": "diagonal", "draws": 200, "population": "ml"}
    fitted = mixed_model(df, "y ~ x + (1 + x | site/patient)", **how)
    e = estimates(fitted)
    levels = {
        level: np.diag(e[[f"sd(Intercept{end})", f"sd(x{end})"]].to_numpy() ** 2)
        for level, end in (("site", ""), ("both", " | patient"))
    }
    mean, residual = e["Intercept"] + e["x"] * df.x.to_numpy(), np.full(len(df), e["sd(residual)"] ** 2)
    assert fitted.log_likelihood == pytest.approx(dense(df, mean, levels, residual), rel=1e-10)
    written = "y ~ x + (1 | site) + (0 + x | site) + (1 | site:patient) + (0 + x | site:patient)"
    apart = mixed_model(df, written, population="ml", draws=200)
    assert apart.log_likelihood == pytest.approx(fitted.log_likelihood, rel=1e-10)
    np.testing.assert_allclose(fitted.ranef()["sd"], apart.ranef()["sd"], rtol=0.15)


def test_remls_criterion_is_the_dense_one() -> None:
    df = table(GAUSSIAN, 4, 5, 3, 4)
    df["both"] = df.site + df.patient
    fitted = mixed_model(df, "y ~ x + (1 | region/site/patient)", client="site", population="reml", draws=0)
    e = estimates(fitted)
    v, x = np.eye(len(df)) * e["sd(residual)"] ** 2, np.column_stack([np.ones(len(df)), df.x])
    for column, name in (("region", " | region"), ("site", ""), ("both", " | patient")):
        group = df[column].to_numpy(dtype=object)
        v += (group[:, None] == group) * e[f"sd(Intercept{name})"] ** 2
    information = x.T @ np.linalg.solve(v, x)
    beta = np.linalg.solve(information, x.T @ np.linalg.solve(v, df.y))
    height = multivariate_normal(x @ beta, v).logpdf(df.y)
    height += np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(information)[1]
    assert fitted.log_likelihood == pytest.approx(height, rel=1e-10)
    np.testing.assert_allclose(e[["Intercept", "x"]], beta, rtol=1e-9)
    errors = np.sqrt(np.linalg.inv(information).diagonal())
    np.testing.assert_allclose(fitted.summary().table.standard_error[:2], errors, rtol=1e-8)


def test_weights_and_known_errors_reach_groups_inside() -> None:
    df = table(GAUSSIAN, 1, 6, 3, 4).assign(se=lambda d: 0.3 + d.x.abs(), twice=lambda d: 1 + (d.x > 0))
    df["both"] = df.site + df.patient
    fitted = mixed_model(df, "y ~ x + (1 | site/patient)", known_se="se", weights="twice", population="ml", draws=0)
    again = df.loc[np.repeat(df.index, df.twice)].reset_index(drop=True)
    e = estimates(fitted)
    levels = {"site": covariance(e), "both": covariance(e, "patient")}
    mean = e["Intercept"] + e["x"] * again.x.to_numpy()
    assert fitted.log_likelihood == pytest.approx(dense(again, mean, levels, again.se.to_numpy() ** 2), rel=1e-10)


def test_pastes_are_lme4s() -> None:
    """lmer(strength ~ 1 + (1 | batch/cask), Pastes, REML = FALSE), and confint() of it, as they are printed."""
    fitted = mixed_model(PASTES, "strength ~ 1 + (1 | batch/cask)", population="ml", profile=0.95)
    effects, numbers = fitted.summary().table.set_index("effect"), fitted.summary().numbers
    assert effects.estimate.round(4).to_dict() == pytest.approx(
        {"Intercept": 60.0533, "sd(Intercept)": 1.0951, "sd(Intercept | cask)": 2.9041, "sd(residual)": 0.8234},
        abs=1e-4,
    )
    assert effects.standard_error["Intercept"] == pytest.approx(0.6421, abs=1e-4)
    assert [numbers[k] for k in ("aic", "bic", "log_likelihood")] == pytest.approx([256.0, 264.4, -124.0], abs=0.05)
    bounds = effects.loc[["sd(Intercept | cask)", "sd(Intercept)", "sd(residual)"], ["lower", "upper"]].to_numpy()
    assert bounds == pytest.approx(np.array([[2.158, 4.054], [0.0, 2.947], [0.652, 1.085]]), abs=1e-3)
    assert (numbers["groups"], numbers["inner_groups"]) == (10, 30)


def test_random_effects_are_the_normal_distributions() -> None:
    """Of Pastes at REML's estimates: conditional means and standard deviations of batches and casks."""
    fitted = mixed_model(PASTES, "strength ~ 1 + (1 | batch/cask)", population="ml", draws=0)
    e = estimates(fitted)
    batch, both = (np.unique(v, return_inverse=True)[1] for v in (PASTES.batch, PASTES.batch + PASTES.cask))
    z = np.column_stack([np.eye(10)[batch], np.eye(30)[both]])
    prior = np.r_[np.full(10, e["sd(Intercept)"] ** 2), np.full(30, e["sd(Intercept | cask)"] ** 2)]
    precision = np.diag(1 / prior) + z.T @ z / e["sd(residual)"] ** 2
    spread = np.linalg.inv(precision)
    mean = spread @ z.T @ (PASTES.strength - e["Intercept"]).to_numpy() / e["sd(residual)"] ** 2
    casks = fitted.ranef("cask")
    assert (casks.client + casks.cask).tolist() == sorted(set(PASTES.batch + PASTES.cask))
    moments = np.r_[fitted.ranef()["mean"], casks["mean"]], np.r_[fitted.ranef()["sd"], casks["sd"]]
    np.testing.assert_allclose(moments[0], mean, rtol=1e-8)
    np.testing.assert_allclose(moments[1], np.sqrt(spread.diagonal()), rtol=1e-8)


@pytest.mark.parametrize("population", ["ml", "reml", "bayes"])
def test_whose_clients_are_makes_no_difference_to_the_pooled_model(population: str) -> None:
    """Regions with sites inside, or sites in regions: one model, two ways through sums."""
    df = table(GAUSSIAN, 5, 4, 1, 5)
    how: dict = {"population": population, "draws": 400}
    inside = mixed_model(df, "y ~ x + (1 | region/site)", **how)
    above = mixed_model(df, "y ~ x + (1 | region/site)", client="site", **how)
    a, b = (model.summary().table.set_index("effect") for model in (inside, above))
    names = {"sd(Intercept)": "sd(Intercept | region)", "sd(Intercept | site)": "sd(Intercept)"}
    a = a.rename(index=names).loc[b.index]
    exact = ["estimate", "standard_error"]
    if population == "bayes":
        np.testing.assert_allclose(a.estimate, b.estimate, atol=0.15 * b.standard_error.max())
    else:
        np.testing.assert_allclose(a[exact], b[exact], rtol=1e-6)
        assert inside.log_likelihood == pytest.approx(above.log_likelihood, rel=1e-10)
    # regions' effects and those of sites, each by the other's draws
    for effects, other in ((inside.ranef(), above.ranef("region")), (inside.ranef("site"), above.ranef())):
        np.testing.assert_allclose(effects["mean"], other["mean"], atol=0.25 * other["sd"].max())
        np.testing.assert_allclose(effects["sd"], other["sd"], rtol=0.3)


#: responses whose integrands are so skewed that nine nodes each way, and a referee's grid of 0.3, are 1e-3 off: with 25
#: nodes and a grid of 0.15 they agree to 1e-7
SKEWED = {
    "binomial-cloglog", "binomial-probit", "hurdle-poisson", "nbinom1", "zero-inflated-negative-binomial",
    "hurdle-negative-binomial", "truncated-negative-binomial", "truncated-poisson", "generalised-poisson", "student-t",
}  # fmt: skip


def _nodes(case: Case) -> dict[str, int]:
    return {"nodes": 25} if case.family in SKEWED else {}


def _near(case: Case, fitted, df: pd.DataFrame, levels: tuple[str, ...]) -> None:
    """The estimates, errors and log likelihood of the referee."""
    at, h = point(case, fitted, levels), 1e-3
    grid = (0.15, 7.5) if case.family in SKEWED else (0.3, 5.4)

    def theirs(theta: np.ndarray) -> float:
        return log_likelihood(theta, df, case, levels, *grid)

    # What can be zero in two ways has two modes, which nine nodes each way see less well.
    close = 1e-3 if case.family == "zero-inflated-poisson" else 3e-4
    assert fitted.log_likelihood == pytest.approx(theirs(at), abs=close)
    slope = np.array([theirs(at + s) - theirs(at - s) for s in h * np.eye(len(at))]) / (2 * h)
    bend = hessian(theirs, at, h)
    errors = np.sqrt(np.diag(np.linalg.inv(-bend)))
    assert np.abs(np.linalg.solve(bend, slope) / errors).max() < 0.01
    assert fitted.summary().table.set_index("effect").standard_error["x"] == pytest.approx(errors[1], rel=0.01)


@over_families("poisson")
def test_groups_inside_are_those_of_quadrature(case: Case) -> None:
    # Four rows of counts that are zero in two ways leave a standard deviation of zero, and of a Student's t several
    # modes of a patient's effect, which nodes around one of them see less well.
    many = case.family in ("zero-inflated-negative-binomial", "student-t")
    df = table(case, 1, 8, 3, 10 if many else 4, sds=(0, 0.8, 0.9))
    how = {"family": case.family, "population": "ml", "draws": 0, **case.how, **_nodes(case)}
    fitted = mixed_model(df, f"{case.response} ~ x + (1 | site/patient)", **how)  # type: ignore[arg-type]
    _near(case, fitted, df, ("site", "patient"))


@over_families("binomial")
def test_groups_of_clients_are_those_of_quadrature(case: Case) -> None:
    # Six rows of counts above a hurdle leave a standard deviation of zero.
    df = table(case, 4, 4, 1, 12 if case.family == "hurdle-negative-binomial" else 6, sds=(0.9, 0.8, 0))
    how = {"family": case.family, "client": "site", "population": "ml", "draws": 0, **case.how, **_nodes(case)}
    fitted = mixed_model(df, f"{case.response} ~ x + (1 | region/site)", **how)  # type: ignore[arg-type]
    _near(case, fitted, df, ("region", "site"))


def test_all_three_levels_of_counts_are_those_of_quadrature() -> None:
    case, levels = CASES["poisson"], ("region", "site", "patient")
    df = table(case, 3, 3, 2, 3, seed=3, sds=(0.8, 0.7, 0.6))
    fitted = mixed_model(
        df, "y ~ x + (1 | region/site/patient)", family="poisson", client="site", population="ml", draws=0
    )
    at = point(case, fitted, levels)
    assert at[2:].min() > -1  # at a standard deviation of zero there are two levels
    assert fitted.log_likelihood == pytest.approx(log_likelihood(at, df, case, levels, 0.4, 5.6), abs=3e-4)
    for k, gap in enumerate(np.diag([0.01] * 5)):
        low, high = (log_likelihood(at + sign * gap, df, case, levels, 0.4, 5.6) for sign in (-1, 1))
        assert abs(high - low) / 0.02 < 0.02, k


def test_one_node_is_laplaces_approximation_of_both_levels() -> None:
    """As lme4 has it for nested factors: around the joint mode of a site's effects and its patients'."""
    case = CASES["poisson"]
    df = table(case, 1, 6, 3, 4, sds=(0, 0.8, 0.9))
    fitted = mixed_model(df, "y ~ x + (1 | site/patient)", family="poisson", population="ml", draws=0, nodes=1)

    def theirs(theta: np.ndarray) -> float:
        total, (tau, inner) = 0.0, np.exp(theta[2:4])
        for _, rows in df.groupby("site"):
            patient = pd.factorize(rows.patient)[0]
            z = np.column_stack([np.full(len(rows), tau), inner * np.eye(patient.max() + 1)[patient]])
            u, fixed = np.zeros(z.shape[1]), theta[0] + theta[1] * rows.x.to_numpy()
            for _ in range(50):
                rate = np.exp(fixed + z @ u)
                bend = np.eye(len(u)) + z.T * rate @ z
                u = u + np.linalg.solve(bend, z.T @ (rows.y.to_numpy() - rate) - u)
            total += case.log_density(rows, fixed + z @ u, np.zeros(0)).sum() - 0.5 * u @ u
            total -= 0.5 * np.linalg.slogdet(bend)[1]
        return total

    at, h = point(case, fitted, ("site", "patient")), 1e-3
    assert at[2:].min() > -1  # at a standard deviation of zero there is one level
    assert fitted.log_likelihood == pytest.approx(theirs(at), abs=1e-8)
    slope = np.array([theirs(at + s) - theirs(at - s) for s in h * np.eye(4)]) / (2 * h)
    assert np.abs(slope).max() < 1e-3
