"""Residual standard deviations of each client, beside NUTS: posteriors under the same priors, by Pyro.

    python tests/support/nuts/own_spreads.py 1000 2 > tests/support/own_spreads_nuts.json

    y_ij ~ N(beta_0 + beta_1 x_ij + u_j, exp(gamma + e_j)^2),    u_j ~ N(0, tau^2),    e_j ~ N(0, omega^2)

The test beside it (test_own_spreads.py) has the same table and priors: half-Cauchy(2) of tau, omega and
exp(gamma), normal(0, 10) of the coefficients (the intercept is that where x is at its mean). The program is its own.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc.util import summary


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sites, x and y of 15 sites by ten rows; omega 0.5."""
    rng = np.random.default_rng(52)
    site = np.repeat(np.arange(15), 10)
    x, u, e = rng.normal(size=150), 0.8 * rng.normal(size=15)[site], 0.5 * rng.normal(size=15)[site]
    return site, x, 1 + 0.5 * x + u + np.exp(e) * rng.normal(size=150)


def model(site: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """The joint density."""
    at_mean = pyro.sample("at_mean", dist.Normal(0.0, 10.0))
    slope = pyro.sample("x", dist.Normal(0.0, 10.0))
    tau, omega, sigma = (pyro.sample(name, dist.HalfCauchy(2.0)) for name in ("tau", "omega", "sigma"))
    u, e = (pyro.sample(name, dist.Normal(0.0, 1.0).expand([15]).to_event(1)) for name in ("u", "e"))
    mean = at_mean + slope * (x - x.mean()) + tau * u[site]
    pyro.sample("y", dist.Normal(mean, sigma * (omega * e[site]).exp()).to_event(1), obs=y)


def main(draws: int, chains: int) -> None:
    """Means, standard deviations and effective draws."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    site, x, y = (torch.as_tensor(column) for column in table())
    quantities: dict[str, list[torch.Tensor]] = {}
    for _ in range(chains):
        mcmc = MCMC(NUTS(model, jit_compile=True, ignore_jit_warnings=True), num_samples=draws, warmup_steps=500)
        mcmc.run(site, x, y)
        samples = mcmc.get_samples()
        values = {
            "Intercept": samples["at_mean"] - samples["x"] * x.mean(), "x": samples["x"],
            "sd(Intercept)": samples["tau"],
            "sd(dispersion:Intercept)": samples["omega"], "dispersion:Intercept": samples["sigma"].log(),
            "sd of site 0": samples["sigma"] * (samples["omega"] * samples["e"][:, 0]).exp(),
            "sd of site 1": samples["sigma"] * (samples["omega"] * samples["e"][:, 1]).exp(),
        }  # fmt: skip
        for name, value in values.items():
            quantities.setdefault(name, []).append(value)
    stats = summary({name: torch.stack(chain) for name, chain in quantities.items()})
    kept = {
        name: {
            "mean": float(of["mean"]), "sd": float(of["std"]), "effective": float(of["n_eff"]),
            "r_hat": float(of["r_hat"]),
        }
        for name, of in stats.items()
    }  # fmt: skip
    print(json.dumps({name: {k: round(v, 5) for k, v in of.items()} for name, of in kept.items()}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
