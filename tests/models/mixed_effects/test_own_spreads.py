"""Residual standard deviations of each client, ``dispersion ~ (1 | site)``, beside integrals by scipy."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm
from support.sites import Sites

from hierfl import load_mixed_model, mixed_model
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.own_numbers import read_formula
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.likelihood.gaussian.given_spread import GivenSpread
from hierfl.models.mixed_effects.likelihood.gaussian.own_spreads import OwnSpreads
from hierfl.models.mixed_effects.likelihood.gaussian.spread_nodes import drawn_spreads

OWN = "sd(dispersion:Intercept)"
FORMULA = "y ~ x + (1 | site); dispersion ~ arm + (1 | site)"


def table(sites: int = 12, each: int = 8, omega: float = 0.6, seed: int = 1) -> pd.DataFrame:
    """y = 1 + x / 2 + site + noise, of standard deviation exp(e) of the site's own."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(sites), each)
    x, u, e = rng.normal(size=len(who)), 0.8 * rng.normal(size=sites)[who], omega * rng.normal(size=sites)[who]
    df = pd.DataFrame({"site": np.char.mod("s%02d", who), "x": x, "arm": np.tile(["a", "b"], len(who) // 2)})
    df = df.assign(w=1.0 + df.index % 3, pair=np.tile(np.repeat([0, 1], each // 2), sites))
    return df.assign(y=1 + 0.5 * x + u + np.exp(e) * rng.normal(size=len(who)))


def height(df: pd.DataFrame, at: pd.Series, w: str = "", pair: str = "") -> float:
    """The log likelihood at estimates by their names, by adaptive integration over each site's e."""
    total = 0.0
    for _, rows in df.groupby("site"):
        spread = at["dispersion:Intercept"] + (rows.arm == "b").to_numpy() * at.get("dispersion:arm[b]", 0.0)
        fixed = at[SITE] ** 2 * np.ones((len(rows), len(rows)))
        if pair:
            fixed += at[f"sd(Intercept | {pair})"] ** 2 * np.equal.outer(rows[pair].to_numpy(), rows[pair].to_numpy())
        weights = rows[w].to_numpy() if w else 1.0
        mean = at["Intercept"] + at["x"] * rows.x

        def log_density(t: float, rows=rows, mean=mean, fixed=fixed, spread=spread, weights=weights) -> float:
            noise = np.diag(np.exp(2 * (spread + at[OWN] * t)) / weights * np.ones(len(rows)))
            return multivariate_normal.logpdf(rows.y, mean, fixed + noise) + norm.logpdf(t)

        top = max(log_density(t) for t in np.linspace(-4, 4, 17))
        total += top + np.log(quad(lambda t, f=log_density, top=top: np.exp(f(t) - top), -9, 9, epsabs=1e-9)[0])
    return total


SITE = "sd(Intercept)"


@pytest.mark.cpu(5, "adaptive integration over each site's deviation by scipy")
@pytest.mark.parametrize(
    ("formula", "how", "beside"),
    [
        ("y ~ x + (1 | site)", {"precision_weights": "w"}, {"w": "w"}),
        ("y ~ x + (1 | site/pair)", {}, {"pair": "pair"}),
        ("y ~ x + (1 | site)", {"family": "lognormal"}, {}),
    ],
)
def test_height_is_the_integral(formula: str, how: dict[str, Any], beside: dict[str, str]) -> None:
    df = table(sites=4)
    own = df.assign(y=np.exp(df.y)) if how else df
    own = own if "family" in how else df
    fitted = mixed_model(own, formula, dispersion="~ arm + (1 | site)", population="ml", draws=0, **how)
    at = fitted.summary().table.set_index("effect").estimate
    expected = height(df, at, **beside) - (df.y.sum() if "family" in how else 0.0)
    assert fitted.log_likelihood == pytest.approx(expected, abs=1e-6)


def _method(df: pd.DataFrame, formula: str = FORMULA) -> tuple[MixedEffects, OwnSpreads, Any]:
    federation, design = from_formula(df, formula)
    method = MixedEffects(design, draws=0, population="ml")
    batch = federation.batch(list(range(federation.clients)))
    batch = replace(batch, x=batch.x.double(), y=batch.y.double())
    assert isinstance(method.likelihood, OwnSpreads)
    return method, method.likelihood, batch


class Rows:
    """A chunk of clients' rows, as the likelihood reads it."""

    def __init__(self, batch: Any) -> None:
        self.sizes, self.batch = [batch.width] * batch.num_clients, lambda: batch

    def part(self, first: int, last: int) -> Rows:
        """All of them."""
        return self


@pytest.mark.parametrize("omega", [0.0, 0.4])
def test_derivatives_are_differences_of_heights(omega: float) -> None:
    method, likelihood, batch = _method(table(sites=4), FORMULA.replace("| site);", "| site/pair);"))
    scale = method.network.scale
    at = torch.tensor([0.7 * scale, omega * scale, 0.3 * scale, -0.2, 0.1, 0.3, 0.2], dtype=torch.float64)
    expansion = likelihood.around(Rows(batch), {"effects.at": at})  # type: ignore[arg-type]

    def total(where: torch.Tensor) -> torch.Tensor:
        return likelihood.at_points(Rows(batch), {"effects.points": where[None]})[:, 0]  # type: ignore[arg-type]

    torch.testing.assert_close(expansion["height"], total(at), rtol=1e-10, atol=1e-10)
    step = 1e-4 * torch.eye(len(at), dtype=torch.float64)
    slope = torch.stack([(total(at + h) - total(at - h)) / 2e-4 for h in step], 1)
    torch.testing.assert_close(expansion["slope"], slope, rtol=1e-5, atol=1e-5)
    bend = torch.stack([
        (likelihood.around(Rows(batch), {"effects.at": at + h})["slope"]  # type: ignore[arg-type]
         - likelihood.around(Rows(batch), {"effects.at": at - h})["slope"]) / 2e-4  # type: ignore[arg-type]
        for h in step
    ], 1)  # fmt: skip
    torch.testing.assert_close(expansion["curvature"], -bend, rtol=1e-4, atol=1e-4)


def test_draws_have_the_posterior_s_quantiles() -> None:
    method, likelihood, batch = _method(table(sites=2, each=4))
    given = GivenSpread(method, likelihood.products(batch)[0])
    scale = method.network.scale
    at = torch.tensor([[0.7 * scale, 1.2 * scale, -0.2, 0.1, 0.3, 0.2]], dtype=torch.float64)
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None].expand(9, 2)
    t = drawn_spreads(given, at.expand(9, -1), z)
    grid = torch.linspace(-8, 8, 801, dtype=torch.float64)
    density = given.heights(at, grid[:, None, None].expand(-1, 1, 2))[:, 0].softmax(0)
    for j in range(2):
        share = np.interp(t[:, j], grid, density[:, j].cumsum(0) - 0.5 * density[:, j])
        np.testing.assert_allclose(share, norm.cdf(z[:, j]), atol=5e-4)


def test_without_a_spread_of_its_own_the_fit_is_the_formula_s() -> None:
    df = table(omega=0.0, seed=6)
    how: dict[str, Any] = {"population": "ml", "draws": 0}
    own = mixed_model(df, "y ~ x + (1 | site)", dispersion="~ arm + (1 | site)", **how)
    plain = mixed_model(df, "y ~ x + (1 | site)", dispersion="~ arm", **how)
    effects, expected = (f.summary().table.set_index("effect") for f in (own, plain))
    assert effects.estimate[OWN] == 0
    assert effects.note[OWN] == "at its lower bound"
    np.testing.assert_allclose(effects.estimate.drop(OWN), expected.estimate, rtol=1e-5)
    assert own.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-8)
    assert own.compare(plain).p.iloc[1] == pytest.approx(0.5, abs=0.5)


def test_units_of_the_table_change_nothing() -> None:
    df, how = table(), {"dispersion": "~ (1 | site)", "draws": 0}
    original = mixed_model(df, "y ~ x + (1 | site)", **how).summary().table.set_index("effect").estimate
    moved = df.assign(y=1e4 * df.y + 1e6, x=10 * df.x + 1000)
    rescaled = mixed_model(moved, "y ~ x + (1 | site)", **how).summary().table.set_index("effect").estimate
    assert rescaled[SITE] == pytest.approx(1e4 * original[SITE], rel=1e-4)
    assert rescaled[OWN] == pytest.approx(original[OWN], rel=1e-4)
    assert rescaled["dispersion:Intercept"] == pytest.approx(original["dispersion:Intercept"] + np.log(1e4), rel=1e-4)


@pytest.mark.slow
@pytest.mark.cpu(4, "a search asked of four sites through bytes")
def test_sites_find_what_the_table_would(tmp_path: Path) -> None:
    df = table(sites=4)
    how = {"rounds": 60, "draws": 2, "dtype": torch.float64, "evaluate_every": 60, "splits": ("train",)}
    federation, design = from_formula(df, FORMULA)
    whole = fit(MixedEffects(design, draws=0), federation, progress=False, **how)
    dictionary = Dictionary({"y": Column("number"), "x": Column("number"), "arm": Column("category", ("a", "b"))})
    study = StudyFormula(FORMULA, dictionary, "gaussian")
    tables = {str(name): rows[["x", "y", "arm"]] for name, rows in df.groupby("site")}
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables.values())))
    method = MixedEffects(reader.design(reduce(add, (reader.second(rows) for rows in tables.values()))), draws=0)
    own = {name: reader.federation(rows, name) for name, rows in tables.items()}
    run = Sites(method, own["s00"], tmp_path, own, **how).fit()
    effects, numbers = method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-6)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-10)


