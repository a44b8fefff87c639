"""Models that no sum over clients can fit."""

from __future__ import annotations

import pyro
import torch
from pyro.distributions import (
    Categorical,
    Delta,
    ImproperUniform,
    LogNormal,
    MultivariateNormal,
    Normal,
    Poisson,
    Uniform,
    constraints,
)
from torch import Tensor

from hierfl.data.column_batch import ColumnBatch


def observe(batch: ColumnBatch, at: Tensor | float, width: int | None = None) -> None:
    with pyro.plate("data", width or batch.width, dim=-1):
        pyro.sample("y", Normal(at, 1.0), obs=batch["y"])


def no_client_plate(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    pyro.sample("y", Normal(mu, 1.0).expand([batch.num_clients, batch.width]).to_event(2), obs=batch["y"])


def client_plate_elsewhere(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-3):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(u, 1.0), obs=batch["y"][:, None])


def data_outside_of_client(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        pyro.sample("u", Normal(mu, 1.0))
    observe(batch, mu)


def other_size(batch: ColumnBatch) -> None:
    with pyro.plate("client", 7, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, u)


def latents_of_rows(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2), pyro.plate("data", batch.width, dim=-1):
        e = pyro.sample("e", Normal(0.0, 1.0))
        pyro.sample("y", Normal(e, 1.0), obs=batch["y"])


def discrete_global(batch: ColumnBatch) -> None:
    k = pyro.sample("k", Categorical(torch.ones(3)))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, k)


def counted_latent(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        k = pyro.sample("k", Poisson(3.0))
        observe(batch, k)


def prior_of_data(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(batch["y"].mean(), 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, mu)


def centred_over_clients(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, u - u.mean())


def walk_over_clients(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, u.cumsum(-2))


def neighbours(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, u)
    pyro.factor("car", -0.5 * u.diff(dim=-2).square().sum())


def process_over_clients(batch: ColumnBatch) -> None:
    f = pyro.sample("f", MultivariateNormal(torch.zeros(batch.num_clients), torch.eye(batch.num_clients)))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, f[:, None])


def standardised_by_all(batch: ColumnBatch) -> None:
    beta = pyro.sample("beta", Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, beta * (batch["x"] - batch["x"].mean()))


def nothing_observed(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.deterministic("fit", u + batch["x"])


def data_from_elsewhere(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(u, 1.0), obs=torch.tensor(1.5))


def improper(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", ImproperUniform(constraints.real, (), ()))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, mu)


def no_number(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, (u - 10).log())


def impossible_data(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", LogNormal(u, 1.0), obs=batch["y"])


def subsampled(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", 5, dim=-1, subsample_size=2):
            pyro.sample("y", Normal(u, 1.0), obs=batch["y"][:, :2])


def python_number(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, mu.item())


def python_branch(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, mu if mu > 0 else 0.0)


def flat_clients(batch: ColumnBatch) -> None:
    """The classic: a column of clients without its second dimension runs where clients and rows are as many."""
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, mu * batch["x"][:, 0])


def no_to_event(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(torch.zeros(2), 1.0))
        observe(batch, u[..., :1])


def no_to_event_global(batch: ColumnBatch) -> None:
    beta = pyro.sample("beta", Normal(torch.zeros(2), 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, beta[0])


def twice(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        pyro.sample("u", Normal(0.0, 1.0))
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, u)


def sites_of_data(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        if batch.width > 1:
            mu = mu + pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, mu)


def noise(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, u + 0.1 * torch.randn(()))


def mistyped(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, u * batch["dose"])


def parameter(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            own = pyro.param("w", lambda: torch.zeros(batch.num_clients, batch.width), event_dim=0)
            pyro.sample("y", Normal(u + own, 1.0), obs=batch["y"])


def vector_of_clients(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        own = pyro.param("w", torch.zeros(2), event_dim=1)
        observe(batch, pyro.sample("u", Normal(own[..., 0], 1.0)))


def parameters_of_clients(batch: ColumnBatch) -> None:
    own = pyro.param("w", lambda: torch.zeros(batch.num_clients, 1))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, pyro.sample("u", Normal(own, 1.0)))


def moving_bounds(batch: ColumnBatch) -> None:
    top = pyro.sample("top", LogNormal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Uniform(0.0, top))
        observe(batch, u)


def looped(batch: ColumnBatch) -> None:
    for j in pyro.plate("client", batch.num_clients):
        u = pyro.sample(f"u{j}", Normal(0.0, 1.0))
        pyro.sample(f"y{j}", Normal(u, 1.0).expand([batch.width]).to_event(1), obs=batch["y"][j])


def observed_outside(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    pyro.sample("total", Normal(mu, 1.0), obs=batch["y"].sum())
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, mu)


def single_precision(batch: ColumnBatch) -> None:
    weights = torch.ones(2, 1, dtype=torch.float32)
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(torch.zeros(2), 1.0).to_event(1))
        observe(batch, (u @ weights)[..., 0])


def raising(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, {}["nothing"])


def no_slope(batch: ColumnBatch) -> None:
    """Where the root is not taken, its slope is nan nevertheless."""
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        observe(batch, torch.where(batch["x"] > 100, (u - 10).sqrt(), u))


def float_index(batch: ColumnBatch) -> None:
    hard = pyro.sample("hard", Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("client", batch.num_clients, dim=-2):
        observe(batch, hard[batch["item"]])


def point_mass(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Delta(torch.tensor(1.0)))
        observe(batch, u)


def forgotten_obs(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("count", Poisson(u.exp()))


def other_rows(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(u, 1.0), obs=batch["y"][:, 0])


def no_argument() -> None:
    pass
