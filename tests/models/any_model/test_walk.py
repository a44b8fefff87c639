"""Clients' latents whose posterior is far wider at some globals than where the guide was fitted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logit
from scipy.stats import beta
from support.any_model_fits import chunk_of, fitted

from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.heights import latents_at
from hierfl.models.any_model.names import PHASE, VERDICT, Phase
from hierfl.models.any_model.overlap import overlap
from hierfl.models.any_model.verdict import Verdict


def shares(batch: ColumnBatch) -> None:
    """A chance of each client."""
    size = pyro.sample("size", dist.LogNormal(1.0, 1.0))
    with batch.clients():
        p = pyro.sample("p", dist.Beta(0.5 * size, 0.5 * size))
        with batch.data():
            pyro.sample("y", dist.Bernoulli(p), obs=batch["y"])


@pytest.mark.cpu(3, "a climb, and many draws")
def test_draws_reach_tails_that_no_proposal_of_the_guide_does() -> None:
    df = pd.DataFrame({"site": ["a", "b", "c"], "y": [1.0, 0.0, 1.0]})
    run, method, fed = fitted(shares, df, reweigh=False)
    chunk = chunk_of(run, method, fed, **{PHASE: torch.tensor(float(Phase.EXPLORE))})
    points = torch.tensor([[np.log(0.6)]]).double().expand(2000, 1)
    own = latents_at(method, chunk, points, 32, "test")[:, 0, 0].numpy()
    # The logit of Beta(1.3, 0.3); the upper tail falls like exp(-0.3 u).
    exact = logit(np.minimum(beta(1.3, 0.3).ppf([0.05, 0.5, 0.95]), 1 - 1e-16))
    assert (np.abs(np.quantile(own, [0.05, 0.5, 0.95]) - exact) < [0.4, 0.4, 1.5]).all()


def two_modes(batch: ColumnBatch) -> None:
    """The sign of a client's latent is not known, and its size is known well."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, 2.0))
        with batch.data():
            pyro.sample("y", dist.Normal(u.abs(), 0.1), obs=batch["y"])


def one_mode(batch: ColumnBatch) -> None:
    """The same without doubt of the sign, and with a spread that is to be found."""
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 1.0)), pyro.sample("tau", dist.HalfCauchy(1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, tau))
        with batch.data():
            pyro.sample("y", dist.Normal(u, 0.1), obs=batch["y"])


@pytest.mark.cpu(4, "a fit")
@pytest.mark.parametrize(("model", "warned"), [(two_modes, 3), (one_mode, 0)])
def test_a_mode_far_from_the_guide_is_warned_of(model: object, warned: int) -> None:
    df = pd.DataFrame({"site": ["a", "b", "c"], "y": [3.0, 2.0, 4.0]})
    run, _, _ = fitted(model, df, points=128, explored_rounds=2, draws=20)  # type: ignore[arg-type]
    assert Verdict.read(run.shared).centrings == warned


@pytest.mark.cpu(3, "a climb")
def test_one_point_far_from_the_posterior_makes_no_client_heavy() -> None:
    df = pd.DataFrame({"site": ["a", "b", "c"], "y": [3.0, 2.0, 4.0]})
    run, method, fed = fitted(one_mode, df, reweigh=False)
    chunk = chunk_of(run, method, fed, **{PHASE: torch.tensor(float(Phase.EXPLORE)), VERDICT: Verdict().values})
    points = run.shared["posterior.mean"].expand(8, 2).clone()
    points[0] = torch.tensor([300.0, -9.0])
    assert not overlap(method, chunk, points).heavy.any()
