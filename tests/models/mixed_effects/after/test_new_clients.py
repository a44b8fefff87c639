"""Predictions of clients that were not fitted, after rows of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.after.new_clients import run_given
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel


def table(clients: int = 8, rows: int = 9) -> pd.DataFrame:
    """Rows of clients, in three regions, with a number, a count, and successes among trials."""
    rng, j = np.random.default_rng(0), np.repeat(np.arange(clients), rows)
    b, n = rng.normal(size=(clients, 2)) * [0.8, 0.4], clients * rows
    df = pd.DataFrame({"site": [f"s{k}" for k in j], "region": [f"r{k % 3}" for k in j], "x": rng.normal(size=n)})
    eta = 0.3 + 0.5 * df.x + b[j, 0] + b[j, 1] * df.x
    df = df.assign(y=eta + 0.5 * rng.normal(size=n), count=rng.poisson(np.exp(eta)), n=rng.integers(3, 9, n))
    df["item"] = np.array(list("abc"))[np.arange(n) % 3]
    return df.assign(k=rng.binomial(df.n, 1 / (1 + np.exp(-eta))), w=rng.integers(1, 4, n), se=0.3 + rng.random(n))


def newcomer() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of a client that is far from the others, and rows of it to predict."""
    rows = table(9)
    rows = rows[rows.site == "s8"].assign(site="new", y=lambda d: d.y + 2)
    return rows, pd.DataFrame({"site": "new", "x": [-1.0, 0.0, 2.0], "n": 5})


def estimates(fit: FittedMixedModel) -> dict[str, float]:
    table = fit.summary().table
    return dict(zip(table.effect, table.estimate, strict=True))


def test_a_number_has_the_closed_form() -> None:
    """b = S Z' (Z S Z' + sigma^2 I)^-1 (y - X beta), and its covariance: lmer's numbers at its own estimates."""
    given, new = newcomer()
    formula = "y ~ x + (1 + x | site)"
    fit = mixed_model(table(), formula, draws=0)
    estimate = estimates(fit)
    beta, sds = (
        np.array([estimate["Intercept"], estimate["x"]]),
        np.diag([estimate["sd(Intercept)"], estimate["sd(x)"]]),
    )
    rho = estimate["corr(Intercept, x)"]
    spread = sds @ np.array([[1, rho], [rho, 1]]) @ sds
    z = np.column_stack([np.ones(len(given)), given.x])
    total = z @ spread @ z.T + estimate["sd(residual)"] ** 2 * np.eye(len(given))
    b = spread @ z.T @ np.linalg.solve(total, given.y - z @ beta)
    wanted = np.column_stack([np.ones(3), new.x]) @ (beta + b)
    predictions = fit.predict(new, "new", None, given=given)
    assert list(predictions) == ["client", "mean"]
    np.testing.assert_allclose(predictions["mean"], wanted, rtol=1e-7)
    bare = [rows.drop(columns="site") for rows in (new, given)]
    pd.testing.assert_frame_equal(fit.predict(bare[0], "new", None, given=bare[1]), predictions[["mean"]])
    before, after = (fit.predict(new, "new", given=rows) for rows in (None, given))
    assert list(before) == list(after)[1:] == ["mean"]


def test_draws_are_those_of_a_fitted_client() -> None:
    """At the same draws of the population; what the rows do not say of the client is in the interval."""
    df, number = table(), 1000
    fit = mixed_model(df, "y ~ x + (1 | site)", draws=number)
    own, estimate = df[df.site == "s3"], estimates(fit)
    new = own.assign(site="new")
    predictions, wanted, prior = fit.predict(new, "new", given=new), fit.predict(own), fit.predict(new, "new")
    sd = (len(own) / estimate["sd(residual)"] ** 2 + estimate["sd(Intercept)"] ** -2) ** -0.5
    np.testing.assert_allclose(predictions["mean"], wanted["mean"], atol=5 * sd * (2 / number) ** 0.5)
    for end in ("lower", "upper", "response_lower", "response_upper"):
        width = wanted[end.replace("lower", "upper")] - wanted[end.replace("upper", "lower")]
        assert (abs(predictions[end] - wanted[end]) < 0.12 * width).all(), end
    assert (predictions.upper - predictions.lower < 0.7 * (prior.upper - prior.lower)).all()
    assert predictions.upper[own.index[0]] - predictions.lower[own.index[0]] > 2 * 1.6449 * sd