@pytest.mark.cpu(5, "a fit with draws, and its answers")
def test_answers_know_each_client_s_spread(tmp_path: Path) -> None:
    df = table(sites=10, each=24, omega=0.8, seed=2)
    fitted = mixed_model(df, "y ~ x + (1 | site)", dispersion="~ (1 | site)", draws=400)
    own = fitted.residual_sds().set_index("client")
    away = df.y - fitted.fitted()
    assert np.corrcoef(own.sd, away.groupby(df.site).std())[0, 1] > 0.98
    assert (own.lower < own.sd).all()
    assert (own.sd < own.upper).all()
    predicted = fitted.predict(df)
    width = (predicted.response_upper - predicted.response_lower).groupby(df.site).mean()
    np.testing.assert_allclose(width, 2 * 1.645 * own.sd, rtol=0.2)
    assert fitted.residuals("pearson").groupby(df.site).std().between(0.8, 1.15).all()
    assert fitted.residuals("quantile").std() == pytest.approx(1, abs=0.1)
    spread = fitted.simulate(n=100, level="client").std(axis=1).groupby(df.site).mean()
    np.testing.assert_allclose(spread, own.sd, rtol=0.1)
    new = fitted.predict(df.head(2).assign(site="another"), level="new")
    other = fitted.predict(df.head(2), level="population")
    assert (new.response_upper - new.response_lower > other.response_upper - other.response_lower).all()
    assert fitted.ranef().query("effect == 'dispersion:Intercept'").shape[0] == 10
    fitted.save(tmp_path)
    again = load_mixed_model(tmp_path)
    pd.testing.assert_frame_equal(again.residual_sds(), fitted.residual_sds())
    pd.testing.assert_frame_equal(again.predict(df.head(9)), fitted.predict(df.head(9)))
    with pytest.raises(UserError, match="one residual deviation"):
        fitted.shrinkage()
    with pytest.raises(UserError, match="gives each its own"):
        fitted.refit(dispersion="", draws=0).residual_sds()


