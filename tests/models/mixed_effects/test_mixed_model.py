"""One call for a mixed model, and what is asked of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.mixed import fitted, random_effects, table
from support.mixed_families import counts

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.report.summary import effects_table


def test_the_summary_says_what_a_statistician_reads() -> None:
    df = table()
    fit = mixed_model(df, "y ~ 1 + x + (1 + x | site)", population="ml")
    summary = fit.summary()
    columns = ["effect", "estimate", "standard_error", "lower", "upper", "statistic", "df", "p", "note"]
    assert list(summary.table.columns) == columns
    row = summary.table.set_index("effect").loc["x"]
    assert row.statistic == pytest.approx(row.estimate / row.standard_error)
    assert row.upper - row.estimate == pytest.approx(stats.t.ppf(0.975, row.df) * row.standard_error)
    assert row.p == pytest.approx(2 * stats.t.sf(abs(row.statistic), row.df))
    n = summary.numbers
    assert (n["rows"], n["groups"], n["parameters"]) == (len(df), 40, 6)
    assert n["aic"] == pytest.approx(12 - 2 * n["log_likelihood"])
    assert n["bic"] == pytest.approx(6 * np.log(len(df)) - 2 * n["log_likelihood"])
    text = str(summary)
    for words in (
        "gaussian, maximum likelihood",
        "corr(Intercept, x)",
        "2.5 %",
        "log likelihood -1623.033",
        "40 clients",
    ):
        assert words in text
    narrow = fit.summary(0.5).table.set_index("effect").loc["x"]
    assert narrow.upper < row.upper


def test_odds_and_rates() -> None:
    for family, ratio in (("binomial", "odds ratio"), ("poisson", "rate ratio")):
        effects = (
            mixed_model(counts(family, 8), "y ~ x + (1 | site)", family=family, population="ml", draws=0)
            .summary()
            .table
        )  # type: ignore[arg-type]
        np.testing.assert_allclose(effects[ratio][:2], np.exp(effects.estimate[:2]))
        np.testing.assert_allclose(effects[f"{ratio} lower"][:2], np.exp(effects.lower[:2]))
        assert effects[ratio][2:].isna().all()


def test_predictions_are_frames() -> None:
    """At each level, with intervals of the mean and of a response; beside the engine's own, and what truly comes."""
    df = table(12)
    fit = mixed_model(df, "y ~ 1 + x + (1 + x | site)", draws=4000)
    rows = df.iloc[[3, 40, 90]].copy()
    rows.index = [7, 8, 9]
    own = fit.predict(rows)
    assert list(own.columns) == ["client", "mean", "lower", "upper", "response_lower", "response_upper"]
    assert list(own.index) == [7, 8, 9]
    assert own.client.tolist() == rows.site.tolist()
    for k in range(3):
        mean, sd = fit.run.predict(rows.iloc[[k]], client=rows.site.iloc[k])[0].tolist()
        assert own["mean"].iloc[k] == pytest.approx(mean, abs=1e-9)
        z = stats.norm.ppf(0.95)
        assert own.response_upper.iloc[k] - own.response_lower.iloc[k] == pytest.approx(2 * z * sd, rel=0.05)
    whole, new = (fit.predict(rows.drop(columns="site"), level) for level in ("population", "new"))
    assert "client" not in new
    # The mean of the population is that of new clients, whose spread is theirs.
    np.testing.assert_allclose(whole["mean"], new["mean"], atol=0.15)
    assert ((new.upper - new.lower) > 1.5 * (whole.upper - whole.lower)).all()
    predictions = fit.predict(df)
    covered = ((predictions.response_lower <= df.y) & (df.y <= predictions.response_upper)).mean()
    assert 0.86 < covered < 0.95


