"""Item response theory, two parameters: each pupil is a client with one ability, items are shared by all."""

import numpy as np
import pandas as pd
import pyro
from pyro.distributions import Bernoulli, LogNormal, Normal

GROUP = "pupil"


def data(seed=0):
    """50 pupils; each answers 6 to 8 of 8 items, one row an answer."""
    rng = np.random.default_rng(seed)
    difficulty = np.linspace(-1.5, 1.5, 8)
    discrimination = rng.lognormal(0.2, 0.3, 8)
    rows = []
    for j in range(50):
        ability = rng.normal()
        for k in sorted(rng.choice(8, rng.integers(6, 9), replace=False)):
            chance = 1 / (1 + np.exp(-discrimination[k] * (ability - difficulty[k])))
            rows.append((f"pupil {j:02d}", f"item {k}", int(rng.random() < chance)))
    return pd.DataFrame(rows, columns=["pupil", "item", "correct"])


def model(batch):
    """Pupils j, items k; the answer in row i is to item k(i). Birnbaum's model, with the scale set by the abilities.

    a_k ~ LogNormal(0, 0.5),   b_k ~ N(0, 1.5),   theta_j ~ N(0, 1),   P(y_ij = 1) = logistic(a_k(i) (theta_j - b_k(i)))
    """
    with pyro.plate("items", len(batch.levels("item")), dim=-1):
        a = pyro.sample("a", LogNormal(0.0, 0.5))
        b = pyro.sample("b", Normal(0.0, 1.5))
    with pyro.plate("client", batch.num_clients, dim=-2):
        theta = pyro.sample("theta", Normal(0.0, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            item = batch["item"].long()
            pyro.sample("y", Bernoulli(logits=a[item] * (theta - b[item])), obs=batch["correct"])
