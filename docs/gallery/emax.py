"""Dose and response by hospital: an Emax curve whose baseline and largest effect vary between hospitals."""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import HalfNormal, LogNormal, Normal

GROUP = "hospital"


def data(seed=0):
    """12 hospitals of 15 to 25 patients: dose in mg and response."""
    rng = np.random.default_rng(seed)
    hospital = np.repeat(np.arange(12), rng.integers(15, 26, 12))
    u = rng.normal([2.0, 10.0], [1.0, 2.0], (12, 2))
    dose = rng.choice([0.0, 5.0, 10.0, 25.0, 50.0, 100.0], len(hospital))
    response = rng.normal(u[hospital, 0] + u[hospital, 1] * dose / (15.0 + dose), 1.5).round(3)
    return pd.DataFrame({"hospital": [f"hospital {j:02d}" for j in hospital], "dose": dose, "response": response})


def model(batch):
    """Patients i of hospitals j; u_j holds a hospital's baseline and its largest effect, ED50 is common to all.

    u_j ~ N(mu, diag(tau)^2),   y_ij ~ N(u_j0 + u_j1 d_ij / (ED50 + d_ij), sigma)
    mu_0 ~ N(0, 5),   mu_1 ~ N(0, 20),   tau ~ N+(0, 3),   ED50 ~ LogNormal(log 20, 1),   sigma ~ N+(0, 3)
    """
    mu = pyro.sample("mu", Normal(torch.zeros(2), torch.tensor([5.0, 20.0])).to_event(1))
    tau = pyro.sample("tau", HalfNormal(3.0).expand([2]).to_event(1))
    ed50 = pyro.sample("ed50", LogNormal(np.log(20.0), 1.0))
    sigma = pyro.sample("sigma", HalfNormal(3.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(mu, tau).to_event(1))
        with pyro.plate("data", batch.width, dim=-1):
            response = u[..., 0] + u[..., 1] * batch["dose"] / (ed50 + batch["dose"])
            pyro.sample("y", Normal(response, sigma), obs=batch["response"])
