"""A factor that crosses the clients, such as items that all sites have: beside lme4, and dense normal densities."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from support.crossed import penicillin, slopes
from support.levels import dense

from hierfl import mixed_model
from hierfl.data.formula.gate import parse
from hierfl.errors import UserError

PLATES, SITES = "diameter ~ 1 + (1 | plate) + (1 | sample)", "y ~ x + (1 + x | site) + (1 + x | item)"
#: lmer(FORMULA, penicillin(), REML = ...) with optimizer = "bobyqa", rhoend = 1e-9
PENICILLIN = {
    "ml": (-166.094174334, [22.972222222, 0.84557220, 1.77064645, 0.54993219], 0.744595862),
    "reml": (-165.430294496, [22.972222222, 0.84670440, 1.93155871, 0.54992313], 0.808573514),
}
#: the same of SITES and slopes(): coefficients, sds and correlations of sites, of items, residual
SLOPES = {
    "ml": (
        -409.160309679,
        [0.989763947, 0.426949598, 0.89549078, 0.50398785, 0.18538987, 0.43781053, 0.21498465, 0.27300982, 1.02591315],
        [0.304187705, 0.179561910],
    ),
    "reml": (
        -410.215674892,
        [0.990010058, 0.425828247, 0.92783049, 0.52644097, 0.18196100, 0.44710161, 0.22307970, 0.28174640, 1.02568578],
        [0.313627824, 0.185972878],
    ),
}  # fmt: skip
#: summary(lmerTest::lmer(SITES, slopes()))$coef[, "df"], and with ddf = "Kenward-Roger" standard errors and df
SATTERTHWAITE, KENWARD_ROGER = [15.8036, 13.7136], ([0.3137772, 0.1868361], [15.7007, 12.9185])


@pytest.mark.parametrize("population", ["ml", "reml"])
def test_penicillin_as_lmer_says(population: str) -> None:
    height, estimates, error = PENICILLIN[population]
    fitted = mixed_model(penicillin(), PLATES, client="plate", population=population, draws=0)  # type: ignore[arg-type]
    table = fitted.summary().table
    assert fitted.log_likelihood == pytest.approx(height, abs=1e-7)
    np.testing.assert_allclose(table.estimate, estimates, rtol=1e-5)
    assert table.standard_error[0] == pytest.approx(error, rel=1e-5)
    assert "24 clients x 6 groups that cross them" in str(fitted.summary())


def test_codes_are_in_the_order_of_numbers_and_deviations_that_are_not_known_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"site": np.repeat(range(8, 12), 24), "item": np.tile(range(1, 13), 8)})
    df["y"] = rng.normal(size=12)[df["item"] - 1] + rng.normal(size=96)
    fit = mixed_model(df, "y ~ 1 + (1 | site) + (1 | item)", draws=0)
    assert fit.ranef("item")["item"].tolist() == [str(k) for k in range(1, 13)]
    assert fit.ranef().client.tolist() == ["8", "9", "10", "11"]
    assert fit.ranef("item")["sd"].notna().all()
    assert not caplog.text
    counts = df.assign(y=rng.poisson(np.exp(df.y)))
    fit = mixed_model(counts, "y ~ 1 + (1 | site) + (1 | item)", family="poisson", nodes=1, draws=0)
    assert fit.ranef("item")["sd"].isna().all()
    assert "no standard deviations: draws=1000 makes them" in caplog.text


def test_effects_of_samples_as_lmer_says() -> None:
    """ranef(m)$sample with condVar = TRUE: that the population is not known makes ours wider."""
    fitted = mixed_model(penicillin(), PLATES, client="plate", draws=1000)
    effects = fitted.ranef("sample").set_index("sample")
    at_estimates = fitted.run.shared["effects.crossed"][1:, 0].numpy()
    modes = [2.1870579700, -1.0104761507, 1.9378994671, -0.0968949734, -0.0138421391, -3.0037441741]
    np.testing.assert_allclose(at_estimates, modes, atol=2e-4)
    assert effects.index.tolist() == list("ABCDEF")
    np.testing.assert_allclose(effects["mean"], modes, atol=0.2)
    assert (effects["sd"] > 0.2021708).all()
    given = mixed_model(penicillin(), PLATES, client="plate", draws=0).ranef("sample")
    np.testing.assert_allclose(given["sd"], 0.2021706851, rtol=1e-5)
    # beside an intercept that moves with them effects are as well known as lmer's
    draws = fitted.method.parts(fitted.run.shared["effects.draws"])
    sums = draws["crossed"][:, 1:, 0] - draws["crossed"][:, 1:, 0].mean(1, keepdim=True)
    alone = np.sqrt(0.5499231**2 / 24 * 5 / 6)
    np.testing.assert_allclose(sums.std(0), alone, rtol=0.15)


@pytest.mark.cpu(5, "a fit with slopes of both, and another with Kenward and Roger's errors")
@pytest.mark.parametrize("population", ["ml", "reml"])
def test_slopes_of_both_as_lmer_says(population: str) -> None:
    height, estimates, errors = SLOPES[population]
    df = slopes()
    fitted = mixed_model(df, SITES, population=population, draws=0)  # type: ignore[arg-type]
    table = fitted.summary().table
    assert fitted.log_likelihood == pytest.approx(height, abs=1e-7)
    np.testing.assert_allclose(table.estimate, estimates, rtol=1e-4)
    np.testing.assert_allclose(table.standard_error[:2], errors, rtol=1e-5)
    if population == "reml":
        np.testing.assert_allclose(table["df"][:2], SATTERTHWAITE, rtol=2e-3)
        other = mixed_model(df, SITES, draws=0, kenward_roger=True).summary().table
        np.testing.assert_allclose(other.standard_error[:2], KENWARD_ROGER[0], rtol=1e-3)
        np.testing.assert_allclose(other["df"][:2], KENWARD_ROGER[1], rtol=1e-2)


def test_either_factor_can_be_the_clients() -> None:
    df, how = slopes(), {"population": "reml", "draws": 0}
    sites, items = (mixed_model(df, SITES, client=name, **how) for name in ("site", "item"))  # type: ignore[arg-type]
    assert sites.log_likelihood == pytest.approx(items.log_likelihood, abs=1e-9)
    own = items.ranef().rename(columns={"client": "item"})[["item", "effect", "mean"]]
    pd.testing.assert_frame_equal(sites.ranef("item")[["item", "effect", "mean"]], own, rtol=1e-6)


def test_who_the_clients_are() -> None:
    """The first column that is written, or the outermost of those that lie in each other; other groups are refused."""
    for formula, client, factor in (
        ("y ~ (1 | a) + (1 | b)", "a", "b"),
        ("y ~ (1 | b) + (1 | a)", "b", "a"),
    ):
        levels = parse(formula).levels()
        assert (levels.client, levels.outer, levels.crossed) == (client, factor, True)
    assert not parse("y ~ (1 | a/b)").levels("b").crossed
    levels = parse("y ~ (1 | item) + (1 | a/b)").levels()
    assert (levels.client, levels.inside, levels.outer) == ("a", {"inner": ("b",)}, "item")
    with pytest.raises(UserError, match="lie in groups of 'a'"):
        parse("y ~ (1 | item) + (1 | a/b)").levels("b")


def test_weights_and_diagonal_covariances_are_the_dense_density() -> None:
    """A row that counts twice is two rows."""
    df = slopes()
    df["times"] = 1 + np.arange(len(df)) % 2
    how: dict = {"population": "ml", "draws": 0, "covariance": "diagonal"}
    fitted = mixed_model(df, SITES, weights="times", **how)
    e = fitted.summary().table.set_index("effect").estimate
    twice = df.loc[df.index.repeat(df.times)].reset_index(drop=True)
    covariances = {
        name: np.diag(e[[f"sd(Intercept{end})", f"sd(x{end})"]] ** 2)
        for name, end in (("site", ""), ("item", " | item"))
    }
    mean, residual = e["Intercept"] + e["x"] * twice.x.to_numpy(), np.full(len(twice), e["sd(residual)"] ** 2)
    assert fitted.log_likelihood == pytest.approx(dense(twice, mean, covariances, residual), rel=1e-9)


@pytest.mark.cpu(5, "two fits, one with an exploration")
def test_predictions_are_of_known_and_unknown_items() -> None:
    df = slopes()
    fitted = mixed_model(df, SITES, draws=400)
    rows = pd.DataFrame({"x": [0.5, 0.5], "site": ["s00", "s00"], "item": ["i3", "new"]})
    predictions = fitted.predict(rows)
    wide = (predictions["upper"] - predictions["lower"]).tolist()
    assert wide[1] > 1.2 * wide[0]
    effects = fitted.ranef("item").set_index(["item", "effect"])["mean"]
    apart = effects["i3", "Intercept"] + 0.5 * effects["i3", "x"]
    assert predictions["mean"][0] - predictions["mean"][1] == pytest.approx(apart, abs=0.2)
    at_estimates = mixed_model(df, SITES, draws=0)
    fitted_rows = at_estimates.fitted()
    expected = at_estimates.predict(df.head(5), interval=None)["mean"]
    np.testing.assert_allclose(fitted_rows[:5], expected, rtol=1e-9)


def test_a_fit_is_saved_with_its_items(tmp_path: object) -> None:
    from hierfl.models.mixed_effects.mixed_model import load_mixed_model

    fitted = mixed_model(penicillin(), PLATES, client="plate", draws=100)
    fitted.save(tmp_path / "fit")  # type: ignore[operator]
    again = load_mixed_model(tmp_path / "fit", penicillin())  # type: ignore[operator]
    pd.testing.assert_frame_equal(again.ranef("sample"), fitted.ranef("sample"))
    torch.testing.assert_close(again.run.shared["effects.crossed"], fitted.run.shared["effects.crossed"])


@pytest.mark.parametrize(
    ("formula", "client", "says"),
    [
        ("y ~ x + (1 | site) + (1 | item) + (1 | rater)", "site", "one factor that crosses the clients"),
        ("y ~ x + (1 | half/site) + (1 | item)", "site", "'item' crosses the clients .* in groups of 'half'"),
        ("y ~ x + (1 | site) + (1 | own)", None, r"write \(1 \| site/own\)"),
        ("y ~ x + (1 | site) + (1 | half)", None, r"write \(1 \| half/site\)"),
        ("y ~ x + (1 | site) + (1 | row)", None, "200 effects are understood"),
    ],
)
def test_what_is_not_understood_is_one_line(formula: str, client: str | None, says: str) -> None:
    df = slopes()
    df["rater"] = (np.arange(len(df)) % 3).astype(str)
    df["own"] = df.site + df.item
    df["half"] = np.where(df.site < "s06", "a", "b")
    df = pd.concat([df.assign(row=np.arange(len(df))), df.assign(row=np.arange(len(df))[::-1])])
    with pytest.raises(UserError, match=says):
        mixed_model(df, formula, client=client, draws=0)


def test_influence_and_noise_are_refused() -> None:
    fitted = mixed_model(penicillin(), PLATES, client="plate", draws=0)
    with pytest.raises(UserError, match="or that cross them"):
        fitted.influence()
