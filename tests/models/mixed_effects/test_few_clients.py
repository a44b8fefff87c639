"""What is printed of coefficients by default holds for few clients: restricted estimates, degrees of freedom, tests."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.mixed import table as gaussian_table
from support.mixed_families import counts

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel
from hierfl.models.mixed_effects.likelihood import containment
from hierfl.models.mixed_effects.report import compare
from hierfl.models.mixed_effects.report.simulating import watched_until


def clients(seed: int, sizes: list[int]) -> pd.DataFrame:
    """A gaussian response, a covariate of rows, and one of clients that has no effect."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=len(g)) + 2
    y = rng.normal(0, 1, len(sizes))[g] + rng.normal(0, 1.2, len(sizes))[g] * x + rng.normal(size=len(g))
    return pd.DataFrame({"site": [f"s{k}" for k in g], "u": g % 2, "x": x, "y": y})


def shared(fit: FittedMixedModel, name: str) -> torch.Tensor:
    return fit.run.fitted.shared[f"effects.{name}"]


def test_auto_is_reml_of_a_gaussian_response() -> None:
    df = gaussian_table(8)
    fit, reml = (mixed_model(df, "y ~ x + (1 | site)", draws=0, **how) for how in ({}, {"population": "reml"}))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(fit.summary().table, reml.summary().table)
    assert "restricted log likelihood" in str(fit)
    assert fit.method.settings.population == "reml"


def test_of_balanced_clients_the_test_is_the_exact_one() -> None:
    """A covariate of clients is tested by a t test of the clients' means, whatever was asked for."""
    df = clients(3, [5] * 6)
    df["y"] -= df.x  # no slopes: only what a mean of five has of them
    means = df.groupby("site", sort=False)[["y", "u"]].mean()
    exact = stats.ttest_ind(means.y[means.u == 1], means.y[means.u == 0])
    small = mixed_model(df, "y ~ 1 + (1 | site)", draws=0)
    for how in ({}, {"kenward_roger": True}, {"population": "ml"}):
        fit = mixed_model(df, "y ~ u + (1 | site)", draws=0, **how)  # type: ignore[arg-type]
        comparison = fit.compare(small).iloc[1]
        assert comparison.statistic == pytest.approx(exact.statistic**2, rel=1e-6)
        assert comparison.p == pytest.approx(exact.pvalue, rel=1e-6)
        assert comparison.reference.startswith("F(1, 4.0)")
        row = fit.summary().table.set_index("effect").loc["u"]
        if how != {"population": "ml"}:
            assert (row.p, row.df) == (pytest.approx(exact.pvalue, rel=1e-6), pytest.approx(4, rel=1e-6))


def dense(df: pd.DataFrame, fit: FittedMixedModel) -> tuple[np.ndarray, float, float]:
    """Kenward and Roger's standard errors, F and its denominator's degrees of freedom of u and x:u, as they define it.

    (Biometrics 1997; Halekoh and Hojsgaard, JSS 2014, for F.)
    """
    e = fit.summary().table.set_index("effect").estimate
    x, u, same = df.x.to_numpy(), df.u.to_numpy(), np.equal.outer(df.site.to_numpy(), df.site.to_numpy()).astype(float)
    design = np.column_stack([np.ones(len(df)), u, x, u * x])
    parts = [same, same * np.add.outer(x, x), same * np.outer(x, x), np.eye(len(df))]
    a, b = e["sd(Intercept)"], e["sd(x)"]
    of = [a**2, e["corr(Intercept, x)"] * a * b, b**2, e["sd(residual)"] ** 2]
    inverse = np.linalg.inv(sum(s * part for s, part in zip(of, parts, strict=True)))
    phi = np.linalg.inv(design.T @ inverse @ design)
    left = inverse - inverse @ design @ phi @ design.T @ inverse
    information = np.array([[0.5 * np.trace(left @ i @ left @ k) for k in parts] for i in parts])
    w = np.linalg.inv(information)
    p = [-design.T @ inverse @ i @ inverse @ design for i in parts]
    more = sum(
        w[i, k] * (design.T @ inverse @ parts[i] @ inverse @ parts[k] @ inverse @ design - p[i] @ phi @ p[k])
        for i in range(4) for k in range(4)
    )  # fmt: skip
    adjusted = phi + 2 * phi @ more @ phi
    pick = np.eye(4)[[1, 3]]
    theta = pick.T @ np.linalg.inv(pick @ phi @ pick.T) @ pick
    along = [theta @ phi @ matrix @ phi for matrix in p]
    a_1 = sum(w[i, k] * np.trace(along[i]) * np.trace(along[k]) for i in range(4) for k in range(4))
    a_2 = sum(w[i, k] * np.trace(along[i] @ along[k]) for i in range(4) for k in range(4))
    b_ = (a_1 + 6 * a_2) / 4
    g = (3 * a_1 - 6 * a_2) / (4 * a_2)
    c = np.array([g, 2 - g, 4 - g]) / (6 + 2 * (1 - g))
    rho = 0.5 * ((1 - a_2 / 2) / (1 - c[1] * b_)) ** 2 * (1 + c[0] * b_) / (1 - c[2] * b_)
    df_2 = 4 + 4 / (2 * rho - 1)
    beta = e[["u", "u:x"]].to_numpy()
    wald = beta @ np.linalg.inv(pick @ adjusted @ pick.T) @ beta / 2
    return np.sqrt(np.diag(adjusted)), df_2 * (1 - a_2 / 2) / (df_2 - 2) * wald, df_2


