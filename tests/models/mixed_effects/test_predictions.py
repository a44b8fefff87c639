"""Predictions of mixed models, from other chunks and rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from support.mixed import covariance, estimates, fitted, random_effects, table
from support.mixed_families import counts
from support.representatives import of_all

from hierfl import UserError, mixed_model
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models.mixed_effects.method import MixedEffects


def test_chunks_and_predictions() -> None:
    df = table(12)
    whole = fitted(df, "y ~ 1 + x + (1 + x | site)")
    again = fit(whole.fitted.method, whole.fitted.federation, rounds=100, chunk=1, dtype=torch.float64, progress=False)
    for name, value in whole.shared.items():
        # A slope at the maximum is what rounding has left of it.
        assert torch.allclose(value, again.shared[name], rtol=1e-7, atol=1e-6), name
    x = np.array([[1.0, 2.0, 1.0, 2.0]])
    beta, b = estimates(whole)[["Intercept", "x"]].to_numpy(), random_effects(whole)[0][3]
    prediction = whole.predict(x, client="s03")[0]
    assert float(prediction[0]) == pytest.approx((beta + b) @ [1.0, 2.0], rel=1e-6)
    new = whole.predict_new_client(x, draws=4000)[0]
    assert abs(float(new[0]) - beta @ [1.0, 2.0]) < 0.2
    design = np.array([1.0, 2.0])
    spread = design @ covariance(whole) @ design + estimates(whole)["sd(residual)"] ** 2
    assert float(new[1]) == pytest.approx(spread**0.5, rel=0.05)


def test_the_global_model_knows_how_much_places_differ() -> None:
    """Without draws its score is that of N(x beta, z^T Sigma z + sigma^2); with them the population is not known."""
    fed, design = from_formula(table(30), "y ~ 1 + x + (1 + x | site)", test=0.3)
    run = fit(MixedEffects(design, draws=0), fed, 100, chunk=30, dtype=torch.float64, progress=False)
    x = fed.x[fed.global_test][:, :2]
    estimate = estimates(run)
    spread = ((x @ covariance(run)) * x).sum(1) + estimate["sd(residual)"] ** 2
    mean = x @ torch.tensor(estimate[["Intercept", "x"]].to_numpy())
    wanted = torch.distributions.Normal(mean, spread.sqrt()).log_prob(fed.y[fed.global_test])
    assert run.last()["gm_nll"] == pytest.approx(-float(wanted.mean()), rel=1e-9)
    assert 0.8 < run.last()["gm_coverage90"] < 0.98
    whole = fit(MixedEffects(design), fed, 100, chunk=30, dtype=torch.float64, progress=False)
    assert whole.last()["gm_nll"] == pytest.approx(-float(wanted.mean()), abs=0.05)
    assert run.last()["gm_coverage90"] - 0.02 < whole.last()["gm_coverage90"] < 0.98


def test_predictions_from_other_rows_of_the_table() -> None:
    df = table(8).assign(g=lambda d: np.where(np.arange(len(d)) % 2, "u", "v"))
    run = fitted(df, "y ~ scale(x) * g + (x | site)")
    new = df.iloc[[3, 8, 20]].drop(columns=["y", "site"])
    row = run.fitted.federation.about["reader"](new)
    beta, b = estimates(run).to_numpy()[:4], random_effects(run)[0][2]
    wanted = row[:, :4] @ beta + row[:, 4:] @ b
    np.testing.assert_allclose(run.predict(new, client="s02")[:, 0].numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(row[:, 1], (new.x - df.x.mean()) / df.x.std(ddof=0), rtol=1e-6)
    np.testing.assert_allclose(row[:, 5], new.x)
    own = df[df.site == "s02"]
    again = run.predict_new_client(new, given=(own, own.y), draws=0)
    # A client that joins with the rows of another one is that one, but for what its rows have said of the population.
    np.testing.assert_allclose(again[:, 0], run.predict(new, client="s02")[:, 0], rtol=1e-6)
    for rows, words in (
        (new.drop(columns="x"), "lacks column 'x'"),
        (new.assign(g="w"), "column 'g' has the level 'w', which was in no row of the fit"),
        (new.assign(x=np.nan), "missing values"),
    ):
        with pytest.raises(UserError, match=words):
            run.predict(rows, client="s02")


def binomials() -> pd.DataFrame:
    """Successes of 3 to 12 trials in six groups."""
    rng = np.random.default_rng(1)
    df = pd.DataFrame({"g": np.repeat(list("abcdef"), 8), "x": rng.normal(size=48), "n": rng.integers(3, 13, 48)})
    rate = 1 / (1 + np.exp(-0.5 * df.x - np.repeat(rng.normal(size=6), 8)))
    return df.assign(y=rng.binomial(df.n, rate), f=lambda d: d.n - d.y)


def test_trials_are_the_tables_where_successes_are_not_known() -> None:
    df = binomials()
    fit = mixed_model(df, "p(y, n) ~ x + (1 | g)", family="binomial", draws=100)
    known = fit.predict(df)
    for new in (df.drop(columns="y"), df.assign(y=np.nan), df.assign(y=-1)):
        pd.testing.assert_frame_equal(fit.predict(new), known)
    single_trial = fit.predict(df[["g", "x"]])  # of one trial
    np.testing.assert_allclose(single_trial["mean"] * df.n, known["mean"], rtol=1e-12)
    for new, words in (
        (df.assign(n=0), "the trials 'n' are whole numbers from 1"),
        (df.assign(n=df.n.where(df.index != 2)), "column 'n' has 1 missing value"),
    ):
        with pytest.raises(UserError, match=words):
            fit.predict(new)
    by = {"y": "p(trials=n, successes=y)", "f": "p(y, y + f)", "10": "p(f, 12)"}
    fits = {name: mixed_model(df, f"{left} ~ x + (1 | g)", family="binomial", draws=0) for name, left in by.items()}
    ours = {name: fit.predict(df, interval=None)["mean"].to_numpy() for name, fit in fits.items()}
    np.testing.assert_allclose(ours["y"], ours["f"], rtol=1e-12)
    np.testing.assert_allclose(fits["y"].predict(df.drop(columns="y"), interval=None)["mean"], ours["y"])
    np.testing.assert_allclose(fits["10"].predict(df[["g", "x"]], interval=None)["mean"], ours["10"])
    with pytest.raises(UserError, match="lacks column 'y', which the trials 'y \\+ f' need"):
        fits["f"].predict(df.drop(columns="y"))


def test_without_draws_there_is_the_mean_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Of a gaussian fit lme4's predictions; of others the mean over what is not known given the estimates."""
    df = table(8)
    plain = mixed_model(df, "y ~ 1 + x + (1 + x | site)", draws=0)
    predictions = plain.predict(df)
    assert caplog.messages == ["this fit has no draws, and its predictions no intervals: the mean is at the estimates"]
    assert list(predictions) == ["client", "mean"]
    pd.testing.assert_frame_equal(predictions, plain.predict(df, interval=None))
    assert len(caplog.messages) == 1
    beta, (b, _) = estimates(plain.run)[["Intercept", "x"]].to_numpy(), random_effects(plain.run)
    own = beta + b[[int(name[1:]) for name in df.site]]
    np.testing.assert_allclose(predictions["mean"], own[:, 0] + own[:, 1] * df.x, rtol=1e-8)
    at_zero = beta[0] + beta[1] * df.x
    for level in ("population", "new"):
        np.testing.assert_allclose(plain.predict(df, level, None)["mean"], at_zero, rtol=1e-8)  # type: ignore[arg-type]
    with_draws = mixed_model(df, "y ~ 1 + x + (1 + x | site)", draws=100)
    assert list(with_draws.predict(df[:3], interval=None)) == ["client", "mean"]

    logit = mixed_model(binomials(), "p(y, n) ~ x + (1 | g)", family="binomial", draws=0)
    table_of, row = logit.summary().table.set_index("effect").estimate, binomials()[:1]
    effect = logit.ranef().set_index("client").loc["a"]
    z = np.linspace(-9, 9, 4001)
    for level, centre, sd in (("client", effect["mean"], effect.sd), ("new", 0.0, table_of["sd(Intercept)"])):
        eta = table_of.Intercept + table_of.x * row.x[0] + centre + sd * z
        weight = np.exp(-0.5 * z**2)
        wanted = row.n[0] * (weight / (1 + np.exp(-eta))).sum() / weight.sum()
        assert logit.predict(row, level, None)["mean"][0] == pytest.approx(wanted, rel=1e-6)  # type: ignore[arg-type]


