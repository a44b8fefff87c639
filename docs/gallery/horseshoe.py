"""Sparse regression with a horseshoe prior (Carvalho, Polson and Scott 2010), and an intercept of each client."""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import HalfCauchy, HalfNormal, Normal

GROUP = "site"
COLUMNS = [f"x{k}" for k in range(1, 9)]


def data(seed=0):
    """12 sites of 8 to 16 rows: eight covariates, of which two matter."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(12), rng.integers(8, 17, 12))
    x = rng.normal(size=(len(site), 8)).round(3)
    alpha = rng.normal(1.0, 0.5, 12)
    y = rng.normal(alpha[site] + 1.0 * x[:, 0] - 0.6 * x[:, 3], 1.0).round(3)
    return pd.DataFrame({"site": [f"site {j:02d}" for j in site], **dict(zip(COLUMNS, x.T, strict=True)), "y": y})


def model(batch):
    """Rows i of sites j, covariates k. Scales of coefficients have tails so heavy that no Gaussian has their shape.

    beta_k = tau lambda_k e_k,   e_k ~ N(0, 1),   lambda_k ~ C+(0, 1),   tau ~ C+(0, 0.2)
    alpha_j ~ N(mu, s),   y_ij ~ N(alpha_j + x_ij' beta, sigma),   mu ~ N(0, 5),   s, sigma ~ N+(0, 2)
    """
    tau = pyro.sample("tau", HalfCauchy(0.2))
    with pyro.plate("covariates", len(COLUMNS), dim=-1):
        lam = pyro.sample("lam", HalfCauchy(1.0))
        e = pyro.sample("e", Normal(0.0, 1.0))
    beta = pyro.deterministic("beta", tau * lam * e)
    mu = pyro.sample("mu", Normal(0.0, 5.0))
    s = pyro.sample("s", HalfNormal(2.0))
    sigma = pyro.sample("sigma", HalfNormal(2.0))
    x = torch.stack([batch[name] for name in COLUMNS], dim=-1)  # (S, n, 8)
    with pyro.plate("client", batch.num_clients, dim=-2):
        alpha = pyro.sample("alpha", Normal(mu, s))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(alpha + (x * beta).sum(-1), sigma), obs=batch["y"])
