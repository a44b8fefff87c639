"""A mixture of three Gaussians whose weights vary between clients; memberships are summed over, not sampled."""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import Categorical, Dirichlet, HalfNormal, LogNormal, Normal

GROUP = "lab"


def data(seed=0):
    """12 labs of 20 to 40 measurements."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([4.0, 3.0, 3.0], 12)
    rows = []
    for j, share in enumerate(shares):
        z = rng.choice(3, rng.integers(20, 41), p=share)
        rows += [(f"lab {j:02d}", y) for y in rng.normal(np.array([-3.0, 0.0, 4.0])[z], 0.8).round(3)]
    return pd.DataFrame(rows, columns=["lab", "y"])


def model(batch):
    """Measurements i of labs j, in one of three groups with ordered means: m_1 < m_2 < m_3.

    pi ~ Dirichlet(2, 2, 2),   pi_j ~ Dirichlet(10 pi),   z_ij ~ Categorical(pi_j),   y_ij ~ N(m_z(ij), sigma)
    m_1 ~ N(-3, 2),   m_2 - m_1, m_3 - m_2 ~ LogNormal(1, 0.5),   sigma ~ N+(0, 2)
    """
    lowest = pyro.sample("lowest", Normal(-3.0, 2.0))
    gap = pyro.sample("gap", LogNormal(1.0, 0.5).expand([2]).to_event(1))
    sigma = pyro.sample("sigma", HalfNormal(2.0))
    pi = pyro.sample("pi", Dirichlet(torch.full((3,), 2.0)))
    m = torch.stack([lowest, lowest + gap[0], lowest + gap[0] + gap[1]])
    with pyro.plate("client", batch.num_clients, dim=-2):
        pi_j = pyro.sample("pi_j", Dirichlet(10 * pi))
        with pyro.plate("data", batch.width, dim=-1):
            z = pyro.sample("z", Categorical(pi_j), infer={"enumerate": "parallel"})
            pyro.sample("y", Normal(m[z], sigma), obs=batch["y"])
