"""Predictions of mixed models, from other chunks and rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.mixed import covariance, estimates, fitted, random_effects, table

from hierfl import UserError
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models.mixed_effects.method import MixedEffects


def test_chunks_and_predictions() -> None:
    df = table(12)
    whole = fitted(df, "y ~ 1 + x + (1 + x | site)")
    again = fit(whole.fitted.method, whole.fitted.federation, rounds=100, chunk=1, dtype=torch.float64, progress=False)
    for name, value in whole.shared.items():
        # (a slope at the maximum is what rounding has left of it)
        assert torch.allclose(value, again.shared[name], rtol=1e-7, atol=1e-6), name
    x = np.array([[1.0, 2.0, 1.0, 2.0]])
    beta, b = estimates(whole)[["Intercept", "x"]].to_numpy(), random_effects(whole)[0][3]
    said = whole.predict(x, client="s03")[0]
    assert float(said[0]) == pytest.approx((beta + b) @ [1.0, 2.0], rel=1e-6)
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
    found = estimates(run)
    spread = ((x @ covariance(run)) * x).sum(1) + found["sd(residual)"] ** 2
    mean = x @ torch.tensor(found[["Intercept", "x"]].to_numpy())
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
    # (a client that joins with the rows of another one is that one, but for what its rows have said of the population)
    np.testing.assert_allclose(again[:, 0], run.predict(new, client="s02")[:, 0], rtol=1e-6)
    for rows, words in (
        (new.drop(columns="x"), "lacks column 'x'"),
        (new.assign(g="w"), "column 'g' has the level 'w', which was in no row of the fit"),
        (new.assign(x=np.nan), "missing values"),
    ):
        with pytest.raises(UserError, match=words):
            run.predict(rows, client="s02")
