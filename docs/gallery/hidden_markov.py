"""A hidden Markov model by client: two states, and chances to stay in a state that vary between clients.

All clients have equally many rows, in the order of time: sites of single times stand in no plate that masks padding.
"""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import Bernoulli, HalfNormal, LogNormal, Normal

GROUP = "sensor"


def data(seed=0):
    """10 sensors with 25 readings each."""
    rng = np.random.default_rng(seed)
    rows = []
    for j in range(10):
        stay = 1 / (1 + np.exp(-rng.normal([1.5, 1.0], 0.5)))
        x = rng.integers(2)
        for t in range(25):
            x = x if t == 0 or rng.random() < stay[x] else 1 - x
            rows.append((f"sensor {j:02d}", t, round(rng.normal([0.0, 2.5][x], 1.0), 3)))
    return pd.DataFrame(rows, columns=["sensor", "time", "y"])


def model(batch):
    """Sensors j at times t; state x_jt is 0 or 1, and eta_jk is the log odds of staying in state k.

    eta_j ~ N(mu, diag(tau)^2),   P(x_jt = k | x_j,t-1 = k) = logistic(eta_jk),   y_jt ~ N(low + gap x_jt, sigma)
    low ~ N(0, 2),   gap ~ LogNormal(1, 0.5),   sigma ~ N+(0, 1),   mu ~ N(1, 1),   tau ~ N+(0, 0.5)
    """
    low = pyro.sample("low", Normal(0.0, 2.0))
    gap = pyro.sample("gap", LogNormal(1.0, 0.5))
    sigma = pyro.sample("sigma", HalfNormal(1.0))
    mu = pyro.sample("mu", Normal(1.0, 1.0).expand([2]).to_event(1))
    tau = pyro.sample("tau", HalfNormal(0.5).expand([2]).to_event(1))
    with pyro.plate("client", batch.num_clients, dim=-2):
        eta = pyro.sample("eta", Normal(mu, tau).to_event(1))
        stay = eta.sigmoid()
        active = 0.5
        for t in pyro.markov(range(batch.width)):
            x = pyro.sample(f"x_{t}", Bernoulli(active), infer={"enumerate": "parallel"})
            pyro.sample(f"y_{t}", Normal(low + gap * x, sigma), obs=batch["y"][..., t, None])
            active = x * stay[..., 1] + (1 - x) * (1 - stay[..., 0])
