"""Joint draws of population and clients: what they are of, and how often their intervals cover."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from support.client_intervals import SETTINGS, coverage
from support.mixed import fitted, table

from hierfl.models.mixed_effects.search.priors import MEAN, SHAPE


def test_draws_are_of_the_exact_joint_posterior() -> None:
    """Known residual, flat mean: tau's posterior by numerical integration, everything else in closed form given tau."""
    rng = np.random.default_rng(3)
    y, se = rng.normal(1, 1.5, 7), rng.uniform(0.4, 1.2, 7)
    df = pd.DataFrame({"y": y, "se": se, "site": list("abcdefg")})
    run = fitted(df, "y ~ 1 + (1 | site)", known_se="se", draws=8000)
    rate = SHAPE / (MEAN * y.std())

    def given(tau: float) -> tuple[float, float, float]:
        w = 1 / (se**2 + tau**2)
        mu = (w * y).sum() / w.sum()
        log = 0.5 * np.log(w).sum() - 0.5 * np.log(w.sum()) - 0.5 * (w * (y - mu) ** 2).sum()
        return log + (SHAPE - 1) * np.log(tau) - rate * tau, mu, 1 / w.sum()

    def mean(f) -> float:
        weight = lambda tau: np.exp(given(tau)[0])  # noqa: E731
        return quad(lambda t: f(t) * weight(t), 0, 40, limit=400)[0] / quad(weight, 0, 40, limit=400)[0]

    tau = mean(lambda t: t)
    tau_sd = np.sqrt(mean(lambda t: t**2) - tau**2)
    mu = mean(lambda t: given(t)[1])
    mu_sd = np.sqrt(mean(lambda t: given(t)[1] ** 2 + given(t)[2]) - mu**2)
    draws = run.posterior().posterior
    effects = draws["effects"].to_numpy().reshape(-1, 2)
    assert effects[:, 0].mean() == pytest.approx(mu, abs=0.05 * mu_sd)
    assert effects[:, 0].std() == pytest.approx(mu_sd, rel=0.05)
    assert effects[:, 1].mean() == pytest.approx(tau, abs=0.05 * tau_sd)
    assert effects[:, 1].std() == pytest.approx(tau_sd, rel=0.05)
    # theta_j = mu + b_j: shrunk towards a mean that is drawn with it
    theta = draws["b"].to_numpy().reshape(-1, 7) + effects[:, :1]
    for j in range(7):

        def moments(t: float, j: int = j) -> tuple[float, float]:
            _, m, v = given(t)
            keep = t**2 / (t**2 + se[j] ** 2)
            return m + keep * (y[j] - m), keep * se[j] ** 2 + (1 - keep) ** 2 * v

        middle = mean(lambda t: moments(t)[0])
        spread = np.sqrt(mean(lambda t: moments(t)[1] + moments(t)[0] ** 2) - middle**2)
        assert theta[:, j].mean() == pytest.approx(middle, abs=0.05 * spread), j
        assert theta[:, j].std() == pytest.approx(spread, rel=0.05), j


def test_what_is_not_known_of_the_population_reaches_the_clients() -> None:
    """With draws, sds are longer than those at the plugged-in estimates, and moments are the draws' own."""
    df = table(6, seed=2)
    plugged = fitted(df, "y ~ 1 + x + (1 + x | site)", draws=0)
    whole = fitted(df, "y ~ 1 + x + (1 + x | site)", draws=4000)
    assert torch.equal(plugged.shared["effects.root"], whole.shared["effects.root"])  # the estimates are the same
    short, long = (run.personal["b_root"].square().sum(-1).sqrt() for run in (plugged, whole))
    assert (long > 1.1 * short).all()
    kept = whole.personal["b_draws"].flatten(1, 2)
    assert torch.allclose(kept.mean(1), whole.personal["b_mean"], atol=0.06 * float(long.max()))
    assert torch.allclose(kept.std(1), long, rtol=0.06)


def test_predictions_have_the_whole_spread_by_default() -> None:
    df = table(6, seed=2)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)", draws=2000)
    rows = df.head(4)
    whole, point = run.predict(rows, client="s00"), run.predict(rows, client="s00", draws=0)
    assert (whole[:, 1] > point[:, 1]).all()
    new = run.predict_new_client(rows, draws=2000)
    assert (new[:, 1] > whole[:, 1]).all()
    far = rows.assign(x=rows.x + 50)  # extrapolation is less sure, since the slope is not known
    assert (run.predict(far, client="s00")[:, 1] > 3 * whole[:, 1]).all()


def test_a_posterior_is_in_the_tables_units() -> None:
    """b of the intercept is of x = 0, not of x at its mean."""
    df = table(8).assign(x=lambda d: d.x + 30)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)", draws=1000)
    data = run.posterior()
    beta = data.posterior["effects"].sel(effect=["Intercept", "x"]).to_numpy()
    b, x = data.posterior["b"].to_numpy(), float(df.x.iloc[0])
    eta = beta[..., 0] + b[:, :, 0, 0] + x * (beta[..., 1] + b[:, :, 0, 1])
    assert eta.mean() == pytest.approx(float(run.predict(df.head(1), client="s00")[0, 0]), abs=1e-6)
    assert list(data.posterior["effect"].values)[:2] == ["Intercept", "x"]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_intervals_cover(setting) -> None:
    """Twenty of the two hundred replicates that are committed: shares within what so few can say."""
    shares = coverage(setting, 20)
    for name, (share, error) in shares.items():
        assert 0.84 - 2.5 * error - 0.02 <= share, (name, share, error)
