"""The Gaussian mixed model written as a plain model has the posterior of the mixed model."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.mixed import table

from hierfl import fit_model, mixed_model
from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.names import WORTH

#: priors of both texts; x is centred, since a mixed model's intercept is that of the centred table
PRIORS = {
    "intercept_prior": "normal(0, 5)", "beta_prior": "normal(0, 5)", "sd_prior": "half-cauchy(2)",
    "residual_prior": "half-cauchy(2)", "lkj": 2.0,
}  # fmt: skip
#: standard errors that two estimates may be apart
MOST = 4.0


def mixed(batch: ColumnBatch) -> None:
    """A random intercept and a random slope that go together."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    sd = pyro.sample("sd", dist.HalfCauchy(torch.full((2,), 2.0)).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.0))
    root = pyro.sample("root", dist.LKJCholesky(2, 2.0))
    with batch.clients():
        u = pyro.sample("u", dist.MultivariateNormal(torch.zeros(2), scale_tril=sd[..., None] * root))
        line = beta[..., 0] + u[..., 0] + (beta[..., 1] + u[..., 1]) * batch["x"]
        with batch.data():
            pyro.sample("y", dist.Normal(line, sigma), obs=batch["y"])


@pytest.mark.slow
@pytest.mark.cpu(11, "an exploration of six globals; two fits of the mixed model")
@pytest.mark.parametrize(("worth", "seeds"), [
    (1000, 2),
    pytest.param(6000, 12, marks=[pytest.mark.slow, pytest.mark.cpu(60, "points worth 6,000 draws, and twelve fits")]),
])  # fmt: skip
def test_globals_and_clients_are_those_of_the_mixed_model(worth: int, seeds: int) -> None:
    """Means, sds and ends of 90 % intervals, within standard errors that follow from what points are worth.

    A mixed model's exploration ends at points that are worth 500 draws: several seeds are pooled.
    """
    df = table(8).groupby("site").head(8)
    df = df.assign(x=df.x - df.x.mean())
    formula, pooled, of_mixed = "y ~ x + (1 + x | site)", [], 0.0
    for seed in range(seeds):
        other = mixed_model(df, formula, population="bayes", draws=2000, seed=seed, **PRIORS)  # type: ignore[arg-type]
        draws, of_mixed = other.posterior().posterior, of_mixed + float(other.run.shared["effects.worth"])
        pooled.append(np.column_stack([draws[name].values.reshape(2000, -1) for name in ("effects", "b")]))
    fit = fit_model(mixed, df, progress=False, draws=worth, worth=worth, points=max(512, worth // 6))
    latents, of_plain = fit.globals, float(fit.run.shared[WORTH])
    assert of_plain >= worth
    assert of_mixed >= 500 * seeds
    mine = np.column_stack(
        [
            latents["beta"],
            latents["sd"],
            latents["root"][:, 1, 0],
            latents["sigma"],
            fit.clients["u"].reshape(worth, -1),
        ]
    )
    theirs, each = np.concatenate(pooled), (1 / of_plain + 1 / of_mixed) ** 0.5
    sd = theirs.std(0)
    assert (np.abs(mine.mean(0) - theirs.mean(0)) / sd).max() < MOST * each
    # The variance of a log sd is (kurtosis - 1) / 4n.
    kurtosis = (((theirs - theirs.mean(0)) / sd) ** 4).mean(0)
    assert (np.abs(np.log(mine.std(0) / sd)) / np.sqrt((kurtosis - 1) / 4)).max() < MOST * each
    for level in (0.05, 0.95):
        below = (mine < np.quantile(theirs, level, axis=0)).mean(0)
        assert np.abs(below - level).max() < MOST * each * (level * (1 - level)) ** 0.5
