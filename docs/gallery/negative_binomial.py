"""Overdispersed counts: seizures by hospital, a negative binomial regression with an intercept that varies."""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import Gamma, HalfNormal, NegativeBinomial, Normal

GROUP = "hospital"


def data(seed=0):
    """20 hospitals of 10 to 20 patients: seizures, weeks of observation, and whether the patient was treated."""
    rng = np.random.default_rng(seed)
    hospital = np.repeat(np.arange(20), rng.integers(10, 21, 20))
    alpha = rng.normal(0.2, 0.5, 20)
    treated = rng.binomial(1, 0.5, len(hospital))
    weeks = rng.integers(2, 9, len(hospital))
    mean = weeks * np.exp(alpha[hospital] - 0.5 * treated)
    seizures = rng.poisson(mean * rng.gamma(2.0, 1 / 2.0, len(hospital)))
    names = [f"hospital {j:02d}" for j in hospital]
    return pd.DataFrame({"hospital": names, "seizures": seizures, "treated": treated, "weeks": weeks})


def model(batch):
    """Patients i of hospitals j, m_ij the expected count; phi is 1 / overdispersion: var = m + m^2 / phi.

    alpha_j ~ N(mu, tau),   m_ij = weeks_ij exp(alpha_j + beta treated_ij),   y_ij ~ NegativeBinomial(m_ij, phi)
    mu, beta ~ N(0, 2.5),   tau ~ N+(0, 1),   phi ~ Gamma(2, 0.5)
    """
    mu = pyro.sample("mu", Normal(0.0, 2.5))
    beta = pyro.sample("beta", Normal(0.0, 2.5))
    tau = pyro.sample("tau", HalfNormal(1.0))
    phi = pyro.sample("phi", Gamma(2.0, 0.5))
    with pyro.plate("client", batch.num_clients, dim=-2):
        alpha = pyro.sample("alpha", Normal(mu, tau))
        with pyro.plate("data", batch.width, dim=-1):
            log_mean = batch["weeks"].log() + alpha + beta * batch["treated"]
            pyro.sample("y", NegativeBinomial(phi, logits=log_mean - phi.log()), obs=batch["seizures"])