def test_kenward_and_rogers_are_those_of_dense_matrices() -> None:
    df = clients(5, [6, 5, 8, 7, 6, 7, 9, 5])
    fit = mixed_model(df, "y ~ u * x + (1 + x | site)", draws=0, kenward_roger=True)
    errors, f, df_2 = dense(df, fit)
    table = fit.summary().table
    assert list(table.effect[:4]) == ["Intercept", "u", "x", "u:x"]
    np.testing.assert_allclose(table.standard_error[:4], errors, rtol=1e-5)
    assert (errors > mixed_model(df, fit.formula, draws=0).summary().table.standard_error[:4]).all()
    comparison = fit.compare(mixed_model(df, "y ~ x + (1 + x | site)", draws=0)).iloc[1]
    assert comparison.statistic == pytest.approx(f, rel=1e-4)
    assert comparison.reference == f"F(2, {df_2:.1f}), Kenward and Roger"


def test_a_variance_of_zero_is_taken_for_known() -> None:
    """Kenward and Roger's covariance is that of the model without the slopes that vary by nothing."""
    rng, site = np.random.default_rng(5), np.repeat(np.arange(8), 6)
    x = rng.normal(size=48)
    y = 1 + 0.5 * x + rng.normal(size=8)[site] + rng.normal(size=48)
    df = pd.DataFrame({"site": [f"s{k}" for k in site], "x": x, "y": y})
    fit, smaller = (
        mixed_model(df, f"y ~ x + ({effects} | site)", draws=0, kenward_roger=True) for effects in ("1 + x |", "1")
    )
    assert fit.summary().table.set_index("effect").estimate["sd(x)"] == 0
    np.testing.assert_allclose(fit.vcov(), smaller.vcov(), rtol=1e-5)


@pytest.mark.cpu(6, "seven fits")
@pytest.mark.parametrize("family", ["binomial", pytest.param("negative-binomial", marks=pytest.mark.slow)])
def test_restricted_estimates_are_where_the_criterion_is_highest(family: str) -> None:
    """The criterion at spreads that are held, log |I| included, of which the search must have found the highest."""
    df, formula = (
        counts(family, 8).assign(u=lambda d: d.site.astype("category").cat.codes % 2),
        "y ~ u + x + (1 | site)",
    )
    fit = mixed_model(df, formula, family=family, draws=0)  # type: ignore[arg-type]
    best = shared(fit, "restricted")
    assert float(shared(fit, "root").abs()) < float(best[0].abs())

    def criterion(sd: float) -> tuple[float, float]:
        """And the variance of u's coefficient."""
        fixed_fit = mixed_model(df, formula, family=family, population="ml", draws=0, prior="fixed", sd_0=sd)  # type: ignore[arg-type]
        curvature = shared(fixed_fit, "curvature")[-3:, -3:]
        return float(shared(fixed_fit, "height") - 0.5 * torch.logdet(curvature)), float(torch.inverse(curvature)[1, 1])

    sd = abs(float(best[0]))
    (below, least), (top, variance), (above, most) = (criterion(sd * factor) for factor in (0.97, 1.0, 1.03))
    curve = (below - 2 * top + above) / 0.03**2
    assert curve < 0
    # Newton's step from there, relative to the spread; another number of the response's own moves with it
    assert abs((above - below) / 0.06 / curve) < (2e-3 if family == "binomial" else 2e-2)
    restricted = mixed_model(df, formula, family=family, population="reml", draws=0)  # type: ignore[arg-type]
    table = restricted.summary().table.set_index("effect")
    assert table.estimate["sd(Intercept)"] == pytest.approx(sd, rel=1e-9)
    assert "restricted log likelihood" in str(restricted)
    ours = fit.summary().table.set_index("effect")
    np.testing.assert_allclose(table.standard_error[:3], ours.standard_error[:3], rtol=1e-9)
    assert ours.estimate["sd(Intercept)"] < sd
    plain = mixed_model(df, formula, family=family, population="ml", draws=0).summary().table.set_index("effect")  # type: ignore[arg-type]
    np.testing.assert_allclose(plain.estimate, ours.estimate, rtol=1e-9)
    assert ours.standard_error["u"] > 1.02 * plain.standard_error["u"]
    satterthwaite = -2 * variance**2 * curve / ((most - least) / 0.06) ** 2
    # the search knows the criterion's curvature from its last steps, and v has what is not known of the spread, too
    assert ours.df["u"] == pytest.approx(min(6.0, satterthwaite), rel=0.05)
    assert ours.df["Intercept"] <= 6.0
    if family == "binomial":
        assert ours.df["u"] < 6.0
    assert np.isinf(ours.df["x"])
    assert np.isinf(plain.df["u"])


