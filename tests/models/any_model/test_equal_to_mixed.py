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

#: priors of both texts; x is centred, since a mixed model's intercept is that of the centred table
PRIORS = {
    "intercept_prior": "normal(0, 5)", "beta_prior": "normal(0, 5)", "sd_prior": "half-cauchy(2)",
    "residual_prior": "half-cauchy(2)", "lkj": 2.0,
}  # fmt: skip
#: standard errors of a mean and of a log sd that two sets of 1,000 independent draws may be apart
MOST = 4.5


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


@pytest.mark.cpu(9, "two fits, one of which explores six globals")
def test_globals_and_clients_are_those_of_the_mixed_model() -> None:
    df = table(8).groupby("site").head(8)
    df = df.assign(x=df.x - df.x.mean())
    formula = "y ~ x + (1 + x | site)"
    draws = mixed_model(df, formula, population="bayes", draws=1000, **PRIORS).posterior().posterior  # type: ignore[arg-type]
    found = fit_model(mixed, df, progress=False, draws=1000)
    one = found.globals
    mine = np.column_stack(
        [one["beta"], one["sd"], one["root"][:, 1, 0], one["sigma"], found.clients["u"].reshape(1000, -1)]
    )
    other = np.column_stack([draws[name].values.reshape(mine.shape[0], -1) for name in ("effects", "b")])
    each = np.sqrt(2 / 1000)
    sd = other.std(0)
    assert (np.abs(mine.mean(0) - other.mean(0)) / sd).max() < MOST * each
    # (the standard error of a log sd is sqrt((kurtosis - 1) / 4n): twice a normal's for the longest tails here)
    assert np.abs(np.log(mine.std(0) / sd)).max() < 2 * MOST * each / np.sqrt(2)
    ends = [np.quantile(what, [0.05, 0.95], axis=0) for what in (mine, other)]
    # (an end point's standard error is 2.1 times a mean's where draws are normal, more where a tail is long)
    assert (np.abs(ends[0] - ends[1]) / sd).max() < 3 * MOST * each
