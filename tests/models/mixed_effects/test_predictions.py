"""Predictions of mixed models, from other chunks and rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.mixed import covariance, fitted, table

from hierfl import UserError
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models.mixed_effects.method import MixedEffects


def test_chunks_and_predictions() -> None:
    df = table(12)
    whole = fitted(df, "y ~ 1 + x + (1 + x | site)", rounds=30)
    again = fit(whole.fitted.method, whole.fitted.federation, rounds=30, chunk=1, dtype=torch.float64, progress=False)
    for name, value in whole.shared.items():
        assert torch.allclose(value, again.shared[name], rtol=1e-7), name
    x = np.array([[1.0, 2.0, 1.0, 2.0]])
    beta, b = whole.shared["effects.beta"], whole.personal["b_mean"][3]
    said = whole.predict(x, client="s03")[0]
    assert torch.isclose(said[0], (beta + b) @ torch.tensor([1.0, 2.0]).double(), rtol=1e-6)
    new = whole.predict_new_client(x, draws=4000)[0]
    assert abs(float(new[0] - beta @ torch.tensor([1.0, 2.0]).double())) < 0.2
    design = np.array([1.0, 2.0])
    spread = design @ covariance(whole) @ design + float((2 * whole.shared["effects.log_noise"]).exp())
    assert float(new[1]) == pytest.approx(spread**0.5, rel=0.05)


def test_the_global_model_knows_how_much_places_differ() -> None:
    """Its score is that of N(x beta, z^T Sigma z + sigma^2), of which 200 draws know a little less than all."""
    fed, design = from_formula(table(30), "y ~ 1 + x + (1 + x | site)", test=0.3)
    run = fit(MixedEffects(design, draws=0), fed, 20, chunk=30, dtype=torch.float64, progress=False)
    x = fed.x[fed.global_test][:, :2]
    spread = ((x @ covariance(run)) * x).sum(1) + (2 * run.shared["effects.log_noise"]).exp()
    wanted = torch.distributions.Normal(x @ run.shared["effects.beta"], spread.sqrt()).log_prob(fed.y[fed.global_test])
    assert run.last()["gm_nll"] == pytest.approx(-float(wanted.mean()), abs=0.03)
    assert 0.8 < run.last()["gm_coverage90"] < 0.98


def test_predictions_from_other_rows_of_the_table() -> None:
    df = table(8).assign(g=lambda d: np.where(np.arange(len(d)) % 2, "u", "v"))
    run = fitted(df, "y ~ scale(x) * g + (x | site)", rounds=5)
    new = df.iloc[[3, 8, 20]].drop(columns=["y", "site"])
    row = run.fitted.federation.about["reader"](new)
    beta, b = run.shared["effects.beta"], run.personal["b_mean"][2]
    wanted = row[:, :4] @ beta.numpy() + row[:, 4:] @ b.numpy()
    np.testing.assert_allclose(run.predict(new, client="s02")[:, 0].numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(row[:, 1], (new.x - df.x.mean()) / df.x.std(ddof=0), rtol=1e-6)
    np.testing.assert_allclose(row[:, 5], new.x)
    assert run.predict_new_client(new, given=(df[df.site == "s02"], df.y[df.site == "s02"]), draws=0).shape == (3, 2)
    for rows, words in (
        (new.drop(columns="x"), "lacks column 'x'"),
        (new.assign(g="w"), "does not fit the table"),
        (new.assign(x=np.nan), "missing values"),
    ):
        with pytest.raises(UserError, match=words):
            run.predict(rows, client="s02")
