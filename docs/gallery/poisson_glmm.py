"""Counts by clinic: a Poisson regression whose intercept and slope vary between clients."""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import HalfNormal, Normal, Poisson

GROUP = "clinic"


def data(seed=0):
    """24 clinics of 6 to 16 patients: visits, and a standardised covariate."""
    rng = np.random.default_rng(seed)
    clinic = np.repeat(np.arange(24), rng.integers(6, 17, 24))
    u = rng.normal([0.5, -0.3], [0.6, 0.3], (24, 2))
    x = rng.normal(size=len(clinic)).round(3)
    visits = rng.poisson(np.exp(u[clinic, 0] + u[clinic, 1] * x))
    return pd.DataFrame({"clinic": [f"clinic {j:02d}" for j in clinic], "visits": visits, "x": x})


def model(batch):
    """Patients i of clinics j; u_j holds a clinic's intercept and slope.

    u_j ~ N(beta, diag(tau)^2),   y_ij ~ Poisson(exp(u_j0 + u_j1 x_ij)),   beta ~ N(0, 5),   tau ~ N+(0, 1)
    """
    beta = pyro.sample("beta", Normal(0.0, 5.0).expand([2]).to_event(1))
    tau = pyro.sample("tau", HalfNormal(1.0).expand([2]).to_event(1))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(beta, tau).to_event(1))
        with pyro.plate("data", batch.width, dim=-1):
            rate = (u[..., 0] + u[..., 1] * batch["x"]).exp()
            pyro.sample("y", Poisson(rate), obs=batch["visits"])
