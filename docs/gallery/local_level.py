"""A state-space model by client: a level drifts and is seen with noise (Harvey 1989). The series is a client latent."""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import HalfNormal, Normal
from torch.nn.functional import pad

GROUP = "river"


def data(seed=0):
    """10 rivers, 20 months each, in the order of time."""
    rng = np.random.default_rng(seed)
    steps = np.concatenate([rng.normal(10.0, 2.0, (10, 1)), rng.normal(0.0, 0.5, (10, 19))], axis=1)
    y = rng.normal(steps.cumsum(axis=1), 0.7).round(3)
    rows = [(f"river {j:02d}", t, y[j, t]) for j in range(10) for t in range(20)]
    return pd.DataFrame(rows, columns=["river", "month", "flow"])


def model(batch):
    """Rivers j at times t = 1 ... n.

    level_j1 ~ N(mu, s),   level_jt = level_j,t-1 + step_jt,   step_jt ~ N(0, drift),   y_jt ~ N(level_jt, noise)
    mu ~ N(0, 20),   s ~ N+(0, 5),   drift, noise ~ N+(0, 1)
    """
    mu = pyro.sample("mu", Normal(0.0, 20.0))
    s = pyro.sample("s", HalfNormal(5.0))
    drift = pyro.sample("drift", HalfNormal(1.0))
    noise = pyro.sample("noise", HalfNormal(1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        start = pyro.sample("start", Normal(mu, s))  # (S, 1)
        step = pyro.sample("step", Normal(torch.zeros(batch.width - 1), drift).to_event(1))  # (S, 1, n - 1)
        level = pyro.deterministic("level", start[..., None] + pad(step.cumsum(-1), (1, 0)))  # (S, 1, n)
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(level.squeeze(-2), noise), obs=batch["flow"])
