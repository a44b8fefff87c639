"""Fits of plain Pyro models whose posterior is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from hierfl import Federation
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.run.result import Run
from hierfl.models.any_model.evaluating import constrained
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.names import CENTRING, DRAWS, OWN_DRAWS

SCHOOLS = pd.DataFrame({
    "school": list("ABCDEFGH"), "y": [28.0, 8, -3, 7, -1, 1, 18, 12], "se": [15.0, 10, 16, 11, 9, 11, 10, 18]
})  # fmt: skip


def centred(batch: ColumnBatch) -> None:
    """Eight schools with the effect as the latent."""
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfCauchy(5.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        with batch.data():
            pyro.sample("y", dist.Normal(theta, batch["se"]), obs=batch["y"])


def non_centred(batch: ColumnBatch) -> None:
    """The same with a standard normal as the latent."""
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfCauchy(5.0))
    with batch.clients():
        theta = mu + tau * pyro.sample("eta", dist.Normal(0.0, 1.0))
        with batch.data():
            pyro.sample("y", dist.Normal(theta, batch["se"]), obs=batch["y"])


def counts(batch: ColumnBatch) -> None:
    """Counts with an intercept and a slope of each client."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    tau = pyro.sample("tau", dist.HalfNormal(torch.ones(2)).to_event(1))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(beta, tau).to_event(1))
        with batch.data():
            rate = (u[..., 0] + u[..., 1] * batch["x"]).clamp(max=12).exp()
            pyro.sample("y", dist.Poisson(rate), obs=batch["y"])


def table_of_counts(clients: int, rows: int, seed: int = 1) -> pd.DataFrame:
    """Data of :func:`counts`."""
    rng = np.random.default_rng(seed)
    x, u = (
        rng.normal(size=(clients, rows)),
        np.array([0.5, -0.3]) + np.array([0.6, 0.3]) * rng.normal(size=(clients, 2)),
    )
    y = rng.poisson(np.exp(u[:, :1] + u[:, 1:] * x)).astype(float)
    names = np.repeat([f"s{j:02d}" for j in range(clients)], rows)
    return pd.DataFrame({"site": names, "x": x.ravel(), "y": y.ravel()})


def fitted(
    model: Callable[[ColumnBatch], Any], df: pd.DataFrame, seed: int = 0, chunk: int | None = None, **settings: Any
) -> tuple[Run, AnyModel, Federation]:
    """A fit to a table whose first column names the client."""
    client, *columns = df.columns
    fed = Federation.from_frame(
        df.assign(_y=0.0), client=client, y="_y", x=columns, test=0.0, task="regression", standardise=False,
        spellings="keep",
    )  # fmt: skip
    method = AnyModel(ColumnDesign.from_columns(columns), model, **settings)
    more = {} if chunk is None else {"chunk": chunk}
    run = fit(method, fed, 150, splits=(), dtype=torch.float64, progress=False, seed=seed, **more)
    return run, method, fed


def chunk_of(run: Run, method: AnyModel, fed: Federation, **shared: Tensor) -> ClientChunk:
    """All clients after a fit, with other shared values."""
    values = {name: value.unsqueeze(1) for name, value in run.personal.items()}
    return ClientChunk(method, fed, list(range(len(fed.ids))), 0, 0, {**run.shared, **shared}, values)


def schools(run: Run, method: AnyModel) -> dict[str, Tensor]:
    """Draws of mu, tau (D,) and theta (8, D) of either text."""
    values = constrained(method.sites, run.shared[DRAWS])
    mu, tau, own = values["mu"], values["tau"], run.personal[OWN_DRAWS][..., 0]
    c = run.personal[CENTRING]
    theta = mu + tau * own if method.sites.clients[0].name == "eta" else mu + tau ** (1 - c) * (own - c * mu)
    return {"mu": mu, "tau": tau, "theta": theta}


def exact_schools() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and sd of the same by quadrature over log tau: given tau all is normal."""
    u = np.linspace(-12, 9, 20001)
    tau, y, s = np.exp(u), SCHOOLS.y.values, SCHOOLS.se.values
    v = s**2 + tau[:, None] ** 2
    precision, b = (1 / v).sum(1) + 1 / 25, (y / v).sum(1)
    density = -0.5 * np.log(v).sum(1) - 0.5 * (y**2 / v).sum(1) + 0.5 * b**2 / precision - 0.5 * np.log(precision)
    density += u - np.log1p((tau / 5) ** 2)
    w = np.exp(density - density.max())
    w /= w.sum()
    shrunk = tau[:, None] ** 2 / v
    theta = shrunk * y + (1 - shrunk) * (b / precision)[:, None]
    spread = shrunk * s**2 + (1 - shrunk) ** 2 / precision[:, None]

    def of(mean: np.ndarray, variance: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        first = w @ mean
        return first, np.sqrt(w @ (variance + mean**2) - first**2)

    return {"mu": of(b / precision, 1 / precision), "tau": of(tau, 0.0), "theta": of(theta, spread)}
