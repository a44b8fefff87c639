"""Structures in one model as R fits them: curves, levels inside, items that cross the clients, formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal, poisson
from support.wards import wards

from hierfl import mixed_model
from hierfl.data.formula.smooth import Smooth
from hierfl.errors import UserError

S, Z = "s(x, k=10, lower=0, upper=10)", "s(z, k=7, lower=0, upper=10)"


def fitted(formula: str, **how: Any) -> tuple[Any, pd.DataFrame]:
    """A fit without draws, and its table by effect."""
    df = wards()
    slopes = df.site.map(dict(zip(sorted(df.site.unique()), np.array([-3, 1, 2, -1, 3, -2]) / 10, strict=True)))
    fit = mixed_model(df.assign(slope=slopes), formula, draws=0, **how)
    return fit, fit.summary().table.set_index("effect")


def check(fit: Any, table: pd.DataFrame, log_likelihood: float, beta: dict, sds: list[float]) -> None:
    """Coefficients {name: (estimate, error)}, standard deviations in the table's order, and the height, as R says."""
    assert fit.log_likelihood == pytest.approx(log_likelihood, abs=1e-4)
    for name, (estimate, error) in beta.items():
        assert table.estimate[name] == pytest.approx(estimate, abs=0.002 * error)
        assert table.standard_error[name] == pytest.approx(error, rel=0.015)  # glmmTMB's are of all numbers together
    of_levels = [name for name in table.index if name.startswith("sd(")]
    np.testing.assert_allclose(table.estimate[of_levels][: len(sds)], sds, rtol=1e-3)


#: d <- wards(); d$w <- interaction(d$site, d$ward, drop = TRUE), mgcv 1.8.41:
#: k <- list(x = 10 / 7 * (-3:10), z = 10 / 4 * (-3:7))
#: m <- gam(y ~ s(x, bs = "ps", k = 10, m = c(2, 2)) + s(z, bs = "ps", k = 7, m = c(2, 2)) + arm + s(site, bs = "re"),
#:          data = d, knots = k, method = "REML"), and without s(z), with s(w, bs = "re"):
#: with d$y <- d$y + c(-3, 1, 2, -1, 3, -2)[d$site] / 10 * (d$z - 5), z + s(site, z, bs = "re") in s(z)'s place;
#: gam.vcomp(m, rescale = TRUE); coef(m)["armb"], its error; predict(m, new, exclude = c("s(site)", "s(w)"))
CURVES = {
    f"y ~ {S} + {Z} + arm + (1 | site)": (
        {"sd(s(x))": 2.281677677, "sd(s(z))": 1.304716161, "sd(Intercept)": 1.171747168, "sd(residual)": 1.041568129},
        (-0.05334551756, 0.143805658), [1.6750083949, 1.3653058731, -1.1812945938, 0.9071173263, 0.9239849147],
    ),
    f"y ~ {S} + arm + (1 | site/ward)": (
        {"sd(s(x))": 2.2982540036, "sd(Intercept)": 1.1937581830, "sd(Intercept | ward)": 0.6584551037,
         "sd(residual)": 1.1035682810},
        (-0.00418192668, 0.1563364958), [1.1654574625, 1.6332736699, -0.2870628699, 1.4105681931, -0.2834650969],
    ),
    f"I(y + slope * (z - 5)) ~ {S} + z + arm + (1 + z || site)": (
        {"sd(s(x))": 2.1710452577, "sd(Intercept)": 1.6001480882, "sd(z)": 0.1952461175, "sd(residual)": 1.2482910217},
        (-0.06108355358, 0.1738742352), [1.1606584279, 1.6387124678, -0.2202779022, 1.3362184888, 0.0031421772],
    ),
}  # fmt: skip


