"""Small models for the verdict: some whose fits are right, and some that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch

from hierfl.data.column_batch import ColumnBatch

#: how many topics
TOPICS = 3
#: standard errors of eight schools
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


class Case(NamedTuple):
    """A model with data of each seed, and the settings of its fits."""

    model: Callable[[ColumnBatch], Any]
    data: Callable[[int], pd.DataFrame]
    settings: dict[str, Any]


def _table(clients: int, rows: int, **columns: Any) -> pd.DataFrame:
    """A table of clients with so many rows each."""
    site = np.repeat([f"s{j}" for j in range(clients)], rows)
    return pd.DataFrame({"site": site, **{name: np.asarray(value, dtype=float) for name, value in columns.items()}})


# -- simulated from their priors: right ------------------------------------------------------------------------------


def schools(batch: ColumnBatch) -> None:
    """Eight schools."""
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfCauchy(5.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        with batch.data():
            pyro.sample("y", dist.Normal(theta, batch["sigma"]), obs=batch["y"])


def _schools(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 1])
    theta = rng.normal(rng.normal(0, 5), abs(5 * rng.standard_cauchy()), 8)
    return _table(8, 1, y=rng.normal(theta, ERRORS), sigma=ERRORS)


def poisson(batch: ColumnBatch) -> None:
    """Counts, with an intercept of each client."""
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 1.0)), pyro.sample("tau", dist.HalfNormal(1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, tau))
        with batch.data():
            pyro.sample("y", dist.Poisson(u.exp()), obs=batch["y"])


def _poisson(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 2])
    u = rng.normal(rng.normal(), abs(rng.normal()), 8)
    return _table(8, 3, y=rng.poisson(np.exp(u).repeat(3)))


def binomial(batch: ColumnBatch) -> None:
    """Successes of ten trials, with an intercept of each client."""
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 1.5)), pyro.sample("tau", dist.HalfNormal(1.0))
    with batch.clients():
        u = mu + tau * pyro.sample("e", dist.Normal(0.0, 1.0))
        with batch.data():
            pyro.sample("y", dist.Binomial(10, logits=u), obs=batch["y"])


def _binomial(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 3])
    u = rng.normal(1.5 * rng.normal(), abs(rng.normal()), 6)
    return _table(6, 1, y=rng.binomial(10, 1 / (1 + np.exp(-u))))


def normal(batch: ColumnBatch) -> None:
    """Means of clients; both variances are not known."""
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    tau, sigma = pyro.sample("tau", dist.HalfNormal(1.0)), pyro.sample("sigma", dist.HalfNormal(1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, tau))
        with batch.data():
            pyro.sample("y", dist.Normal(u, sigma), obs=batch["y"])


def _normal(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 4])
    tau, sigma = np.abs(rng.normal(size=2))
    return _table(6, 4, y=rng.normal(rng.normal(3 * rng.normal(), tau, 6).repeat(4), sigma))


# -- wrong on purpose ------------------------------------------------------------------------------------------------


def hidden(batch: ColumnBatch) -> None:
    """Eight schools whose text hides that a school's effect has a location and a scale: it stays centred."""
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfCauchy(5.0))
    flat = dist.Uniform(-1000.0, 1000.0)
    with batch.clients():
        theta = pyro.sample("theta", flat)
        pyro.factor("population", dist.Normal(mu, tau).log_prob(theta))
        with batch.data():
            pyro.sample("y", dist.Normal(theta, batch["sigma"]), obs=batch["y"])


def _hidden(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 5])
    return _table(8, 1, y=rng.normal(rng.normal(5, 3, 8), ERRORS), sigma=ERRORS)


def funnel(batch: ColumnBatch) -> None:
    """Neal's funnel (2003) in the globals, beside clients that say nothing of it."""
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    with pyro.plate("directions", 5, dim=-1):
        pyro.sample("x", dist.Normal(0.0, (v / 2).exp()))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(0.0, 1.0))
        with batch.data():
            pyro.sample("y", dist.Normal(u, 1.0), obs=batch["y"])


def _funnel(seed: int) -> pd.DataFrame:
    return _table(2, 1, y=np.random.default_rng([seed, 6]).normal(size=2))


def signs(batch: ColumnBatch) -> None:
    """The sign of a client's latent is not known: two modes."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, 3.0))
        with batch.data():
            pyro.sample("y", dist.Normal(u.abs(), 0.3), obs=batch["y"])


def _signs(seed: int) -> pd.DataFrame:
    return _table(6, 1, y=np.random.default_rng([seed, 7]).uniform(0.8, 2.4, 6))


def topics(batch: ColumnBatch) -> None:
    """Topics of six words: the posterior is the same when topics change their names."""
    with pyro.plate("topics", TOPICS, dim=-1):
        phi = pyro.sample("phi", dist.Dirichlet(torch.full((6,), 0.5)))
    with batch.clients():
        theta = pyro.sample("theta", dist.Dirichlet(torch.full((TOPICS,), 0.5)))
        with batch.data():
            z = pyro.sample("z", dist.Categorical(theta), infer={"enumerate": "parallel"})
            pyro.sample("word", dist.Categorical(phi[z]), obs=batch["word"])


def _topics(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 8])
    phi = np.kron(np.eye(TOPICS), np.full(2, 0.4)) + 0.1 / 3 * (1 - np.kron(np.eye(TOPICS), np.ones(2)))
    phi /= phi.sum(1, keepdims=True)
    z = np.array([rng.choice(TOPICS, 20, p=rng.dirichlet(np.full(TOPICS, 0.5))) for _ in range(6)])
    return _table(6, 20, word=[rng.choice(6, p=phi[k]) for k in z.ravel()])


def horseshoe(batch: ColumnBatch) -> None:
    """A horseshoe prior of six coefficients, of which one matters."""
    tau = pyro.sample("tau", dist.HalfCauchy(0.2))
    with pyro.plate("covariates", 6, dim=-1):
        lam = pyro.sample("lam", dist.HalfCauchy(1.0))
        e = pyro.sample("e", dist.Normal(0.0, 1.0))
    x = torch.stack([batch[f"x{k}"] for k in range(6)], -1)
    with batch.clients():
        alpha = pyro.sample("alpha", dist.Normal(0.0, 1.0))
        with batch.data():
            pyro.sample("y", dist.Normal(alpha + (x * (tau * lam * e)).sum(-1), 1.0), obs=batch["y"])


def _horseshoe(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 9])
    x = rng.normal(size=(30, 6))
    y = rng.normal(rng.normal(size=6).repeat(5) + x[:, 0])
    return _table(6, 5, y=y, **{f"x{k}": x[:, k] for k in range(6)})


#: a few points in two rounds
FEW: dict[str, Any] = {"points": 64, "explored_rounds": 2}
CASES = {
    "schools": Case(schools, _schools, {}),
    "poisson": Case(poisson, _poisson, {}),
    "binomial": Case(binomial, _binomial, {}),
    "normal": Case(normal, _normal, {}),
    "held, few points": Case(hidden, _hidden, {**FEW, "inner": 2}),
    "funnel": Case(funnel, _funnel, {"points": 256, "explored_rounds": 8}),
    "signs": Case(signs, _signs, {}),
    "topics": Case(topics, _topics, {"points": 256, "explored_rounds": 6}),
    "horseshoe": Case(horseshoe, _horseshoe, {"points": 256, "explored_rounds": 8}),
}