def test_means_without_draws_are_near_those_with_them_in_groups() -> None:
    """Groups inside clients and above them."""
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"site": np.repeat([f"s{k}" for k in range(8)], 24)}).assign(
        region=lambda d: d.site.map(lambda name: "r" + str(int(name[1:]) % 3)),
        patient=np.tile(np.repeat(range(4), 6), 8),
    )
    df["y"] = rng.normal(size=3)[df.site.str[1:].astype(int) % 3] + rng.normal(size=(8, 4)).ravel().repeat(6)
    df["y"] += rng.normal(size=len(df))
    formula = "y ~ 1 + (1 | region/site/patient)"
    plain, whole = (mixed_model(df, formula, client="site", draws=draws) for draws in (0, 400))
    new = pd.concat([df[::37], df[:1].assign(patient=9)])
    for level in ("client", "population", "new"):
        ours, theirs = (fit.predict(new, level, interval)["mean"] for fit, interval in ((plain, None), (whole, 0.9)))  # type: ignore[arg-type]
        np.testing.assert_allclose(ours, theirs, atol=0.35)


CODES = [1, 2, 4]


@pytest.mark.parametrize("names", of_all([CODES, ["low", "mid", "high"], [4, 2, 1]], [["low", "mid", "high"]], str))
def test_ordinal_levels_keep_their_names(names: list) -> None:
    """A code that nobody has, text, and an order that falls: in thresholds, predictions, draws and probabilities."""
    rng = np.random.default_rng(1)
    category = rng.choice(3, 120, p=[0.2, 0.3, 0.5])
    df = pd.DataFrame({"g": np.repeat(list("abcdefghijkl"), 10), "y": np.array(names)[category]})
    if names != CODES:
        df["y"] = pd.Categorical(df.y, names, ordered=True)
    fit = mixed_model(df, "y ~ 1 + (1 | g)", family="ordinal", draws=100)
    thresholds = [f"{names[0]} | {names[1]}", f"{names[1]} | {names[2]}"]
    assert fit.summary().table.effect.tolist()[-2:] == thresholds
    predictions = fit.predict(df[::10])
    p = predictions[[f"p({name})" for name in names]].to_numpy()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(p.mean(0), np.bincount(category) / 120, atol=0.03)
    numbers = [1, 2, 3] if isinstance(names[0], str) else names
    np.testing.assert_allclose(predictions["mean"], p @ numbers, rtol=1e-9)
    assert set(predictions.response_lower) | set(predictions.response_upper) <= set(names)
    assert (predictions.response_upper == names[2]).all()
    mean, sd = fit.run.predict(df[:1], client="a")[0].tolist()
    assert mean == pytest.approx(predictions["mean"].iloc[0], rel=0.05)
    assert sd == pytest.approx(np.sqrt(p[0] @ np.square(numbers) - mean**2), rel=0.1)
    draws = fit.posterior()
    assert draws.posterior.effect.values.tolist()[-2:] == thresholds
    for group in (draws.observed_data, draws.posterior_predictive):
        assert set(np.unique(group.y)) == set(numbers)
    assert ("level" in draws.constant_data) == isinstance(names[0], str)


def test_means_of_a_new_client_do_not_depend_on_draws() -> None:
    """exp(eta + tau^2 / 2) of counts: over draws of few clients' spread its mean has no end."""
    df = counts("poisson", 5)
    fit_of_counts = mixed_model(df, "y ~ x + (1 | site)", family="poisson", draws=100)
    row = pd.DataFrame({"x": [0.0]})
    beta, tau = (
        fit_of_counts.params["Intercept"],
        fit_of_counts.summary().table.set_index("effect").estimate["sd(Intercept)"],
    )
    assert fit_of_counts.predict(row, level="new")["mean"][0] == pytest.approx(np.exp(beta + tau**2 / 2), rel=1e-8)
    assert fit_of_counts.predict(row, level="population")["mean"][0] == pytest.approx(np.exp(beta), rel=1e-8)
    far = fit_of_counts.predict(pd.DataFrame({"x": [400.0, 1e4]}), level="population")
    assert (far[["lower", "upper", "response_lower", "response_upper"]] >= 0).all(axis=None)
