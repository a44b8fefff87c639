"""Smooth terms, whose penalised part is random effects that all rows share: beside mgcv, and dense densities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import BSpline
from scipy.stats import multivariate_normal
from support.smooth import waves

from hierfl import load_mixed_model, mixed_model
from hierfl.data.formula.smooth import Smooth
from hierfl.errors import UserError

FORMULA = "y ~ s(x, k=10, lower=0, upper=10) + z + (1 | site)"
#: knots <- list(x = 10 / 7 * (-3:10))
#: m <- gam(y ~ s(x, bs = "ps", k = 10, m = c(2, 2)) + z + s(site, bs = "re"), data = waves(), knots = knots,
#:          method = "REML"), mgcv 1.8.41: gam.vcomp(m, rescale = TRUE) of x, site and rows; coef(m)["z"], its error;
#: predict(m, new(), exclude = "s(site)", se.fit = TRUE)
SDS, SLOPE = [1.85463099, 0.71599558, 0.40208116], (0.478784003, 0.027354477)
CURVE = [0.4694767, 1.3606472, 0.2605166, 2.6865275, 2.2939453]
CURVE_ERRORS = [0.2697365, 0.2616911, 0.2626950, 0.2616638, 0.3049356]


def new() -> pd.DataFrame:
    return pd.DataFrame({"x": [0.5, 2, 4.5, 7, 9.9], "z": 0.0, "site": "s0"})


def penalised(x: np.ndarray, k: int = 10, lower: float = 0.0, upper: float = 10.0) -> np.ndarray:
    """Columns of the penalty's eigenvectors, as mgcv's smooth2random has them: another basis of the same model."""
    step = (upper - lower) / (k - 3)
    b = BSpline.design_matrix(x, lower + step * np.arange(-3, k + 1), 3).toarray()
    d = np.diff(np.eye(k), 2, axis=0)
    values, vectors = np.linalg.eigh(d.T @ d)
    return b @ vectors[:, 2:] / np.sqrt(values[2:])


def density(df: pd.DataFrame, curve: np.ndarray, sd: np.ndarray, population: str) -> tuple[float, np.ndarray]:
    """The height at its best coefficients, and these; sd of the curve, of sites, and of rows."""
    site = pd.get_dummies(df.site).to_numpy(dtype=float)
    v = sd[0] ** 2 * curve @ curve.T + sd[1] ** 2 * site @ site.T + sd[2] ** 2 * np.eye(len(df))
    x = np.column_stack([np.ones(len(df)), df.x, df.z])
    information = x.T @ np.linalg.solve(v, x)
    best = np.linalg.solve(information, x.T @ np.linalg.solve(v, df.y))
    height = multivariate_normal(x @ best, v).logpdf(df.y)
    if population == "reml":
        height += 0.5 * (len(best) * np.log(2 * np.pi) - np.linalg.slogdet(information)[1])
    return float(height), best


@pytest.mark.parametrize("population", ["ml", "reml"])
def test_a_curve_as_mgcv_and_dense_densities_say(population: str) -> None:
    df = waves()
    fitted = mixed_model(df, FORMULA, population=population, draws=0)  # type: ignore[arg-type]
    table = fitted.summary().table.set_index("effect")
    beta = table.estimate[["Intercept", "x", "z"]].to_numpy()
    sd = table.estimate[["sd(s(x))", "sd(Intercept)", "sd(residual)"]].to_numpy()
    height, best = density(df, Smooth("x", 10, (0.0, 10.0)).basis(5.0, 1.0).columns(df.x.to_numpy()), sd, population)
    np.testing.assert_allclose(beta, best, rtol=1e-6, atol=1e-7)
    if population == "reml":  # which knows no straight lines in a curve's columns: that of the eigenvectors'
        assert density(df, penalised(df.x.to_numpy()), sd, population)[0] == pytest.approx(height, abs=1e-7)
        np.testing.assert_allclose(sd, SDS, rtol=1e-4)
        assert table.estimate["z"] == pytest.approx(SLOPE[0], abs=1e-6)
        assert table.standard_error["z"] == pytest.approx(SLOPE[1], rel=1e-4)
        np.testing.assert_allclose(fitted.predict(new(), level="population")["mean"], CURVE, atol=1e-4)
    assert fitted.log_likelihood == pytest.approx(height, abs=1e-7)


@pytest.mark.cpu(4, "a fit with a thousand draws")
def test_draws_know_the_curve_as_well_as_mgcv_says() -> None:
    """mgcv's errors are of known variances: a curve's shape beside its value at 4.5 has next to no other."""
    fitted = mixed_model(waves(), FORMULA, draws=1000)
    predictions = fitted.predict(new(), level="population", interval=0.9)
    np.testing.assert_allclose(predictions["mean"], CURVE, atol=0.03)
    errors = (predictions.upper - predictions.lower).to_numpy() / 2 / 1.645
    assert (errors > 0.95 * np.array(CURVE_ERRORS)).all()
    assert (errors < 1.3 * np.array(CURVE_ERRORS)).all()
    effects = fitted.ranef("s(x)")
    assert effects["s(x)"].tolist() == list("12345678")
    assert (effects.sd > 0).all()
    interval = fitted.summary().table.set_index("effect").loc["sd(s(x))"]
    assert interval.lower < SDS[0] < interval.upper


def test_a_curve_goes_on_as_a_straight_line() -> None:
    fitted = mixed_model(waves(), FORMULA, draws=0)
    far = pd.DataFrame({"x": [10.0, 11, 12, 0, -1, -2], "z": 0.0})
    values = fitted.predict(far, level="population")["mean"].to_numpy().reshape(2, 3)
    np.testing.assert_allclose(np.diff(values, 2), 0.0, atol=1e-9)
    at = pd.DataFrame({"x": [9.9999, 10.0, 10.0001], "z": 0.0})
    assert abs(np.diff(fitted.predict(at, level="population")["mean"], 2)[0]) < 1e-6


def test_knots_are_of_sums_unless_limits_are_said() -> None:
    x = waves().x.to_numpy()
    basis = Smooth("x", 7).basis(x.mean(), x.std())
    assert len(basis.knots) == 11
    np.testing.assert_allclose(basis.knots[[3, 7]], [x.mean() - 2 * x.std(), x.mean() + 2 * x.std()])
    limited = Smooth("x", 7, (0.0, 10.0)).basis(x.mean(), x.std())
    # beside straight lines it is the penalty's own basis, and has none of them between the limits
    lines = np.column_stack([np.ones(len(x)), x])
    ours, others = (z - lines @ np.linalg.lstsq(lines, z, rcond=None)[0] for z in (limited.columns(x), penalised(x, 7)))
    np.testing.assert_allclose(ours @ ours.T, others @ others.T, atol=1e-10)
    fine = (np.arange(20_000) + 0.5) / 2_000
    np.testing.assert_allclose(
        limited.columns(fine).T @ np.column_stack([np.ones(20_000), fine]) / 20_000, 0.0, atol=1e-6
    )


@pytest.mark.cpu(6, "fits with and without the rows, and their answers")
def test_calls_after_a_fit_have_the_curve_or_say_what_they_are_without(tmp_path: Path) -> None:
    df = waves()
    df["arm"] = np.where(np.arange(len(df)) % 2, "a", "b")
    fitted = mixed_model(df, f"{FORMULA} + arm", draws=0)
    own, everyone = fitted.fitted(), fitted.predict(df, level="client")["mean"]
    np.testing.assert_allclose(own, everyone, rtol=1e-8)
    np.testing.assert_allclose(df.y - own, fitted.residuals(kind="response"), atol=1e-9)
    drawn = fitted.simulate(n=200, level="new").to_numpy()
    curve = fitted.predict(df, level="population")["mean"].to_numpy()
    assert np.abs((drawn.mean(1) - curve) / drawn.std(1) * np.sqrt(200)).max() < 5
    contrast = fitted.contrast("arm").iloc[0]
    assert contrast.estimate == pytest.approx(-fitted.params["arm[b]"])
    for call, says in (
        (lambda: fitted.means("arm"), r"s\(x\) is beside them"),
        (lambda: fitted.contrast("x", at={"x": [1, 2]}), "'x' has a curve"),
        (fitted.icc, "is a curve: no R2"),
    ):
        with pytest.raises(UserError, match=says):
            call()  # type: ignore[no-untyped-call]
    fitted.save(tmp_path / "fit")
    again = load_mixed_model(tmp_path / "fit")
    pd.testing.assert_frame_equal(
        again.predict(new().assign(arm="a"), level="population"),
        fitted.predict(new().assign(arm="a"), level="population"),
    )
    fewer = fitted.refit(update="~ . - arm")
    assert fewer.log_likelihood == pytest.approx(mixed_model(df, FORMULA, draws=0).log_likelihood, abs=1e-6)
    straight = fitted.compare(mixed_model(df, "y ~ x + z + arm + (1 | site)", draws=0)).reference.iloc[1]
    assert straight == "half chi-squared(0), half chi-squared(1), whose p is too large: a curve is a single group"


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("y ~ s(x) + s(x) + (1 | site)", "is there twice"),
        ("y ~ s(x) * z + (1 | site)", "is a term by itself"),
        ("y ~ z + (s(x) | site)", "is a term by itself"),
        ("y ~ 0 + s(x) + (1 | site)", "needs an intercept"),
        ("y ~ s(arm) + (1 | site)", "is of a column of numbers"),
        ("y ~ s(x, bs='cr') + (1 | site)", r"a smooth term is s\(x, k=10\)"),
        ("y ~ s(x, k=3) + (1 | site)", "a whole number from 4 to 40"),
        ("y ~ s(x, lower=0) + (1 | site)", "two limits"),
        ("y ~ z + (1 | site); dispersion ~ s(x)", "fixed effects alone"),
        ("s(y) ~ z + (1 | site)", r"s\(y\) is"),
        ("y ~ te(x, z) + (1 | site)", r"of one column: s\(x, k=10\)"),
    ],
)
def test_what_is_not_understood_is_one_line(formula: str, says: str) -> None:
    df = waves()
    df["arm"] = np.where(np.arange(len(df)) % 2, "a", "b")
    with pytest.raises(UserError, match=says):
        mixed_model(df, formula, draws=0)