@pytest.mark.cpu(4, "a posterior with draws")
def test_posterior_is_that_of_nuts() -> None:
    # python tests/support/nuts/own_spreads.py 1000 2 > tests/support/own_spreads_nuts.json
    rng = np.random.default_rng(52)
    who = np.repeat(np.arange(15), 10)
    x, u, e = rng.normal(size=150), 0.8 * rng.normal(size=15)[who], 0.5 * rng.normal(size=15)[who]
    df = pd.DataFrame({"site": np.char.mod("s%02d", who), "x": x})
    df["y"] = 1 + 0.5 * x + u + np.exp(e) * rng.normal(size=150)
    fitted = mixed_model(
        df, "y ~ x + (1 | site)", dispersion="~ (1 | site)", population="bayes", sd_prior="half-cauchy(2)",
        residual_prior="half-cauchy(2)", intercept_prior="normal(0, 10)", beta_prior="normal(0, 10)",
    )  # fmt: skip
    summary = fitted.summary()
    rows = summary.table.set_index("effect")
    references = json.loads((Path(__file__).parents[2] / "support" / "own_spreads_nuts.json").read_text())
    for name, of in references.items():
        if name in rows.index:
            error = of["sd"] * np.sqrt(1 / of["effective"] + 1 / summary.numbers["effective_points"])
            assert abs(rows.estimate[name] - of["mean"]) < 3 * error, name
            assert rows.standard_error[name] == pytest.approx(of["sd"], rel=0.15), name
    for site in (0, 1):  # medians of skewed posteriors lie below their means
        of = references[f"sd of site {site}"]
        assert of["mean"] - 0.3 * of["sd"] < fitted.residual_sds().sd[site] < of["mean"]


