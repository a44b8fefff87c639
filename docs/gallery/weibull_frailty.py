"""Survival with censoring: Weibull hazards with a gamma frailty of each centre (Clayton 1978)."""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import Gamma, HalfNormal, LogNormal, Normal

GROUP = "centre"


def data(seed=0):
    """20 centres of 10 to 20 patients: months of follow-up, whether the event was seen, and treatment."""
    rng = np.random.default_rng(seed)
    centre = np.repeat(np.arange(20), rng.integers(10, 21, 20))
    frailty = rng.gamma(2.0, 0.5, 20)
    treated = rng.binomial(1, 0.5, len(centre))
    rate = frailty[centre] * np.exp(-3.0 - 0.7 * treated)
    months = (rng.exponential(size=len(centre)) / rate) ** (1 / 1.4)
    end = rng.uniform(6.0, 18.0, len(centre))
    table = {"centre": [f"centre {j:02d}" for j in centre], "months": np.minimum(months, end).clip(0.01).round(2)}
    return pd.DataFrame({**table, "event": (months <= end).astype(int), "treated": treated})


def model(batch):
    """Patients i of centres j; h is the hazard, H the cumulative hazard, event_ij = 0 where follow-up ended first.

    w_j ~ Gamma(1 / v, 1 / v), with mean 1 and variance v,   H_ij(t) = w_j exp(beta_0 + beta_1 treated_ij) t^k
    log p(t_ij, event_ij) = event_ij log h_ij(t_ij) - H_ij(t_ij),   h = dH / dt
    beta_0 ~ N(-2, 2),   beta_1 ~ N(0, 1),   k ~ LogNormal(0, 0.5),   v ~ N+(0, 1)
    """
    baseline = pyro.sample("baseline", Normal(-2.0, 2.0))
    effect = pyro.sample("effect", Normal(0.0, 1.0))
    k = pyro.sample("k", LogNormal(0.0, 0.5))
    v = pyro.sample("v", HalfNormal(1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        w = pyro.sample("w", Gamma(1 / v, 1 / v))
        with pyro.plate("data", batch.width, dim=-1):
            log_t = batch["months"].log()
            log_rate = w.log() + baseline + effect * batch["treated"]
            log_hazard = log_rate + k.log() + (k - 1) * log_t
            pyro.factor("survival", batch["event"] * log_hazard - (log_rate + k * log_t).exp())
