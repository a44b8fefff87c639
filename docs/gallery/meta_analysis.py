"""Meta-analysis with known errors: trials of the BCG vaccine (Colditz et al. 1994), with a trial's latitude.

Seed 0 gives the thirteen published trials; other seeds redraw the estimates from the model.
"""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import HalfNormal, Normal

GROUP = "trial"
#: vaccinated: cases, healthy; others: cases, healthy; latitude
TRIALS = {
    "Aronson 1948": (4, 119, 11, 128, 44),
    "Ferguson 1949": (6, 300, 29, 274, 55),
    "Rosenthal 1960": (3, 228, 11, 209, 42),
    "Hart 1977": (62, 13536, 248, 12619, 52),
    "Frimodt-Moller 1973": (33, 5036, 47, 5761, 13),
    "Stein 1953": (180, 1361, 372, 1079, 44),
    "Vandiviere 1973": (8, 2537, 10, 619, 19),
    "Madras 1980": (505, 87886, 499, 87892, 13),
    "Coetzee 1968": (29, 7470, 45, 7232, 27),
    "Rosenthal 1961": (17, 1699, 65, 1600, 42),
    "Comstock 1974": (186, 50448, 141, 27197, 18),
    "Comstock 1969": (5, 2493, 3, 2338, 33),
    "Comstock 1976": (27, 16886, 29, 17825, 33),
}


def data(seed=0):
    """One row a trial: log risk ratio, its standard error, and latitude in units of 10 degrees from 33."""
    a, b, c, d, latitude = np.array(list(TRIALS.values()), dtype=float).T
    y = np.log(a / (a + b)) - np.log(c / (c + d))
    error = np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
    x = (latitude - 33) / 10
    if seed:
        rng = np.random.default_rng(seed)
        y = rng.normal(rng.normal(-0.7 - 0.3 * x, 0.3), error)
    return pd.DataFrame({"trial": list(TRIALS), "y": y.round(4), "error": error.round(4), "latitude": x})


def model(batch):
    """Trials j with latitude x_j and known error s_j.

    theta_j ~ N(mu + beta x_j, tau),   y_j ~ N(theta_j, s_j),   mu, beta ~ N(0, 1),   tau ~ N+(0, 0.5)
    """
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    beta = pyro.sample("beta", Normal(0.0, 1.0))
    tau = pyro.sample("tau", HalfNormal(0.5))
    with pyro.plate("client", batch.num_clients, dim=-2):
        theta = pyro.sample("theta", Normal(mu + beta * batch.client("latitude"), tau))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(theta, batch["error"]), obs=batch["y"])
