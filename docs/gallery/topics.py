"""Topics over silos: latent Dirichlet allocation (Blei et al. 2003) where each silo is one mixture of topics."""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import Categorical, Dirichlet

GROUP = "silo"
WORDS = ["bone", "cast", "x-ray", "heart", "pulse", "stent", "skin", "rash", "cream"]


def data(seed=0):
    """8 silos of 60 words each, one row a word."""
    rng = np.random.default_rng(seed)
    topics = np.full((3, 9), 0.1 / 6)
    for k in range(3):
        topics[k, 3 * k : 3 * k + 3] = 0.3
    rows = []
    for j in range(8):
        z = rng.choice(3, 60, p=rng.dirichlet([0.5, 0.5, 0.5]))
        rows += [(f"silo {j}", WORDS[rng.choice(9, p=topics[k])]) for k in z]
    return pd.DataFrame(rows, columns=["silo", "word"])


def model(batch):
    """Words i of silos j, topics k. The order of topics is arbitrary: the posterior has 3! copies of each mode.

    phi_k ~ Dirichlet(0.5, ..., 0.5),   theta_j ~ Dirichlet(0.5, 0.5, 0.5)
    z_ij ~ Categorical(theta_j),   word_ij ~ Categorical(phi_z(ij))
    """
    with pyro.plate("topics", 3, dim=-1):
        phi = pyro.sample("phi", Dirichlet(torch.full((len(batch.levels("word")),), 0.5)))
    with pyro.plate("client", batch.num_clients, dim=-2):
        theta = pyro.sample("theta", Dirichlet(torch.full((3,), 0.5)))
        with pyro.plate("data", batch.width, dim=-1):
            z = pyro.sample("z", Categorical(theta), infer={"enumerate": "parallel"})
            pyro.sample("word", Categorical(phi[z]), obs=batch["word"])