def test_a_formula_keeps_its_fixed_effects() -> None:
    for text in ("arm + (1 | site)", "(1 | site) + arm", "( 1|site )+arm"):
        formula = read_formula(f"y ~ x + (1 | site); dispersion ~ {text}")
        assert (formula.own["dispersion"], formula.spread) == ("arm", "site")
    assert read_formula("y ~ x + (1 | site); dispersion ~ (1 | site)").own == {"dispersion": "1"}


@pytest.mark.parametrize(
    ("formula", "how", "words"),
    [
        ("y ~ x + (1 | site)", {"dispersion": "~ (1 + x | site)"}, "an intercept of clients"),
        ("y ~ x + (1 | site)", {"dispersion": "~ (1 | arm)"}, "the clients alone"),
        ("y ~ x + (1 | site)", {"dispersion": "~ arm:(1 | site)"}, "a term by itself"),
        ("y ~ x + (1 | pair/site)", {"client": "site"}, "two of|beside a level above"),
        ("y ~ x + (1 | site) + (1 | arm)", {"client": "site"}, "a factor that crosses them, 'arm'"),
        ("y ~ s(x, k=5) + (1 | site)", {}, r"beside a curve, s\(x\)"),
        ("y ~ x + (1 | site/arm/t)", {}, "beside several levels inside"),
        ("y ~ x + (1 | site)", {"family": "gamma"}, "not of a gamma response"),
        ("y ~ x + (1 | site)", {"correlation": "ar1(t)"}, "no correlation beside"),
        ("y ~ x + (1 | site)", {"kenward_roger": True}, "kenward_roger"),
        ("y ~ x + (1 | site)", {"one_round": True}, "one_round"),
        ("y ~ x + (1 | site)", {"prior": "fixed"}, "prior=fixed"),
        ("y ~ x + (1 | site)", {"nodes": 1}, "at least 11 nodes"),
    ],
)
def test_one_line_says_what_cannot_be_asked(formula: str, how: dict[str, Any], words: str) -> None:
    df = table(sites=4).assign(t=np.tile(np.arange(8), 4))
    df = df.assign(y=np.exp(df.y)) if "family" in how else df
    with pytest.raises(UserError, match=words) as refused:
        mixed_model(df, formula, **{"dispersion": "~ (1 | site)", **how})
    assert "\n" not in str(refused.value)