@pytest.mark.parametrize("formula", CURVES)
def test_curves_beside_curves_slopes_and_levels_inside_are_mgcvs(formula: str) -> None:
    sds, (slope, error), curve = CURVES[formula]
    fit, table = fitted(formula, population="reml")
    np.testing.assert_allclose(table.estimate[list(sds)], list(sds.values()), rtol=1e-4)
    assert table.estimate["arm[b]"] == pytest.approx(slope, abs=1e-5)
    assert table.standard_error["arm[b]"] == pytest.approx(error, rel=1e-4)
    new = pd.DataFrame({"x": [0.5, 2, 4.5, 7, 9.9], "z": [1.0, 3, 5, 7, 9], "arm": "a"})
    np.testing.assert_allclose(fit.predict(new, level="population")["mean"], curve, atol=1e-4)


#: lmer(y ~ x + (1 | site/ward) + (1 | item), d, REML = FALSE), likewise of the others; lme4 1.1.31
NESTED = {
    "y ~ x + (1 | site/ward) + (1 | item)": (
        -377.0507563, {"x": (-0.0197488081, 0.02994337145)},
        [1.1260876930, 0.5948141865, 0.5297514200, 1.2478694860],
    ),
    "y ~ x + (1 | site/ward/patient) + (1 | item)": (
        -373.6813658, {"x": (-0.01780946896, 0.02927211217)},
        [1.1263494727, 0.4708678912, 0.5408114963, 0.5328592171, 1.1814934855],
    ),
    "y ~ x + (1 | site/ward) + (1 | site:item)": (
        -382.8315998, {"x": (-0.02544702875, 0.03066372769)},
        [1.0789810255, 0.6298145110, 0.5066942054, 1.2530467547],
    ),
}  # fmt: skip


@pytest.mark.parametrize("formula", NESTED)
def test_items_beside_levels_inside_are_lme4s(formula: str) -> None:
    check(*fitted(formula, population="ml"), *NESTED[formula])


def test_items_beside_levels_inside_of_counts_are_glmmtmbs() -> None:
    """glmmTMB(n ~ x + (1 | site/ward) + (1 | item), d, family = poisson), 1.1.5: Laplace's approximation of all."""
    says = {"Intercept": (-0.267035640, 0.34300698218), "x": (-0.003329048, 0.02361610297)}
    fit, table = fitted("n ~ x + (1 | site/ward) + (1 | item)", family="poisson", population="ml")
    check(fit, table, -303.1923605, says, [0.59308264, 0.57066432, 0.30332700])


@pytest.mark.parametrize(
    ("formula", "log_likelihood", "says", "sds", "gamma"),
    [
        ("(1 | site) + (1 | item)", -382.9130992, (-0.03497854, 0.0316008666), [1.16336313, 0.54845003],
         [0.4148122, 0.3372156]),
        ("(1 | site/ward)", -384.5456537, (-0.02812751, 0.0313430490), [1.09457485, 0.63885158],
         [0.3636866, 0.4028594]),
        ("(1 | site/ward/patient)", -382.0331559, (-0.02854435, 0.0309612570), [1.10202398, 0.53083992, 0.52172974],
         [0.2768198, 0.3955595]),
    ],
)  # fmt: skip
def test_spreads_by_arm_beside_other_levels_are_glmmtmbs(
    formula: str, log_likelihood: float, says: tuple[float, float], sds: list[float], gamma: list[float]
) -> None:
    """glmmTMB(y ~ x + ..., dispformula = ~arm, data = d), 1.1.5, whose formula is of the variance's logarithm."""
    fit, table = fitted(f"y ~ x + {formula}", dispersion="~ arm", population="ml")
    check(fit, table, log_likelihood, {"x": says}, sds)
    of_arm = table.estimate[["dispersion:Intercept", "dispersion:arm[b]"]]
    np.testing.assert_allclose(of_arm, np.array(gamma) / 2, atol=1e-5)


