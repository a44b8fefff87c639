"""The gallery's Poisson regression with priors under which counts stay below a few thousand.

Under the gallery's own, N(0, 5) of a slope, one data set in three holds counts of 1e7 to 1e15.
"""

import pyro
from pyro.distributions import HalfNormal, Normal, Poisson


def model(batch):
    """u_j ~ N(beta, diag(tau)^2),   y_ij ~ Poisson(exp(u_j0 + u_j1 x_ij)),   beta ~ N(0, 1),   tau ~ N+(0, 0.5)."""
    beta = pyro.sample("beta", Normal(0.0, 1.0).expand([2]).to_event(1))
    tau = pyro.sample("tau", HalfNormal(0.5).expand([2]).to_event(1))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(beta, tau).to_event(1))
        with pyro.plate("data", batch.width, dim=-1):
            rate = (u[..., 0] + u[..., 1] * batch["x"]).exp()
            pyro.sample("y", Poisson(rate), obs=batch["visits"])