def test_others_have_the_mode() -> None:
    """Of successes among trials: the maximum of the log posterior, searched by SciPy; glmer's mode at theta fixed."""
    given, _ = newcomer()
    fit = mixed_model(table(), "p(k, n) ~ x + (1 | site)", family="binomial", draws=0)
    estimate = estimates(fit)

    def height(b: np.ndarray) -> float:
        eta = estimate["Intercept"] + estimate["x"] * given.x.to_numpy() + b[0]
        return float(
            -(given.k * eta - given.n * np.logaddexp(0, eta)).sum() + 0.5 * (b[0] / estimate["sd(Intercept)"]) ** 2
        )

    best = minimize(height, [0.0], method="BFGS", options={"gtol": 1e-9})
    rows = pd.DataFrame({"site": "new", "x": [0.0, 1.0]})
    z = np.linspace(-9, 9, 4001)
    weight, sd = np.exp(-0.5 * z**2), float(_curvature(estimate, given, best.x[0])) ** -0.5
    eta = estimate["Intercept"] + estimate["x"] * rows.x.to_numpy()[:, None] + best.x[0] + sd * z
    wanted = (weight / (1 + np.exp(-eta))).sum(1) / weight.sum()
    np.testing.assert_allclose(fit.predict(rows, "new", None, given=given)["mean"], wanted, rtol=1e-6)


def _curvature(estimate: dict[str, float], given: pd.DataFrame, b: float) -> float:
    p = 1 / (1 + np.exp(-(estimate["Intercept"] + estimate["x"] * given.x + b)))
    return float((given.n * p * (1 - p)).sum() + estimate["sd(Intercept)"] ** -2)


@pytest.mark.parametrize(
    ("formula", "how"),
    [
        ("y ~ x + (1 | site)", {"weights": "w"}), ("y ~ x + (1 | site)", {"known_se": "se"}),
        ("y ~ x + (1 | site)", {"dispersion": "~ (1 | site)"}), ("y ~ s(x) + (1 | site)", {}),
        ("y ~ x + (1 | site) + (1 | item)", {}), ("count ~ x + (1 | site)", {"family": "poisson", "weights": "w"}),
        ("y ~ x + (1 | region/site)", {"client": "site"}),
    ],
)  # fmt: skip
def test_with_the_rows_of_a_fitted_client_it_is_that_client(formula: str, how: dict[str, Any]) -> None:
    """Given the estimates, to rounding."""
    df = table()
    fit = mixed_model(df, formula, draws=0, **how)
    own = df[df.site == "s3"]
    new = pd.concat([own.assign(site="b"), own.assign(site="a")], ignore_index=True).sample(frac=1, random_state=0)
    predictions = fit.predict(new.drop(columns=["y", "count"]), "new", None, given=new)
    assert predictions.client.tolist() == new.site.tolist()
    wanted = fit.predict(own, interval=None).set_index(own.x.to_numpy())["mean"]
    np.testing.assert_allclose(predictions["mean"], wanted[new.x.to_numpy()], rtol=1e-8)
    assert not np.allclose(fit.predict(new, "new", None)["mean"], predictions["mean"], rtol=1e-3)