@pytest.mark.parametrize(
    ("formula", "zeros", "log_likelihood", "says", "sds", "gamma"),
    [
        ("(1 | site/ward)", None, -286.8014236, (-0.0101292, 0.02551548534), [0.59484676, 0.49606549], [-0.7015909]),
        ("(1 | site/ward/patient)", "~ arm", -286.170932, (-0.009539155, 0.02598362299),
         [0.58402268, 0.49057763, 0.24448325], [-0.6141306, -0.2724119]),
    ],
)  # fmt: skip
def test_more_zeros_beside_levels_inside_are_glmmtmbs(
    formula: str, zeros: str | None, log_likelihood: float, says: tuple[float, float], sds: list[float],
    gamma: list[float],
) -> None:  # fmt: skip
    """glmmTMB(n ~ x + ..., ziformula = ~1 or ~arm, family = poisson, data = d), 1.1.5."""
    how = {"family": "zero-inflated-poisson", "zero_inflation": zeros, "population": "ml", "nodes": 1}
    fit, table = fitted(f"n ~ x + {formula}", **how)
    check(fit, table, log_likelihood, {"x": says}, sds)
    of_zeros = table.estimate[[name for name in table.index if name.startswith(("p(zero)", "zero_inflation:"))]]
    of_zeros = of_zeros if zeros else np.log(of_zeros / (1 - of_zeros))
    np.testing.assert_allclose(of_zeros, gamma, atol=1e-4)


def test_series_beside_three_levels_are_nlmes() -> None:
    """lme(y ~ x, d, random = ~1 | site/ward/patient, correlation = corAR1(form = ~t | site/ward/patient),
    method = "ML"), nlme 3.1.162, tolerance = 1e-9, msTol = 1e-10. Patients of other wards have the same names.
    """
    fit, table = fitted("y ~ x + (1 | site/ward/patient)", correlation="ar1(t | patient)", population="ml")
    sds = [1.1064113063, 0.4941177089, 0.5579656314, 1.2651868871]
    assert fit.log_likelihood == pytest.approx(-383.5486714, abs=1e-4)
    of_levels = [name for name in table.index if name.startswith("sd(")]
    np.testing.assert_allclose(table.estimate[of_levels], sds, rtol=1e-3)
    assert table.estimate["rho(residual)"] == pytest.approx(-0.03564810072, abs=1e-4)
    assert table.estimate["x"] == pytest.approx(-0.01928636897, abs=1e-5)


def dense(df: pd.DataFrame, table: pd.DataFrame) -> float:
    """The restricted likelihood of two curves, sites, wards and items, of residuals that correlate within patients."""
    estimate, v = table.estimate, np.zeros((len(df), len(df)))
    for name, groups in {"sd(Intercept)": df.site, "sd(Intercept | ward)": df.site + df.ward}.items():
        v += estimate[name] ** 2 * (groups.to_numpy()[:, None] == groups.to_numpy())
    v += estimate["sd(Intercept | item)"] ** 2 * (df["item"].to_numpy()[:, None] == df["item"].to_numpy())
    for column, k in (("x", 10), ("z", 7)):
        z = Smooth(column, k, (0.0, 10.0)).basis(5.0, 1.0).columns(df[column].to_numpy())
        v += estimate[f"sd(s({column}))"] ** 2 * z @ z.T
    whose, time, rho = (df.site + df.ward + df.patient).to_numpy(), df.t.to_numpy(), estimate["rho(residual)"]
    near = (whose[:, None] == whose) * rho ** np.abs(time[:, None] - time)
    v += estimate["sd(residual)"] ** 2 * near
    x = np.column_stack([np.ones(len(df)), df.x, df.z])
    information = x.T @ np.linalg.solve(v, x)
    best = np.linalg.solve(information, x.T @ np.linalg.solve(v, df.y))
    height = multivariate_normal(x @ best, v).logpdf(df.y)
    return float(height + 0.5 * (3 * np.log(2 * np.pi) - np.linalg.slogdet(information)[1]))