def test_random_effects_have_their_sds() -> None:
    df = table(12)
    effects = mixed_model(df, "y ~ 1 + x + (1 + x | site)", population="ml", draws=0).ranef()
    mean, cov = random_effects(fitted(df, "y ~ 1 + x + (1 + x | site)"))
    assert list(effects.columns) == ["client", "n", "effect", "mean", "sd", "lower", "upper"]
    for k, name in enumerate(("Intercept", "x")):
        part = effects[effects.effect == name]
        np.testing.assert_allclose(part["mean"], mean[:, k], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(part.sd, np.sqrt(cov[:, k, k]), rtol=1e-6)


#: of p values, which may be smaller than any absolute tolerance
CLOSE = {"rel": 1e-9, "abs": 0.0}


def test_nested_models_are_compared() -> None:
    df = table(12)
    small, large = (
        mixed_model(df, f"y ~ 1 + x + ({random} | site)", population="ml", draws=0) for random in ("1", "1 + x")
    )
    comparison = small.compare(large)
    pd.testing.assert_frame_equal(comparison, large.compare(small))
    statistic = 2 * (large.log_likelihood - small.log_likelihood)
    last = comparison.iloc[1]
    assert last.statistic == pytest.approx(statistic)
    assert last.p == pytest.approx(0.5 * stats.chi2.sf(statistic, 1) + 0.5 * stats.chi2.sf(statistic, 2), **CLOSE)
    # likelihoods of REML fits with other fixed effects are compared by ML
    reml = [mixed_model(df, f"y ~ 1{more} + (1 | site)", population="reml", draws=0) for more in ("", " + x")]
    ml = [mixed_model(df, f"y ~ 1{more} + (1 | site)", population="ml", draws=0) for more in ("", " + x")]
    comparison = reml[0].compare(reml[1], test="likelihood-ratio").iloc[1]
    assert comparison.statistic == pytest.approx(2 * (ml[1].log_likelihood - ml[0].log_likelihood), rel=1e-6)
    assert comparison.p == pytest.approx(stats.chi2.sf(comparison.statistic, 1), **CLOSE)
    # the spread alone, of the same criterion
    none = mixed_model(df.assign(y=df.y - 3), "y ~ 1 + x + (1 | site)", population="ml", draws=0)
    with pytest.raises(UserError, match="of different rows"):
        none.compare(small)
    with pytest.raises(UserError, match="as many parameters"):
        small.compare(small)
    other = mixed_model(df.assign(z=df.x**2), "y ~ 1 + z + (1 + x | site)", population="ml", draws=0)
    with pytest.raises(UserError, match="not nested"):
        small.compare(other)


@pytest.mark.cpu(4, "two fits for each kind of data")
def test_fits_of_other_data_are_not_compared() -> None:
    """Rows, clients, responses and what rows have beside them: a line that says which."""
    rng, n = np.random.default_rng(0), 64
    df = pd.DataFrame({"g": np.repeat(list("abcdefgh"), 8), "h": np.tile(list("abcdefgh"), 8), "x": rng.normal(size=n)})
    df = df.assign(y=np.exp(rng.normal(size=n)), w=0.1, se=1.0, two=2.0, o=0.5, e=1, e2=np.arange(n) % 2, n=10)
    df["k"] = rng.binomial(5, 0.5, n)
    plain = {"formula": "y ~ 1 + (1 | g)"}
    times = {"family": "weibull", "formula": "y ~ 1 + (1 | g)", "event": "e"}
    trials = {"family": "binomial", "formula": "p(k, n) ~ 1 + (1 | g)"}
    cases: list[tuple[dict, dict, str]] = [
        (plain, {"weights": "w"}, "weights, of which one has none"),
        (plain, {"formula": "y ~ x + offset(o) + (1 | g)"}, "offsets, of which one has none"),
        (plain, {"known_se": "se"}, "known standard errors, of which one has none"),
        ({**plain, "known_se": "se"}, {"known_se": "two"}, "known standard errors:"),
        (plain, {"formula": "y ~ x + (1 | h)"}, "clients, g and h"),
        (plain, {"formula": "log(y) ~ x + (1 | g)"}, "responses, y and log\\(y\\)"),
        (plain, {"df": df.assign(x=df.x.where(df.index != 3)), "na": "drop"}, "rows, 64 and 63"),
        (plain, {"df": df.assign(y=df.y[::-1].to_numpy())}, "rows, or of other values of y"),
        (plain, {"family": "gamma"}, "families, gaussian and gamma"),
        (trials, {"formula": "p(k, 5) ~ x + (1 | g)"}, "trials:"),
        (times, {"event": "e2"}, "events:"),
    ]
    for small, change, words in cases:
        large = {**small, "formula": small["formula"].replace("1 +", "x +"), **change}
        models = [mixed_model(**{"df": df, "draws": 0, "rounds": 2, **how}) for how in (small, large)]
        with pytest.raises(UserError, match=f"the models are of different {words}"):
            models[0].compare(models[1])
    # what is the same, said or not, is compared: every event was seen, and every weight is one
    seen = mixed_model(df, draws=0, **times), mixed_model(df, "y ~ x + (1 | g)", family="weibull", draws=0)
    assert len(seen[0].compare(seen[1])) == 2


@pytest.mark.slow
def test_the_null_of_a_variance_has_half_its_mass_at_zero() -> None:
    """P values of one more variance are uniform under its absence, but for the mass at one."""
    p = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        site = np.repeat(np.arange(15), 6)
        df = pd.DataFrame({"x": rng.normal(size=90), "site": site})
        df["y"] = rng.normal(size=15)[site] + df.x + rng.normal(size=90)
        how = {"draws": 0, "covariance": "diagonal"}
        p.append(mixed_model(df, "y ~ x + (1 | site)", **how).compare(mixed_model(df, "y ~ x + (1 + x | site)", **how)))
    values = np.array([comparison.p.iloc[1] for comparison in p])
    assert 0.3 < (values > 0.5).mean() < 0.75
    assert (values < 0.1).mean() < 0.22


def test_a_posterior_is_for_arviz() -> None:
    import arviz as az

    fit = mixed_model(table(8), "y ~ x + (1 | site)", population="bayes")
    table_of = az.summary(fit.posterior(), var_names=["effects"])
    mine = fit.summary().table
    np.testing.assert_allclose(table_of["mean"], mine.estimate, atol=0.01)
    assert np.isnan(fit.log_likelihood)
    assert "posterior" in str(fit.summary())
    with pytest.raises(UserError, match="estimates, not posteriors"):
        fit.compare(fit)


def test_what_cannot_be_asked() -> None:
    df = table(6)
    fit = mixed_model(df, "y ~ x + (1 | site)")
    plain = mixed_model(df, "y ~ x + (1 | site)", population="ml", draws=0)
    slopes = mixed_model(df, "y ~ x + (1 + x | site)", draws=0)
    for call, words in (
        (lambda: fit.predict(df, level="site"), "unknown level 'site'"),  # type: ignore[arg-type]
        (lambda: fit.predict(df, interval=90), "between 0 and 1, not 90"),
        (lambda: fit.summary(1.0), "between 0 and 1"),
        (lambda: fit.predict(df.drop(columns="site")), "lacks column 'site'"),
        (lambda: fit.predict(df.assign(site="elsewhere")), "'elsewhere' is not among those fitted"),
        (lambda: fit.predict(df.drop(columns="x")), "lacks column 'x'"),
        (lambda: mixed_model(df, "y ~ x + (1 | site)", population="map"), "population"),  # type: ignore[arg-type]
        (lambda: mixed_model(df, "y ~ x + (1 | site)", family="binomial"), "0 or 1"),
        (lambda: mixed_model(df, "y ~ x + (1 | site)", sd_prior="half-cauchy(5)"), "nothing with population=auto"),
        (lambda: mixed_model(df, "y ~ x + (1 | site)", population="bayes", draws=0), "made of its draws"),
        (lambda: fit.compare(plain, test="wald"), "unknown test 'wald'"),  # type: ignore[arg-type]
        (lambda: plain.compare(slopes, test="f"), "an F test is of models of a gaussian response"),
        (
            lambda: mixed_model(counts("poisson"), "y ~ x + (1 | site)", family="poisson", kenward_roger=True),
            "gaussian",
        ),
    ):
        with pytest.raises(UserError, match=words):
            call()
    assert effects_table(fit.run.fitted)[0].equals(fit.summary().table)
