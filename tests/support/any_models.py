"""Plain Pyro models with a client plate, and small data for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch

from hierfl import Federation
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.models.any_model.method import AnyModel

#: rounds, points and draws of a fit that takes a second
FEW: dict[str, Any] = {
    "fit_draws": 8, "fine_draws": 16, "points": 32, "explored_rounds": 3, "worth": 40, "inner": 4, "draws": 16,
}  # fmt: skip
COLUMNS = ("x", "y")


def poisson(batch: ColumnBatch) -> None:
    """Counts, with an intercept of each client."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(beta[..., 0], tau))
        with batch.data():
            pyro.sample("y", dist.Poisson((u + beta[..., 1] * batch["x"]).exp()), obs=batch["y"])


def brief(batch: ColumnBatch) -> None:
    """Counts, of which little is left to learn: a fit of few rounds, exploration and all."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 0.2).to_event(1))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(beta[..., 0], 0.3))
        with batch.data():
            pyro.sample("y", dist.Poisson((u + beta[..., 1] * batch["x"]).exp()), obs=batch["y"])


def normal(batch: ColumnBatch) -> None:
    """A mean of each client, all variances known: log joints are quadratic."""
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, 2.0))
        with batch.data():
            pyro.sample("y", dist.Normal(theta + batch["x"], 1.0), obs=batch["y"])


def counts(rows: Sequence[int], seed: int = 0) -> pd.DataFrame:
    """Rows of a Poisson model, so many of each client."""
    rng = np.random.default_rng(seed)
    parts = []
    for index, number in enumerate(rows):
        x, u = rng.normal(size=number), 0.4 + 0.5 * rng.normal()
        y = rng.poisson(np.exp(u - 0.3 * x)).astype(float)
        parts.append(pd.DataFrame({"site": f"s{index:02d}", "x": x, "y": y}))
    return pd.concat(parts, ignore_index=True)


def federation_of(df: pd.DataFrame, columns: Sequence[str] = COLUMNS) -> Federation:
    """A table's columns as a federation's inputs."""
    return Federation.from_frame(
        df.assign(_y=0.0), client="site", y="_y", x=list(columns), test=0.0, task="regression", standardise=False,
        spellings="keep",
    )  # fmt: skip


def small(program: Any = brief, rows: Sequence[int] = (7, 4, 9, 5, 6), **settings: Any) -> tuple[AnyModel, Federation]:
    """A small fit: method and data."""
    return AnyModel(ColumnDesign.from_columns(COLUMNS), program, **{**FEW, **settings}), federation_of(counts(rows))
