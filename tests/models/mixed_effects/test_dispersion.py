"""Formulas of own numbers and precision weights beside glmmTMB 1.1.5 and lme4, by one node as they have it.

R's calls are beside the numbers; ``d`` is tests/support/two_spreads.csv, with

    d$e <- exp(d$yw / 3); d$share <- plogis(d$yw - 4); d$k <- pmin(d$count, 12); d$rest <- 12 - d$k

glmmTMB 1.1.5 has log variances of a gaussian response, twice our log standard deviations.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from scipy.stats import multivariate_normal
from support.representatives import of_all
from support.sites import Sites

from hierfl import mixed_model
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.models import MixedEffects

#: family and formula; arguments; estimates in the table's order, their standard errors, and log likelihood
CASES: dict[str, tuple[str, str, dict[str, Any], list[float], list[float], float]] = {
    # glmmTMB(y ~ x + (1 | site), dispformula = ~arm, data = d)
    "gaussian": ("gaussian", "y ~ x + (1 | site)", {"dispersion": "~ arm"},
                 [1.6011285879, 0.2720798673, 0.9168089758, 0.1703495123, 0.6616396790, -0.4235637695],
                 [0.3192, 0.02416, 0.16, 0.07295, 0.1006, 0.1119], -535.987494261),
    # the same with REML = TRUE
    "reml": ("gaussian", "y ~ x + (1 | site)", {"dispersion": "~ arm", "population": "reml"},
             [1.6018043381, 0.2720195071, 0.9431982637, 0.171178841, 0.66131831805, -0.41964115045],
             [0.3237, 0.02424, 0.168, 0.07298, 0.1006, 0.1121], -539.40073257),
    # glmmTMB(count ~ x + (1 | site), dispformula = ~arm, data = d, family = nbinom2), nbinom1
    "nbinom2": ("negative-binomial", "count ~ x + (1 | site)", {"dispersion": "~ arm"},
                [-0.5536756236, 0.1246080152, 0.3885857509, 0.3894915068, 0.2797480963, -0.2737853457],
                [0.2645, 0.02407, 0.0949, 0.3135, 0.4318, 0.4096], -575.727537258),
    "nbinom1": ("nbinom1", "count ~ x + (1 | site)", {"dispersion": "~ arm"},
                [-0.39348258341, 0.10851125414, 0.3946972364, 0.31328078135, -0.05422477022, 0.36202249524],
                [0.2408, 0.02029, 0.0901, 0.3096, 0.4011, 0.3941], -574.542522791),
    # glmmTMB(e ~ x + (1 | site), dispformula = ~arm, data = d, family = Gamma(link = "log"))
    "gamma": ("gamma", "e ~ x + (1 | site)", {"dispersion": "~ arm"},
              [0.50147543667, 0.09872800974, 0.2937271092, 3.07132893936, -0.10113993121, 0.38414242006],
              [0.07895, 0.004329, 0.048, 0.1447, 0.205, 0.2191], -420.683103484),
    # glmmTMB(share ~ x + (1 | site), dispformula = ~arm, data = d, family = beta_family())
    "beta": ("beta", "share ~ x + (1 | site)", {"dispersion": "~ arm"},
             [-2.35658115811, 0.27143431856, 0.7954632871, 2.57828279187, -0.06885238634, 0.33975983176],
             [0.2236, 0.0138, 0.131, 0.1405, 0.194, 0.2094], 212.313458145),
    # glmmTMB(cbind(k, rest) ~ x + (1 | site), dispformula = ~arm, data = d, family = betabinomial())
    "betabinomial": ("beta-binomial", "p(k, 12) ~ x + (1 | site)", {"dispersion": "~ arm"},
                     [-2.9422143414, 0.1402438127, 0.4812950536, 1.7408963673, -0.1568571220, -0.4675826980],
                     [0.305, 0.02683, 0.111, 0.2566, 0.3288, 0.3325], -575.95564048),
    # glmmTMB(zi ~ x + (1 | site), ziformula = ~x + arm, data = d, family = poisson)
    "zip": ("zero-inflated-poisson", "zi ~ x + (1 | site)", {"zero_inflation": "~ x + arm"},
            [0.55793340134, 0.08566645414, 0.4355138239, -3.11354451960, 0.20333683860, 0.72864088431, 0.18382042122],
            [0.1715, 0.01359, 0.078, 0.6457, 0.05603, 0.3339, 0.3612], -582.614665711),
    # glmmTMB(zi ~ x + (1 | site), ziformula = ~arm, data = d, family = truncated_poisson)
    "hurdle": ("hurdle-poisson", "zi ~ x + (1 | site)", {"zero_inflation": "~ arm"},
               [0.58486907557, 0.08399850196, 0.428383764, -0.90286782367, 0.62588111436, 0.20972059591],
               [0.1714, 0.01369, 0.0766, 0.2164, 0.2903, 0.314], -589.539920994),
    # lmer(yw ~ x + (1 | site), weights = w, data = d, REML = FALSE), and TRUE
    "weights": ("gaussian", "yw ~ x + (1 | site)", {"precision_weights": "w"},
                [1.316171696, 0.306984510, 0.8705661069, 0.9903915469], [0.2319, 0.01276, 0.14, 0.042], -308.074584545),
    "weights, reml": ("gaussian", "yw ~ x + (1 | site)", {"precision_weights": "w", "population": "reml"},
                      [1.3163782576, 0.3069643815, 0.8938397577, 0.9921588844], [0.2364, 0.01278, 0.149, 0.042],
                      -312.207282072),
}  # fmt: skip


def table() -> pd.DataFrame:
    """The table of the numbers above."""
    df = pd.read_csv(Path(__file__).parents[2] / "support" / "two_spreads.csv")
    return df.assign(e=np.exp(df.yw / 3), share=expit(df.yw - 4), k=df["count"].clip(upper=12))


@pytest.mark.cpu(4, "searches by quadrature of eight families, one a case")
@pytest.mark.parametrize("case", of_all([*CASES], [name for name in CASES if name != "betabinomial"], str))
def test_estimates_are_those_of_r(case: str) -> None:
    family, formula, how, values, errors, height = CASES[case]
    fitted = mixed_model(table(), formula, family=family, **{"population": "ml", "draws": 0, "nodes": 1, **how})
    effects, numbers = fitted.summary().table, fitted.summary().numbers
    away = (effects.estimate.to_numpy() - values) / np.array(errors)
    assert np.abs(away).max() < 0.01
    spreads = effects.effect.str.startswith("sd(").to_numpy()
    np.testing.assert_allclose(effects.estimate[spreads], np.array(values)[spreads], rtol=0.01)
    assert numbers["log_likelihood"] == pytest.approx(height, abs=1e-3)


@pytest.mark.parametrize("formula", ["y ~ x + (1 | site/pair)", "y ~ x + (1 | region/site)", "y ~ x + (1 + x | site)"])
def test_heights_of_other_levels_are_a_normals(formula: str) -> None:
    df = table().assign(pair=np.tile(np.repeat(np.arange(5), 3), 20))
    df["region"] = [f"r{int(name[1:]) % 4}" for name in df.site]
    fitted = mixed_model(
        df, formula, client="site", dispersion="~ arm", precision_weights="w", population="ml", draws=0
    )
    estimate = fitted.summary().table.set_index("effect").estimate
    spread = estimate["dispersion:Intercept"] + (df.arm == "b") * estimate["dispersion:arm[b]"]
    spread = spread + (df.arm == "c") * estimate["dispersion:arm[c]"]
    v = np.diag(np.exp(2 * spread) / df.w)
    same = {name: np.equal.outer(of.to_numpy(), of.to_numpy()) for name, of in df.items()}
    root = np.diag([estimate["sd(Intercept)"], estimate.get("sd(x)", 0.0)])
    r = estimate.get("corr(Intercept, x)", 0.0)
    z = np.stack([np.ones(len(df)), df.x], 1)
    v += same["site"] * (z @ root @ np.array([[1, r], [r, 1]]) @ root @ z.T)
    v += same["site"] * same["pair"] * estimate.get("sd(Intercept | pair)", 0.0) ** 2
    v += same["region"] * estimate.get("sd(Intercept | region)", 0.0) ** 2
    mean = estimate["Intercept"] + estimate["x"] * df.x
    expected = multivariate_normal(mean, v, allow_singular=True).logpdf(df.y)
    assert fitted.summary().numbers["log_likelihood"] == pytest.approx(expected, abs=1e-6)


def test_units_of_the_table_change_nothing() -> None:
    df, how = table(), {"dispersion": "~ x + arm", "draws": 0}
    original = mixed_model(df, "y ~ x + (1 | site)", **how).summary().table.set_index("effect").estimate
    moved = df.assign(y=1e5 * df.y, x=10 * df.x + 1000)
    rescaled = mixed_model(moved, "y ~ x + (1 | site)", **how).summary().table.set_index("effect").estimate
    assert rescaled["sd(Intercept)"] == pytest.approx(1e5 * original["sd(Intercept)"], rel=1e-5)
    assert rescaled["dispersion:x"] == pytest.approx(original["dispersion:x"] / 10, rel=1e-4)
    intercept = original["dispersion:Intercept"] + np.log(1e5) - 100 * original["dispersion:x"]
    assert rescaled["dispersion:Intercept"] == pytest.approx(intercept, rel=1e-4)


@pytest.mark.slow
@pytest.mark.cpu(4, "searches of some sixty rounds, asked of three sites through bytes")
@pytest.mark.parametrize(
    ("family", "formula", "weights"),
    [
        ("gaussian", "y ~ x + (1 | site); dispersion ~ arm * x", "w"),
        ("hurdle-poisson", "zi ~ x + (1 | site); zero_inflation ~ arm", ""),
    ],
)
def test_three_sites_find_what_the_table_would(family: str, formula: str, weights: str, tmp_path: Path) -> None:
    df = table().query("site < 's03'")
    how = {"rounds": 60, "draws": 2, "dtype": torch.float64, "evaluate_every": 60, "splits": ("train",)}
    more = RowColumns(precision_weights=weights)
    federation, design = from_formula(df, formula, family=family, precision_weights=weights)
    whole = fit(MixedEffects(design, draws=0), federation, progress=False, **how)
    columns = {"y": Column("number"), "x": Column("number"), "zi": Column("whole", least=0)}
    dictionary = Dictionary({**columns, "w": Column("number", least=0), "arm": Column("category", ("a", "b", "c"))})
    study = StudyFormula(formula, dictionary, family, more)
    tables = {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables.values())))
    method = MixedEffects(reader.design(reduce(add, (reader.second(rows) for rows in tables.values()))), draws=0)
    own = {name: reader.federation(rows, name) for name, rows in tables.items()}
    run = Sites(method, own["s00"], tmp_path, own, **how).fit()
    effects, numbers = method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-6)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-10)


def test_rows_are_drawn_and_predicted_with_spreads_of_their_own() -> None:
    df = table()
    fitted = mixed_model(df, "y ~ x + (1 | site)", dispersion="~ arm", draws=400)
    predicted = fitted.predict(df, interval=0.9, level="population")
    width = (predicted.response_upper - predicted.response_lower).groupby(df.arm).mean()
    assert width["b"] / width["c"] == pytest.approx(np.exp(0.6613 + 0.4196), rel=0.15)
    drawn = fitted.simulate(n=200, level="population")
    spread = drawn.std(axis=1).groupby(df.arm).mean()
    assert spread["b"] / spread["a"] == pytest.approx(np.exp(0.6613), rel=0.05)
    assert fitted.residuals("pearson").groupby(df.arm).std().between(0.8, 1.1).all()
    assert fitted.residuals("quantile").std() == pytest.approx(1, abs=0.1)
    assert fitted.refit("~ . - x", draws=0).formula.endswith("; dispersion ~ arm")
    smaller = fitted.refit(dispersion="", draws=0)
    assert smaller.formula == "y ~ x + (1 | site)"
    assert fitted.compare(smaller).reference.iloc[1] == "chi-squared(2)"


@pytest.mark.parametrize(
    ("formula", "how", "words"),
    [
        ("count ~ x + (1 | site)", {"family": "poisson", "dispersion": "~ arm"}, "not a poisson one"),
        ("count ~ x + (1 | site)", {"family": "poisson", "precision_weights": "w"}, "weights= counts rows"),
        ("y ~ x + (1 | site)", {"dispersion": "~ arm", "known_se": "w"}, "leave no formula"),
        ("y ~ x + (1 | site)", {"precision_weights": "w", "known_se": "e"}, "one of the two"),
        ("zi ~ x + (1 | site)", {"family": "hurdle-poisson", "zero_inflation": "~ (1 | site)"}, "fixed effects alone"),
        ("y ~ x + (1 | site)", {"dispersion": "arm"}, "right side"),
        ("y ~ x + (1 | site)", {"dispersion": "~ x + I(2 * x)"}, "combination"),
        ("y ~ x + (1 | site)", {"dispersion": "~ I(arm == 'b')"}, "no level of one"),
        ("y ~ x + (1 | site)", {"dispersion": "~ offset(x)"}, "no offset"),
        ("y ~ x + (1 | site)", {"dispersion": "~ arm", "kenward_roger": True}, "kenward_roger"),
        ("y ~ x + (1 | site)", {"dispersion": "~ arm", "one_round": True}, "one_round"),
        ("y ~ x + (1 | site); spread ~ arm", {}, "';' is not understood"),
        ("y ~ x; dispersion ~ arm", {}, "random term"),
    ],
)
def test_one_line_says_what_cannot_be_asked(formula: str, how: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        mixed_model(table(), formula, **how)
    assert "\n" not in str(refused.value)


def test_means_over_rows_that_have_probabilities_of_their_own_are_refused() -> None:
    fitted = mixed_model(table(), "zi ~ x + (1 | site)", family="zero-inflated-poisson", zero_inflation="~ x", draws=0)
    with pytest.raises(UserError, match="zero_inflation"):
        fitted.means("x", at={"x": [1, 2]}, scale="response")
    with pytest.raises(UserError, match="no R2"):
        mixed_model(table(), "y ~ x + (1 | site)", dispersion="~ arm", draws=0).r2()


def test_a_broadcast_that_cuts_rows_by_their_spread_is_refused() -> None:
    federation, design = from_formula(table(), "y ~ x + (1 | site); dispersion ~ x")
    method = MixedEffects(design, draws=0)
    shared = dict(fit(method, federation, progress=False, rounds=30, dtype=torch.float64, splits=()).shared)
    inputs = federation.x[federation.train[0]].double()
    steep = torch.tensor([0.0, 300.0], dtype=torch.float64)
    assert not method.broadcast_error(shared, inputs)
    assert "cut the rows" in method.broadcast_error({**shared, "effects.log_noise": steep}, inputs)
