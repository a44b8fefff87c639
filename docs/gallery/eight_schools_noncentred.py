"""Eight schools, non-centred: the posterior is that of ``eight_schools.py``, written with standardised effects.

Seed 0 gives the published table; other seeds redraw the estimates from the model with mu = 5 and tau = 5.
"""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import HalfCauchy, Normal

GROUP = "school"
EFFECTS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
ERRORS = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]


def data(seed=0):
    """One row a school: the estimated effect and its standard error."""
    y, sigma = np.array(EFFECTS), np.array(ERRORS)
    if seed:
        rng = np.random.default_rng(seed)
        y = rng.normal(rng.normal(5.0, 5.0, 8), sigma).round(1)
    return pd.DataFrame({"school": list("ABCDEFGH"), "y": y, "sigma": sigma})


def model(batch):
    """Non-centred, priors as in posteriordb (eight_schools_noncentered).

    mu ~ N(0, 5),   tau ~ C+(0, 5),   eta_j ~ N(0, 1),   theta_j = mu + tau eta_j,   y_j ~ N(theta_j, sigma_j)
    """
    mu = pyro.sample("mu", Normal(0.0, 5.0))
    tau = pyro.sample("tau", HalfCauchy(5.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        eta = pyro.sample("eta", Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", mu + tau * eta)
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(theta, batch["sigma"]), obs=batch["y"])