@pytest.mark.slow
@pytest.mark.cpu(5, "three fits with levels")
def test_degrees_of_freedom_are_those_of_the_groups_that_a_coefficient_is_learned_from() -> None:
    rng = np.random.default_rng(2)
    region, site, patient = (np.repeat(np.arange(k), 96 // k) for k in (4, 12, 48))
    df = pd.DataFrame({"region": region, "site": site, "patient": patient}).astype(str)
    df["r"], df["u"], df["p"], df["x"] = (
        region % 2,
        rng.normal(size=12)[site],
        rng.normal(size=48)[patient],
        rng.normal(size=96),
    )
    df["y"] = rng.poisson(np.exp(1 + 0.5 * rng.normal(size=12)[site]))
    how: dict = {"family": "poisson", "draws": 0, "nodes": 1}

    def df_of(formula: str, **more: str) -> dict[str, float]:
        fit = mixed_model(df, formula, **how, **more)
        sums = {name: shared(fit, name) for name in ("counts", *containment.sizes(fit.method))}
        degrees = containment.degrees_of_freedom(fit.method, sums.pop("counts"), sums)
        printed = fit.summary().table.df[: len(degrees)]
        assert (printed <= degrees.numpy() + 1e-12).all()
        assert (np.isinf(printed) == np.isinf(degrees.numpy())).all()
        return dict(zip(fit.method.network.fixed, degrees.tolist(), strict=True))

    inside = df_of("y ~ u + p + x + (1 | site/patient)")
    assert (inside["Intercept"], inside["u"]) == (10, 10)
    assert inside["p"] == 48 - 12 - 1
    assert np.isinf(inside["x"])
    slopes = df_of("y ~ x * u + (1 + x | site)")
    assert (slopes["Intercept"], slopes["u"], slopes["x"], slopes["x:u"]) == (10, 10, 10, 10)
    above = df_of("y ~ r + u + x + (1 | region/site)", client="site")
    assert (above["Intercept"], above["r"]) == (2, 2)
    assert above["u"] == 12 - 4 - 1
    assert np.isinf(above["x"])


@pytest.mark.parametrize("size", [1.0, 0.1])
def test_a_meta_analysis_of_few_studies_by_hand(size: float) -> None:
    """Of the smaller effects the spread is zero, and then nothing that is estimated is in a standard error."""
    df = pd.DataFrame({"study": [*"abcde"], "se": [0.3, 0.7, 0.4, 0.5, 0.25], "y": np.array([-1, 0.5, 0.2, -0.3, 1.1])})
    df["y"] *= size
    plain, wider = (
        mixed_model(df, "y ~ 1 + (1 | study)", known_se="se", draws=0, kenward_roger=asked) for asked in (False, True)
    )
    tau = plain.summary().table.estimate[1]
    assert bool(tau == 0) is (size < 1)
    w = 1 / (df.se.to_numpy() ** 2 + tau**2)
    projected = np.diag(w) - np.outer(w, w) / w.sum()
    slope, trace = (w**2).sum() / w.sum() ** 2, float((projected @ projected).trace())  # of 1 / sum w, by tau^2
    away = projected @ df.y
    df_plain = 2 / w.sum() ** 2 / slope**2 * (away @ projected @ away - trace / 2) if tau else np.inf
    df_wider = trace / (w.sum() * slope) ** 2 if tau else np.inf
    more = 4 / trace * ((w**3).sum() - (w**2).sum() ** 2 / w.sum()) / w.sum() if tau else 0.0
    for fit, error, degrees in ((plain, 1.0, df_plain), (wider, 1 + more, df_wider)):
        row = fit.summary().table.iloc[0]
        assert row.standard_error == pytest.approx(np.sqrt(error / w.sum()), rel=1e-5)
        assert row.df == pytest.approx(degrees, rel=1e-4)
        assert fit.test("Intercept = 0").p[0] == pytest.approx(row.p, rel=1e-6)
        assert (fit.test("Intercept = 0").reference[0] == "chi-squared(1)") is (size < 1)


@pytest.mark.slow
def test_a_covariate_of_clients_is_compared_by_a_bootstrap() -> None:
    df = counts("binomial", 8).assign(u=lambda d: d.site.astype("category").cat.codes % 2)
    how: dict = {"family": "binomial", "draws": 0, "nodes": 1}
    small, large = (mixed_model(df, f"y ~ x{more} + (1 | site)", **how) for more in ("", " + u"))
    bootstrap = large.compare(small, replicates=9).iloc[1]
    plain = large.compare(small, test="likelihood-ratio").iloc[1]
    assert bootstrap.reference == "9 simulated tables of the smaller model"
    assert bootstrap.statistic == plain.statistic
    assert bootstrap.p in [pytest.approx(k / 10) for k in range(1, 11)]
    assert bootstrap.p == small.compare(large, replicates=9).p.iloc[1]
    rows = mixed_model(df, "y ~ 1 + (1 | site)", **how)
    assert small.compare(rows).reference.iloc[1] == "chi-squared(1)"


@pytest.mark.cpu(3, "two fits, and two tables simulated")
def test_a_long_bootstrap_says_so_and_nothing_of_simulated_clients(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    df = counts("binomial", 8).assign(u=lambda d: d.site.astype("category").cat.codes % 2)
    how: dict = {"family": "binomial", "draws": 0, "nodes": 1, "population": "ml"}
    small, large = (mixed_model(df, f"y ~ x{more} + (1 | site)", **how) for more in ("", " + u"))
    monkeypatch.setattr(compare, "ANNOUNCED_SECONDS", 0.0)
    monkeypatch.setattr("hierfl.inference.run.watched.Watched.lines", property(lambda self: ["s1 stands out"]))
    caplog.clear()
    large.compare(small, replicates=2)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the test fits both models to 2 simulated tables, for about ")
    assert not logging.getLogger("hierfl").disabled


def test_a_bootstrap_is_refused_where_a_row_stands_for_several() -> None:
    df = counts("poisson", 6).assign(u=lambda d: d.site.astype("category").cat.codes % 2, w=3)
    how: dict = {"family": "poisson", "draws": 0, "nodes": 1, "weights": "w"}
    small, large = (mixed_model(df, f"y ~ x{more} + (1 | site)", **how) for more in ("", " + u"))
    with pytest.raises(UserError, match=r"fit\.test\('u = 0'\)"):
        large.compare(small)
    assert large.compare(small, test="likelihood-ratio").reference.iloc[1] == "chi-squared(1)"
    assert large.test("u = 0").p.iloc[0] > 0


def test_simulated_times_are_seen_as_far_as_rows_are_watched() -> None:
    watched, event = torch.tensor([1.0, 2.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    late = torch.full((6,), 99.0)
    ends = torch.stack([watched_until(late, watched, event, seed)[0] for seed in range(3000)])
    assert bool((ends[:, event == 0] == watched[event == 0]).all())  # until the time that the row has
    assert bool((ends[:, 4:] == 99.0).all())  # after the last end nothing is known
    # Kaplan and Meier: 1 of the 4 that are watched beyond 2 or end there ends at 2, and 1 of 3 at 3
    for row in (0, 2):
        shares = [float((ends[:, row] == end).float().mean()) for end in (2.0, 3.0, 99.0)]
        np.testing.assert_allclose(shares, [1 / 4, 1 / 4, 1 / 2], atol=0.03)
    times, seen = watched_until(torch.full((6,), 0.5), watched, event, 0)
    assert bool(seen.all())
    assert times.tolist() == [0.5] * 6
    assert not watched_until(late, watched, event, 0)[1][event == 0].any()
    assert bool(watched_until(late, watched, torch.ones(6), 0)[1].all())  # nobody's watch has ended


@pytest.mark.slow
def test_a_bootstrap_of_times_keeps_how_long_each_client_is_watched() -> None:
    """Had every row that has no event ended at its simulated time, clients watched for less would differ in rate."""
    rng, u = np.random.default_rng(37), np.repeat(np.arange(12), 8) % 2
    t, end = rng.exponential(np.exp(-0.9 * u)), np.where(u, 3.0, 0.3)
    df = pd.DataFrame({"site": np.repeat([f"s{k:02d}" for k in range(12)], 8), "u": u, "t": np.minimum(t, end)})
    how: dict = {"family": "exponential", "event": "seen", "draws": 0, "nodes": 1}
    small, large = (
        mixed_model(df.assign(seen=(t <= end).astype(int)), f"t ~ {x} + (1 | site)", **how) for x in ("1", "u")
    )
    ratio = large.compare(small, test="likelihood-ratio").p.iloc[1]
    assert ratio < 0.05
    assert large.compare(small, replicates=19).p.iloc[1] <= 0.2
