"""Points of clients where their likelihood's maximum leaves its tangent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

from hierfl import fit_model
from hierfl.data.column_batch import ColumnBatch


def deviations(batch: ColumnBatch) -> None:
    """A standard deviation of each client as its point: a log that curves at once."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    with batch.clients():
        s = pyro.param(
            "s", lambda: torch.ones(batch.num_clients, 1), constraint=dist.constraints.positive, event_dim=0
        )  # fmt: skip
        with batch.data():
            pyro.sample("y", dist.Normal(mu, s), obs=batch["y"])


@pytest.mark.cpu(4, "a fit of three clients")
def test_points_follow_the_curve_of_maxima_far_from_the_guide() -> None:
    """On its tangent the posterior of mu had a third of its standard deviation, and no warning."""
    rng = np.random.default_rng(5)
    df = pd.DataFrame({"site": np.repeat(list("abc"), 3)})
    df["y"] = rng.normal(size=9) * rng.gamma(2, 1, 3).repeat(3)
    draws = fit_model(deviations, df, group="site", progress=False, worth=4000, draws=4000, points=2048).globals["mu"]
    grid = np.linspace(-8, 8, 20001)
    height = -(grid**2) / 50
    for _, y in df.groupby("site")["y"]:
        height -= 1.5 * np.log(((y.to_numpy()[:, None] - grid) ** 2).mean(0))
    weight = np.exp(height - height.max())
    weight /= weight.sum()
    mean = (weight * grid).sum()
    sd = (weight * (grid - mean) ** 2).sum() ** 0.5
    assert abs(draws.mean() - mean) / sd < 0.08
    assert draws.std() / sd == pytest.approx(1, abs=0.06)
