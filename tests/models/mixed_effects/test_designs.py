"""Designs and formulas that cannot be."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal
from support.mixed import table

from hierfl import UserError, mixed_model
from hierfl.data.formula.design import Design
from hierfl.data.formula.federate import from_formula
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.nn.networks.build import architecture


def test_designs_that_cannot_be() -> None:
    for make, words in (
        (lambda: Design.from_columns([], ["1"]), "at least one fixed"),
        (lambda: Design.from_columns(["1"], ["1"], "cauchy"), "unknown family 'cauchy'"),  # type: ignore[arg-type]
        (lambda: Design.from_columns(["1"], ["1"], "poisson", extras=("known",)), "belong to a gaussian"),
    ):
        with pytest.raises(UserError, match=words):
            make()
    fed, _ = from_formula(table(5), "y ~ x + (1 | site)")
    with pytest.raises(UserError, match="made from a Design"):
        MixedEffects(architecture("linear", fed))


def test_a_formula_is_read_as_it_is_written() -> None:
    df = table(6).assign(g=lambda d: np.where(np.arange(len(d)) % 2, "u", "v"))
    fed, design = from_formula(df, "y ~ x * g + (x | site)", client="site")
    assert design.fixed == ("Intercept", "x", "g[v]", "x:g[v]")
    assert design.random == ("Intercept", "x")
    assert fed.clients == 6
    x, z = design.split(fed.batch([0]).x)[:2]
    rows = df[df.site == "s00"]
    both = df.x * (df.g == "v")
    np.testing.assert_allclose(x[0, :, 1].numpy(), (rows.x - df.x.mean()) / df.x.std(ddof=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        x[0, :, 3].numpy(), (both[rows.index] - both.mean()) / both.std(ddof=0), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(z[0, :, 1].numpy(), x[0, :, 1].numpy(), rtol=1e-6)
    assert (z[0, :, 0] == 1).all()
    turn = design.fixed_units.to_users(design.fixed, (4,), x).double()
    raw = np.column_stack([np.ones(len(rows)), rows.x, rows.g == "v", both[rows.index]])
    np.testing.assert_allclose(x[0].double().numpy(), raw @ turn.numpy(), rtol=1e-5, atol=1e-5)
    _, design = from_formula(df, "y ~ x + I(x**2) + (1 | site)")
    assert design.fixed == ("Intercept", "x", "I(x ** 2)")
    _, design = from_formula(df, "y ~ 1 + (0 + g | site)")
    assert design.random == ("g[u]", "g[v]")
    _, design = from_formula(df.assign(k=df.x.round().abs()), "k ~ scale(x) + (1 | site)", family="poisson")
    assert design.fixed == ("Intercept", "scale(x)")


@pytest.mark.parametrize(
    ("formula", "how", "words"),
    [
        ("y ~ x + (1 |", {}, "cannot be read"),
        ("y ~ nope + (1 | site)", {}, "unknown column 'nope'"),
        ("y ~ x", {}, "no random term, such as"),
        ("y ~ x + (1 | site) + (1 | g:same)", {}, "belong to one column, the client's, and here to g:same, site"),
        ("y ~ x + (1 | site)", {"client": "g"}, "belong to 'site', and the clients are 'g'"),
        ("y ~ x + (1 | site)", {"client": "nope"}, "unknown column 'nope'"),
        ("y ~ hole + (1 | site)", {}, "'hole' has 1 missing value"),
        ("y ~ x + (1 + level | site)", {}, "no client can inform the random slope of 'level'"),
        ("g ~ x + (1 | site)", {}, "holds no numbers"),
        ("y ~ x + (1 | site)", {"family": "binomial"}, "0 or 1"),
        ("y ~ x + (1 | site)", {"family": "poisson"}, "whole number"),
        ("y ~ x + (1 | site)", {"family": "cauchy"}, "unknown family 'cauchy'"),
        ("y ~ x + (1 | site)", {"known_se": "x"}, "not above zero"),
        ("y ~ x + (1 | site)", {"known_se": "se"}, "unknown column 'se'"),
        ("one ~ x + (1 | site)", {"family": "binomial", "known_se": "one"}, "belong to a gaussian"),
        ("y ~ x + (1 | site) + (x | site)", {}, "'Intercept' is in two terms: leave it out of one"),
        ("y ~ x + (1 | row)", {}, "no row has more rows than the 1 random effect, so"),
        ("y ~ Intercept + (1 | site)", {}, "taken for the intercept"),
        ("y ~ x + (1 | same)", {}, "all rows are of one same"),
        ("one ~ x + (1 | site)", {}, "'one' does not vary"),
        ("y ~ x + (1 | site)", {"known_se": "g"}, "cannot hold standard errors"),
    ],
)
def test_formulas_that_cannot_be(formula: str, how: dict, words: str) -> None:
    df = table(6)
    df = df.assign(g=np.where(np.arange(len(df)) % 2, "u", "v"), hole=df.x.where(df.index != 3), one=1)
    df["level"] = df.site.str[1:].astype(float)
    df = df.assign(twice=2 * df.x + 1, row=[f"r{k}" for k in range(len(df))], same="a", Intercept=df.x)
    with pytest.raises(UserError, match=words):
        from_formula(df, formula, **how)


def test_terms_of_several_effects_stand_beside_each_other() -> None:
    """Correlations inside a term, none between terms: the likelihood is that of the whole table's normal density."""
    df = table(10).assign(g=lambda d: np.where(np.arange(len(d)) % 2, "u", "v"), t=lambda d: np.sin(d.index))
    fit = mixed_model(df, "y ~ 1 + x + (1 + x | site) + (0 + g + t | site)", population="ml", draws=0)
    estimate = fit.summary().table.set_index("effect").estimate
    names, design = ["Intercept", "x", "g[u]", "g[v]", "t"], fit.method.network
    assert design.random == tuple(names)
    assert design.blocks == (2, 3)
    pairs = [name for name in estimate.index if name.startswith("corr(")]
    assert pairs == [f"corr({a}, {b})" for a, b in [("Intercept", "x"), ("g[u]", "g[v]"), ("g[u]", "t"), ("g[v]", "t")]]
    correlation = np.eye(5)
    for name in pairs:
        i, k = (names.index(part) for part in name[5:-1].split(", "))
        correlation[i, k] = correlation[k, i] = estimate[name]
    sd = np.array([estimate[f"sd({name})"] for name in names])
    z = np.column_stack([np.ones(len(df)), df.x, df.g == "u", df.g == "v", df.t])
    total = 0.0
    for _, rows in df.groupby("site"):
        site_z = z[rows.index]
        cov = site_z @ (correlation * np.outer(sd, sd)) @ site_z.T + estimate["sd(residual)"] ** 2 * np.eye(len(rows))
        total += multivariate_normal(estimate["Intercept"] + estimate["x"] * rows.x, cov).logpdf(rows.y)
    assert fit.log_likelihood == pytest.approx(total, abs=1e-7)


def test_a_clients_covariate_of_its_effects_is_an_interaction() -> None:
    """b_j ~ N(B u_j, Omega), B the coefficients of u and of x:u: simulated so, and found again."""
    rng, places = np.random.default_rng(5), 60
    who = np.repeat(np.arange(places), 30)
    u, x = rng.normal(size=places), rng.normal(size=len(who))
    b = np.column_stack([1 + 0.8 * u, 0.5 - 0.6 * u]) + 0.3 * rng.normal(size=(places, 2))
    df = pd.DataFrame({"y": b[who, 0] + b[who, 1] * x + rng.normal(size=len(who)), "x": x, "u": u[who]})
    fit = mixed_model(df.assign(site=who.astype(str)), "y ~ 1 + x * u + (1 + x | site)", population="ml", draws=0)
    effects = fit.summary().table.set_index("effect")
    for name, truth in (("Intercept", 1.0), ("x", 0.5), ("u", 0.8), ("x:u", -0.6)):
        assert abs(effects.estimate[name] - truth) < 3.5 * effects.standard_error[name]
    assert abs(effects.estimate["sd(x)"] - 0.3) < 0.1
