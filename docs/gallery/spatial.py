"""A coefficient that varies in space. Clients are coupled: this model **cannot** be fitted from sums, and is refused.

Neighbours' slopes are correlated, so that a client's term of the log joint depends on the latents of other clients.
"""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import HalfNormal, LogNormal, Normal

GROUP = "district"


def data(seed=0):
    """12 districts of 10 rows each: where a district is, a covariate and a response."""
    rng = np.random.default_rng(seed)
    where = rng.uniform(0.0, 3.0, (12, 2)).round(2)
    distance = np.linalg.norm(where[:, None] - where, axis=-1)
    slope = 1.0 + 0.8 * np.linalg.cholesky(np.exp(-distance) + 1e-6 * np.eye(12)) @ rng.normal(size=12)
    district = np.repeat(np.arange(12), 10)
    x = rng.normal(size=120).round(3)
    y = rng.normal(slope[district] * x, 0.5).round(3)
    names = [f"district {j:02d}" for j in district]
    return pd.DataFrame({"district": names, "east": where[district, 0], "north": where[district, 1], "x": x, "y": y})


def model(batch):
    """Rows i of districts j; K_jk = exp(-distance_jk / reach), L L' = K.

    slope_j = mu + tau (L e)_j,   e_j ~ N(0, 1),   y_ij ~ N(slope_j x_ij, sigma)
    mu ~ N(0, 2),   tau, sigma ~ N+(0, 1),   reach ~ LogNormal(0, 0.5)
    """
    mu = pyro.sample("mu", Normal(0.0, 2.0))
    tau = pyro.sample("tau", HalfNormal(1.0))
    reach = pyro.sample("reach", LogNormal(0.0, 0.5))
    sigma = pyro.sample("sigma", HalfNormal(1.0))
    where = torch.cat([batch.client("east"), batch.client("north")], dim=-1)  # (S, 2)
    distance = (where[:, None] - where).square().sum(-1).clamp(min=1e-12).sqrt()  # (S, S)
    root = torch.linalg.cholesky(torch.exp(-distance / reach) + 1e-6 * torch.eye(len(where), dtype=where.dtype))
    with pyro.plate("client", batch.num_clients, dim=-2):
        e = pyro.sample("e", Normal(0.0, 1.0))  # (S, 1)
        slope = mu + tau * (root @ e)  # row j of the root mixes all districts
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(slope * batch["x"], sigma), obs=batch["y"])
