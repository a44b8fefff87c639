"""A Bayesian head on a network's features: the model that FedPop, pFedVEM, PFedEB and others share.

Features are columns of the table, as the last layer of a trained network gives them.
"""

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import Categorical, HalfNormal, Normal

GROUP = "phone"
FEATURES = ["h1", "h2", "h3"]


def data(seed=0):
    """12 phones of 15 to 30 images: three features of an image and its label, one of three."""
    rng = np.random.default_rng(seed)
    phone = np.repeat(np.arange(12), rng.integers(15, 31, 12))
    h = np.tanh(rng.normal(size=(len(phone), 3))).round(3)
    w = rng.normal(rng.normal(0.0, 1.5, (4, 3)), 0.7, (12, 4, 3))
    logits = np.einsum("ik,ikc->ic", np.column_stack([np.ones(len(phone)), h]), w[phone])
    label = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return pd.DataFrame(
        {"phone": [f"phone {j:02d}" for j in phone], **dict(zip(FEATURES, h.T, strict=True)), "label": label}
    )


def model(batch):
    """Images i of phones j; h_ij are features and a one, w_j the 4 x 3 weights of a phone's head.

    w ~ N(0, 2),   rho ~ N+(0, 1),   w_j ~ N(w, rho),   label_ij ~ Categorical(softmax(w_j' h_ij))
    """
    w = pyro.sample("w", Normal(0.0, 2.0).expand([4, 3]).to_event(2))
    rho = pyro.sample("rho", HalfNormal(1.0))
    h = torch.stack([torch.ones_like(batch["label"]), *(batch[name] for name in FEATURES)], dim=-1)  # (S, n, 4)
    with pyro.plate("client", batch.num_clients, dim=-2):
        w_j = pyro.sample("w_j", Normal(w, rho).to_event(2))  # (S, 1, 4, 3)
        with pyro.plate("data", batch.width, dim=-1):
            logits = (h.unsqueeze(-2) @ w_j).squeeze(-2)  # (S, n, 3)
            pyro.sample("label", Categorical(logits=logits), obs=batch["label"])