def test_curves_items_and_series_together_are_those_of_a_dense_density() -> None:
    """No R package has all of them: at the estimates the height is the density's, and nowhere near it is higher."""
    df = wards()
    df["p"] = df.site + df.ward + df.patient
    formula = f"y ~ {S} + {Z} + (1 | site/ward) + (1 | item)"
    fit = mixed_model(df, formula, correlation="ar1(t | p)", population="reml", draws=0)
    table = fit.summary().table.set_index("effect")
    top = dense(df, table)
    assert fit.log_likelihood == pytest.approx(top, abs=1e-6)
    for name in [name for name in table.index if name.startswith(("sd(", "rho"))]:
        for share in (0.98, 1.02):
            moved = table.copy()
            moved.loc[name, "estimate"] *= share
            assert dense(df, moved) < top


@pytest.mark.parametrize(
    ("formula", "how", "says"),
    [
        ("y ~ s(x) + (1 | arm/site)", {"client": "site"}, r"s\(x\) is a curve of all clients"),
        ("y ~ x + (1 | arm/site) + (1 | item)", {"client": "site"}, "lie in groups of 'arm'"),
        ("y ~ x + (1 | site) + (1 | item) + (1 | t)", {}, "one factor that crosses the clients"),
        ("n ~ s(x) + (1 | site/ward)", {"family": "poisson", "nodes": 9}, "leave nodes out"),
        ("y ~ s(x) + s(x, k=5) + (1 | site)", {}, r"s\(x\) is there twice"),
    ],
)
def test_what_does_not_go_together_is_one_line(formula: str, how: dict, says: str) -> None:
    df = wards()
    df["arm"] = df.site.map(lambda name: "a" if name in ("s0", "s1", "s2") else "b")
    with pytest.raises(UserError, match=says):
        mixed_model(df, formula, draws=0, **how)


def laplace(df: pd.DataFrame, table: pd.DataFrame, basis: np.ndarray) -> float:
    """Of all effects at once, densely, of counts with a curve, sites and wards."""
    estimate, parts = table.estimate, [table.estimate["sd(s(x))"] * basis]
    for name, groups in {"sd(Intercept)": df.site, "sd(Intercept | ward)": df.site + df.ward}.items():
        parts.append(estimate[name] * pd.get_dummies(groups).to_numpy(dtype=float))
    z, y = np.hstack(parts), df.n.to_numpy(dtype=float)
    fixed, u = (estimate["Intercept"] + estimate["x"] * df.x).to_numpy(), np.zeros(sum(part.shape[1] for part in parts))
    for _ in range(50):
        rate = np.exp(fixed + z @ u)
        u += np.linalg.solve(np.eye(len(u)) + (z.T * rate) @ z, z.T @ (y - rate) - u)
    curvature = np.eye(len(u)) + (z.T * np.exp(fixed + z @ u)) @ z
    return float(poisson(np.exp(fixed + z @ u)).logpmf(y).sum() - u @ u / 2 - np.linalg.slogdet(curvature)[1] / 2)


def test_a_curve_of_counts_beside_wards_is_laplaces_approximation_of_all_effects() -> None:
    df = wards()
    fit = mixed_model(df, "n ~ s(x, k=5, lower=0, upper=10) + (1 | site/ward)", family="poisson", draws=0,
                        population="ml")  # fmt: skip
    table, basis = fit.summary().table.set_index("effect"), Smooth("x", 5, (0.0, 10.0)).basis(5.0, 1.0)
    columns = basis.columns(df.x.to_numpy())
    top = laplace(df, table, columns)
    assert fit.log_likelihood == pytest.approx(top, abs=1e-5)
    for name in table.index:
        for step in (-0.05, 0.05):
            moved = table.copy()
            moved.loc[name, "estimate"] += step * table.standard_error[name]
            assert laplace(df, moved, columns) < top + 1e-6
