"""Kenward and Roger's covariance where a variance is zero, or a correlation one: that is taken for known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl import mixed_model


@pytest.mark.cpu(4, "two fits")
def test_a_slope_without_variance_changes_no_covariance() -> None:
    rng = np.random.default_rng(1)
    n = 300
    df = pd.DataFrame({"site": np.repeat([f"s{k}" for k in range(15)], 20), "x": rng.normal(size=n)})
    rng.normal(size=n)
    df["y"] = df.x + rng.normal(size=n) + np.repeat(rng.normal(size=15), 20)
    slope, alone = (
        mixed_model(df, f"y ~ x + {random}", draws=0, kenward_roger=True) for random in ("(x || site)", "(1 | site)")
    )
    table = slope.summary().table.set_index("effect")
    assert table.estimate["sd(x)"] == 0
    pd.testing.assert_frame_equal(slope.vcov(), alone.vcov(), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(table.df[:2], alone.summary().table.df[:2], rtol=1e-4)


@pytest.mark.cpu(4, "a fit")
def test_a_correlation_of_one_bends_no_covariance() -> None:
    """Beside dense matrices, of variances that keep to (a, b) (a, b)^T; pbkrtest, which leaves them, is wider."""
    rng = np.random.default_rng(1)
    df = pd.DataFrame({"site": np.repeat([f"s{k}" for k in range(12)], 8), "x": rng.normal(size=96)})
    df["y"] = df.x + rng.normal(size=96) + np.repeat(rng.normal(size=12), 8) * (1 + 0.3 * df.x)
    fit = mixed_model(df, "y ~ x + (1 + x | site)", draws=0, kenward_roger=True)
    table = fit.summary().table.set_index("effect")
    assert table.note["corr(Intercept, x)"] == "at its bound"
    a, b, sigma = table.estimate[["sd(Intercept)", "sd(x)", "sd(residual)"]]
    b *= table.estimate["corr(Intercept, x)"]

    x, same = df.x.to_numpy(), np.equal.outer(df.site.to_numpy(), df.site.to_numpy()).astype(float)
    slopes = np.stack([same, same * np.add.outer(x, x), same * np.outer(x, x), np.eye(96)])  # of V
    design, along = np.column_stack([np.ones(96), x]), np.array([[2 * a, b, 0, 0], [0, a, 2 * b, 0], [0, 0, 0, 1]])
    inverse = np.linalg.inv(np.einsum("i,ijk->jk", [a * a, a * b, b * b, sigma**2], slopes))
    weighed = inverse @ design
    phi = np.linalg.inv(design.T @ weighed)
    p = -np.einsum("ap,iab,bq->ipq", weighed, slopes, weighed)
    q = np.einsum("ap,iab,bc,jcd,dq->ijpq", weighed, slopes, inverse, slopes, weighed, optimize=True)
    turned, steps = inverse @ slopes, phi @ p
    twice = np.einsum("iab,jba->ij", turned, turned) - 2 * np.einsum("ab,ijba->ij", phi, q)
    information = (twice + np.einsum("iab,jba->ij", steps, steps)) / 2
    spread = along.T @ np.linalg.inv(along @ information @ along.T) @ along
    more = np.einsum("ij,ijab->ab", spread, q) - np.einsum("ij,iab,jbc->ac", spread, p @ phi, p)
    g = np.einsum("ab,ibc,ca->ia", phi, p, phi)

    np.testing.assert_allclose(fit.vcov(), phi + 2 * phi @ more @ phi, rtol=1e-4)
    df_of_each = 2 * phi.diagonal() ** 2 / np.einsum("ia,ij,ja->a", g, spread, g)
    np.testing.assert_allclose(table.df[:2], df_of_each, rtol=1e-3)
