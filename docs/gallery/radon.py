"""Radon in homes, with a covariate of the county: a varying intercept with a regression of its own.

The model is that of Gelman and Hill (2007), chapter 12. Data are simulated with the size of that survey's effects.
"""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import HalfNormal, Normal

GROUP = "county"


def data(seed=0):
    """20 counties of 4 to 24 homes: log radon, floor of the measurement, and the county's log uranium."""
    rng = np.random.default_rng(seed)
    homes = rng.integers(4, 25, 20)
    county = np.repeat(np.arange(20), homes)
    uranium = rng.normal(0.0, 0.4, 20).round(3)
    alpha = rng.normal(1.5 + 0.7 * uranium, 0.3)
    floor = rng.binomial(1, 0.2, len(county))
    log_radon = rng.normal(alpha[county] - 0.6 * floor, 0.75).round(3)
    names = np.array([f"county {j:02d}" for j in range(20)])[county]
    return pd.DataFrame({"county": names, "log_radon": log_radon, "floor": floor, "county_uranium": uranium[county]})


def model(batch):
    """Homes i in counties j, with u_j the county's log uranium.

    alpha_j ~ N(gamma_0 + gamma_1 u_j, sigma_alpha),   y_ij ~ N(alpha_j + beta floor_ij, sigma_y)
    gamma_0, gamma_1, beta ~ N(0, 2.5),   sigma_alpha, sigma_y ~ N+(0, 1)
    """
    gamma = pyro.sample("gamma", Normal(0.0, 2.5).expand([2]).to_event(1))
    beta = pyro.sample("beta", Normal(0.0, 2.5))
    sigma_alpha = pyro.sample("sigma_alpha", HalfNormal(1.0))
    sigma_y = pyro.sample("sigma_y", HalfNormal(1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        alpha = pyro.sample("alpha", Normal(gamma[0] + gamma[1] * batch.client("county_uranium"), sigma_alpha))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(alpha + beta * batch["floor"], sigma_y), obs=batch["log_radon"])
