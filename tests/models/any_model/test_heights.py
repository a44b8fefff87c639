"""Heights of the clients' marginal likelihood."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_model_fits import SCHOOLS, centred, chunk_of, counts, fitted, table_of_counts

from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.heights import heights, latents_at
from hierfl.models.any_model.names import CENTRING, DRAWS, PHASE, Phase
from hierfl.models.any_model.spread import Spread, spread


@pytest.mark.cpu(6, "a climb, and many draws")
def test_estimates_are_unbiased_and_say_their_own_variance() -> None:
    run, method, fed = fitted(centred, SCHOOLS, reweigh=False)
    chunk = chunk_of(run, method, fed, **{PHASE: torch.tensor(float(Phase.EXPLORE))})
    point = torch.tensor([6.0, math.log(4.0)], dtype=torch.float64)
    estimates = heights(method, chunk, point.expand(2000, 2), 16, "test")
    y, variance = torch.tensor(SCHOOLS.y.values), torch.tensor(SCHOOLS.se.values) ** 2 + 16
    exact = -0.5 * (y - 6).square() / variance - 0.5 * (2 * math.pi * variance).log()
    ratio = (estimates.height - exact).exp()
    error = ratio.std(0) / math.sqrt(2000)
    assert ((ratio.mean(0) - 1).abs() < 4.5 * error + 1e-9).all()
    assert (estimates.variance.mean(0) / ratio.var(0) - 1).abs().max() < 0.25
    # Noise is of each point and client by itself.
    assert np.abs(np.corrcoef(ratio.T.numpy()) - np.eye(8)).max() < 0.1
    few = heights(method, replace(chunk, clients=chunk.clients[:1], values={k: v[:1] for k, v in chunk.values.items()},
                  examples=None), point.expand(5, 2), 16, "test")  # fmt: skip
    assert torch.allclose(few.height[:, 0], estimates.height[:5, 0])


@pytest.mark.slow
@pytest.mark.cpu(6, "two fits")
def test_clients_one_by_one_are_the_same() -> None:
    df = table_of_counts(4, 5)
    few = {"points": 64, "explored_rounds": 2, "inner": 4, "draws": 20}
    whole, apart = (fitted(counts, df, chunk=chunk, **few)[0] for chunk in (4, 1))
    assert whole.rounds == apart.rounds
    assert torch.allclose(whole.shared[DRAWS], apart.shared[DRAWS], rtol=1e-6)


def known_scale(batch: ColumnBatch) -> None:
    """Eight schools whose effects have a known spread: given mu all is normal."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, 4.0))
        with batch.data():
            pyro.sample("y", dist.Normal(theta, batch["se"]), obs=batch["y"])


@pytest.mark.cpu(3, "a climb")
def test_a_guide_that_is_right_makes_estimates_exact() -> None:
    run, method, fed = fitted(known_scale, SCHOOLS, reweigh=False)
    chunk = chunk_of(run, method, fed, **{PHASE: torch.tensor(float(Phase.EXPLORE))})
    points = torch.linspace(-20, 20, 5, dtype=torch.float64)[:, None]
    estimates = heights(method, chunk, points, 16, "test")
    y, variance = torch.tensor(SCHOOLS.y.values), torch.tensor(SCHOOLS.se.values) ** 2 + 16
    exact = -0.5 * (y - points).square() / variance - 0.5 * (2 * math.pi * variance).log()
    torch.testing.assert_close(estimates.height, exact, rtol=0, atol=1e-6)
    assert estimates.variance.max() < 1e-11
    # Draws of the latents are those of the posterior, with no more than eight proposals.
    own = latents_at(method, chunk, points[2:3].expand(4000, 1), 8, "test")[..., 0]
    c = chunk.values[CENTRING].flatten()
    theta = 4 ** (1 - c) * own  # at mu = 0
    shrunk = 16 / variance
    assert ((theta.mean(0) - shrunk * y) / (shrunk * (variance - 16)).sqrt()).abs().max() < 4.5 / math.sqrt(4000)
    assert (theta.var(0) / (shrunk * (variance - 16)) - 1).abs().max() < 4.5 * math.sqrt(2 / 4000)


@pytest.mark.parametrize("how", [Spread(4096, 2), Spread(4096, 4096, mirrored=False)], ids=["even", "independent"])
def test_densities_of_spread_draws_are_those_they_are_drawn_from(how: Spread) -> None:
    run, method, fed = fitted(known_scale, SCHOOLS.head(2), reweigh=False)
    z, log_q, log_ratio = spread(chunk_of(run, method, fed), how, 2, (0, 3), "test")
    assert z.shape == (4096, 3, 2, 2)
    normal = -0.5 * z.square().sum(-1) - math.log(2 * math.pi)
    torch.testing.assert_close(log_ratio, normal - log_q)
    # A normal's moments by importance sampling.
    assert (log_ratio.exp().mean(0) - 1).abs().max() < 0.03
    assert ((log_ratio.exp()[..., None] * z.square()).mean(0) - 1).abs().max() < 0.12