def test_what_cannot_be_is_one_line() -> None:
    df, (given, new) = table(), newcomer()
    fit = mixed_model(df, "y ~ x + (1 | site)", draws=0, weights="w")
    regions = mixed_model(df, "y ~ x + (1 | region/site)", draws=0, client="site")
    inside = mixed_model(df, "y ~ x + (1 | site/item)", draws=0)
    visits = df.assign(visit=df.groupby(["site", "item"]).cumcount())
    serial = mixed_model(visits, "y ~ x + (1 | site)", draws=0, correlation="ar1(visit | item)")
    same = mixed_model(df, "y ~ x + (1 | site)", draws=0, correlation="cs(item)")
    for model, rows, own, words in (
        (fit, new, given.drop(columns="y"), "the table lacks column 'y'"),
        (fit, new, given.drop(columns="w"), "lacks column 'w', which says how many rows each one stands for"),
        (fit, new, given.drop(columns="site"), "given has no column 'site', and the other table has"),
        (fit, new.assign(site=["new", "new", "z"]), given, "given has no rows of client 'z'"),
        (fit, new.assign(site="s1"), given, "client 's1' was fitted, and level='new' is of clients that were not"),
        (fit, new, given.assign(y=np.nan), "y"),
        (regions, new.assign(region="r9"), given.assign(region="r9"), "'new' is of a 'region' that was not fitted"),
        (inside, new, given.drop(columns="item"), "given names no groups inside client 'new': it lacks column 'item'"),
        (inside, new, given.assign(item="a").assign(item=["a", "A"] + ["b"] * 7), "'A' and 'a' of 'new', which differ"),
        (serial, new, given, "residuals correlate by ar1, and the table lacks column 'visit'"),
        (serial, new, given.assign(visit=1), "rows have the same 'visit' as another row of their 'item'"),
        (same, new, given.assign(item="a"), "a 'item' has 9 rows, and 3 is the most in the fit"),
    ):
        with pytest.raises(UserError, match=words):
            model.predict(rows, "new", None, given=own)
    with pytest.raises(UserError, match="given= has rows of new clients: level='new', not 'client'"):
        fit.predict(new, given=given)
    x, y = inside.run.fitted.federation.x[:3].numpy(), inside.run.fitted.federation.y[:3].numpy()
    with pytest.raises(UserError, match="arrays do not name the groups inside a new client"):
        inside.run.predict_new_client(x, given=(x, y))


# -- groups inside clients, and residuals that correlate --------------------------------------------------------------


#: of a fit of two levels by quadrature, or with slopes
CLIMB = pytest.mark.cpu(5, "many rounds of a search of several standard deviations")


