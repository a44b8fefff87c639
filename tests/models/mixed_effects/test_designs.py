"""Designs and formulas that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from support.mixed import table

from hierfl import UserError
from hierfl.data.formula.design import Design
from hierfl.data.formula.federate import from_formula
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.nn.networks.build import architecture


def test_designs_that_cannot_be() -> None:
    for make, words in (
        (lambda: Design.of([], ["1"]), "at least one fixed"),
        (lambda: Design.of(["1"], ["1"], "gamma"), "unknown family 'gamma'"),  # type: ignore[arg-type]
        (lambda: Design.of(["1"], ["1"], "poisson", known=True), "belong to a gaussian"),
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
    x, z, known = design.split(fed.batch([0]).x)[:3]
    assert known is None
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
        ("y ~ x + (1 | site) + (1 | g)", {}, "belong to one column, the client's, and here to g, site"),
        ("y ~ x + (1 | site)", {"client": "g"}, "belong to 'site', and the clients are 'g'"),
        ("y ~ x + (1 | site)", {"client": "nope"}, "unknown column 'nope'"),
        ("y ~ hole + (1 | site)", {}, "'hole' has 1 missing value"),
        ("y ~ x + (1 + level | site)", {}, "no client can inform the random slope of 'level'"),
        ("g ~ x + (1 | site)", {}, "holds no numbers"),
        ("y ~ x + (1 | site)", {"family": "binomial"}, "0 or 1"),
        ("y ~ x + (1 | site)", {"family": "poisson"}, "whole number"),
        ("y ~ x + (1 | site)", {"family": "gamma"}, "unknown family 'gamma'"),
        ("y ~ x + (1 | site)", {"error": "x"}, "not above zero"),
        ("y ~ x + (1 | site)", {"error": "se"}, "unknown column 'se'"),
        ("one ~ x + (1 | site)", {"family": "binomial", "error": "one"}, "belong to a gaussian"),
        ("y ~ x + twice + (1 | site)", {}, "'twice' is a combination of those before it"),
        ("y ~ x + offset(level) + (1 | site)", {}, "has a coefficient of one, which is not there"),
        ("y ~ x + (1 + x | site) + (0 + twice | site)", {}, "each in one of its own"),
        ("y ~ x + (1 | row)", {}, "no row has more rows than the 1 random effect, so"),
        ("y ~ x + (x || site)", {}, "say covariance=diagonal"),
        ("y ~ Intercept + (1 | site)", {}, "taken for the intercept"),
        ("y ~ x + (1 | same)", {}, "all rows are of one same"),
        ("one ~ x + (1 | site)", {}, "'one' does not vary"),
        ("y ~ x + (1 | site)", {"error": "g"}, "cannot hold standard errors"),
    ],
)
def test_formulas_that_cannot_be(formula: str, how: dict, words: str) -> None:
    df = table(6)
    df = df.assign(g=np.where(np.arange(len(df)) % 2, "u", "v"), hole=df.x.where(df.index != 3), one=1)
    df["level"] = df.site.str[1:].astype(float)
    df = df.assign(twice=2 * df.x + 1, row=[f"r{k}" for k in range(len(df))], same="a", Intercept=df.x)
    with pytest.raises(UserError, match=words):
        from_formula(df, formula, **how)
