"""Ordered answers with cut points that vary: each ward uses the scale of pain, 0 to 3, in its own way."""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import Categorical, HalfNormal, Normal
from torch.nn.functional import pad

GROUP = "ward"


def data(seed=0):
    """16 wards of 20 to 35 patients: pain, and whether the patient has had the drug."""
    rng = np.random.default_rng(seed)
    ward = np.repeat(np.arange(16), rng.integers(20, 36, 16))
    first, steps = rng.normal(-1.0, 0.6, (16, 1)), rng.normal([0.3, 0.1], 0.3, (16, 2))
    cuts = np.concatenate([first, np.exp(steps)], axis=1).cumsum(axis=1)
    drug = rng.binomial(1, 0.5, len(ward))
    pain = (rng.logistic(-1.0 * drug, 1.0)[:, None] > cuts[ward]).sum(axis=1)
    return pd.DataFrame({"ward": [f"ward {j:02d}" for j in ward], "pain": pain, "drug": drug})


def model(batch):
    """Patients i of wards j. A ward's cut points c_j1 < c_j2 < c_j3 are a first one and two positive steps.

    c_j1 ~ N(mu, tau),   log(c_jk - c_j,k-1) ~ N(delta_k, s),   P(y_ij < k) = logistic(c_jk - beta drug_ij)
    beta ~ N(0, 2),   mu ~ N(0, 2),   delta ~ N(0, 1),   tau ~ N+(0, 1),   s ~ N+(0, 0.5)
    """
    beta = pyro.sample("beta", Normal(0.0, 2.0))
    mu = pyro.sample("mu", Normal(0.0, 2.0))
    delta = pyro.sample("delta", Normal(0.0, 1.0).expand([2]).to_event(1))
    tau = pyro.sample("tau", HalfNormal(1.0))
    s = pyro.sample("s", HalfNormal(0.5))
    with pyro.plate("client", batch.num_clients, dim=-2):
        first = pyro.sample("first", Normal(mu, tau))  # (S, 1)
        step = pyro.sample("step", Normal(delta, s).to_event(1))  # (S, 1, 2)
        cuts = torch.cat([first[..., None], step.exp()], dim=-1).cumsum(-1)  # (S, 1, 3)
        with pyro.plate("data", batch.width, dim=-1):
            below = torch.sigmoid(cuts - (beta * batch["drug"])[..., None])  # (S, n, 3)
            chances = pad(below, (0, 1), value=1.0) - pad(below, (1, 0))  # (S, n, 4)
            pyro.sample("pain", Categorical(chances), obs=batch["pain"])