def wards(clients: int = 6) -> pd.DataFrame:
    """Rows of clients with three wards each, of which the fourth client lacks the last, and two patients in a ward."""
    rng, n = np.random.default_rng(1), clients * 12
    df = pd.DataFrame({"site": np.repeat([f"s{k}" for k in range(clients)], 12), "x": rng.normal(size=n)})
    df["ward"] = np.tile(np.repeat(list("abc"), 4), clients)
    df["visit"] = np.tile(np.arange(4), 3 * clients)
    df["patient"] = (df.visit // 2).astype(str)
    effects = sum(rng.normal(size=n // rows).repeat(rows) for rows in (12, 4, 2))  # of sites, wards and patients
    df = df.assign(y=0.5 * df.x + effects + 0.5 * rng.normal(size=n), count=rng.poisson(np.exp(1 + 0.7 * effects)))
    return df[(df.site != "s3") | (df.ward != "c")].reset_index(drop=True)


@pytest.mark.parametrize(
    ("formula", "how"),
    [
        pytest.param("y ~ x + (1 + x | site/ward)", {}, marks=CLIMB), ("y ~ x + (1 | site/ward/patient)", {}),
        ("y ~ x + (1 | site/ward)", {"dispersion": "~ x"}),
        pytest.param("y ~ x + (1 | site/ward)", {"dispersion": "~ (1 | site)"}, marks=CLIMB),
        pytest.param("count ~ x + (1 | site/ward)", {"family": "poisson"}, marks=CLIMB),
        pytest.param("count ~ x + (1 | site/ward/patient)", {"family": "poisson"}, marks=CLIMB),
        ("y ~ x + (1 | site)", {"correlation": "cs(ward)"}),
        ("y ~ x + (1 | site/ward/patient)", {"correlation": "ar1(visit | patient)"}),
    ],
)  # fmt: skip
def test_effects_inside_are_those_of_the_fitted_client(formula: str, how: dict[str, Any]) -> None:
    """At the same estimates, means and covariances of the effects of the client and of each of its groups."""
    df = wards()
    fit = mixed_model(df, formula, draws=0, **how)
    own = df[df.site == "s3"].assign(site="other").sample(frac=1, random_state=0)
    conditional, method = run_given(fit.run, own, "other"), fit.method
    for level in method.at_site:
        mean, root = (conditional.personal[f"{level.effects}_{part}"][0] for part in ("mean", "root"))
        wanted, wanted_root = (fit.run.personal[f"{level.effects}_{part}"][3] for part in ("mean", "root"))
        number = len(mean)  # of groups, the one that is not known first; or of a client's effects
        torch.testing.assert_close(mean, wanted[:number], atol=1e-6, rtol=0)
        torch.testing.assert_close(root @ root.mT, (wanted_root @ wanted_root.mT)[:number], atol=1e-6, rtol=0)
        assert number < len(wanted) or not level.inside or level.name != "inner_root"
        assert float(mean.abs().max()) > 0.05 or level.name == "inner_root_2"  # of patients, whom rho explains, too


@pytest.mark.parametrize("correlation", ["", "ar1(visit | ward)"])
def test_groups_inside_have_the_closed_form(correlation: str) -> None:
    """Of more groups than any fitted client has, by dense matrices; of a group without rows it is the prior."""
    df, rng = wards(), np.random.default_rng(3)
    fit = mixed_model(df, "y ~ x + (1 | site/ward)", draws=0, correlation=correlation)
    estimate = estimates(fit)
    given = pd.DataFrame({"site": "new", "ward": np.repeat(list("dbace"), [3, 2, 1, 4, 2]), "x": rng.normal(size=12)})
    given = given.assign(visit=given.groupby("ward").cumcount() * 2, y=rng.normal(size=12) + 2)
    same = given.ward.to_numpy()[:, None] == given.ward.to_numpy()
    gap = np.abs(given.visit.to_numpy()[:, None] - given.visit.to_numpy())
    inside = same * estimate.get("rho(residual)", 0.0) ** gap  # 0 ** 0 is 1
    sd, sd_ward = estimate["sd(Intercept)"], estimate["sd(Intercept | ward)"]
    z = np.column_stack([np.ones(12), *(given.ward == ward for ward in "abcde")]).astype(float)
    spread = np.diag([sd**2, *[sd_ward**2] * 5])
    weight = spread @ z.T @ np.linalg.inv(z @ spread @ z.T + estimate["sd(residual)"] ** 2 * inside)
    effects = weight @ (given.y - estimate["Intercept"] - estimate["x"] * given.x)
    covariance = spread - weight @ z @ spread
    new = pd.DataFrame({"site": "new", "ward": [*"cad", "z"], "x": [0.0, 1.0, -1.0, 2.0]})
    wanted = estimate["Intercept"] + estimate["x"] * new.x + effects[0] + np.array([*effects[[3, 1, 4]], 0])
    np.testing.assert_allclose(fit.predict(new, "new", None, given=given)["mean"], wanted, rtol=1e-7)
    personal = run_given(fit.run, given, "new").personal
    variances = personal["c_root"][0, :, 0, 0].square().numpy()
    np.testing.assert_allclose(variances, [sd_ward**2, *covariance.diagonal()[1:]], rtol=1e-6)
    np.testing.assert_allclose(float(personal["b_root"][0, 0, 0]) ** 2, covariance[0, 0], rtol=1e-6)


def test_draws_inside_are_those_of_a_fitted_client() -> None:
    """A ward with rows is known better than one without, and the fit that is read without its rows says the same."""
    df = wards()
    fit = mixed_model(df, "y ~ x + (1 | site/ward)", draws=400)
    own = df[df.site == "s3"]
    new = own.assign(site="new")
    predictions, wanted = fit.predict(new, "new", given=new), fit.predict(own)
    for end in ("mean", "lower", "upper"):
        assert (abs(predictions[end] - wanted[end]) < 0.2 * (wanted.upper - wanted.lower)).all(), end
    other = fit.predict(new.assign(ward="z"), "new", given=new)
    assert ((other.upper - other.lower) > 1.3 * (predictions.upper - predictions.lower)).all()
