"""Continuous latents of every row are numbers of their client: the posterior is that of the integrated model."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pyro
import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.data.federation import Federation
from hierfl.inference import fit
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.names import MEAN, PRECISION


def with_latents(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 10.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        theta = pyro.sample("theta", Normal(mu, 2.0))
        with pyro.plate("data", batch.width, dim=-1):
            e = pyro.sample("e", Normal(theta, 1.0))
            pyro.sample("y", Normal(e, 1.5), obs=batch["y"])


def integrated(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 10.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        theta = pyro.sample("theta", Normal(mu, 2.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(theta, 3.25**0.5), obs=batch["y"])


def posterior(model: Callable, rows: int) -> tuple[Tensor, Tensor]:
    """Mean and precision of mu, from clients with one, two and three rows."""
    frame = pd.DataFrame({"site": list("aabbbc"), "y": [1.0, 2.5, -1.0, 0.5, 3.0, 4.0], "target": 0.0})
    federation = Federation.from_frame(
        frame, client="site", y="target", x=["y"], test=0.0, task="regression", standardise=False, spellings="keep"
    )
    method = AnyModel(ColumnDesign.from_columns(["y"], rows=rows), model, reweigh=False)
    run = fit(method, federation, 30, splits=(), dtype=torch.float64, progress=False)
    return run.shared[MEAN], run.shared[PRECISION]


def test_they_are_integrated_out_where_clients_are_ragged() -> None:
    mean, precision = posterior(with_latents, 3)
    expected, sharpness = posterior(integrated, 1)
    torch.testing.assert_close(mean, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(precision, sharpness, rtol=1e-8, atol=1e-8)
