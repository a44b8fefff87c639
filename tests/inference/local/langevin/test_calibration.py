"""Simulation-based calibration, and latents with bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyro.distributions import Bernoulli, Gamma, Normal
from support.chains import CHAINS, chains_of
from support.federations import slopes

from hierfl import Federation
from hierfl.data.batch import Batch
from hierfl.inference import Langevin, Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.nn.networks.build import architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, param, sample


class Votes(Method):
    """z_j ~ N(0, scale^2 I), y_ij ~ Bernoulli(logistic(x_ij . z_j)): a posterior that is not Gaussian."""

    scale = 1.0

    def personal(self, start: InitialWeights) -> State:
        return {"z_draws": torch.zeros((1, 63, 2), dtype=torch.float64)}

    def model(self, batch: Batch) -> None:
        with clients(batch):
            z = sample("z", Normal(torch.zeros(2, dtype=torch.float64), self.scale).to_event(1))
            with data(batch):
                sample("y", Bernoulli(logits=(batch.x * z).sum(-1)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        z = param("z_draws")
        with clients(batch):
            sample("z", EmpiricalDraws(z, 1))


@pytest.mark.parametrize(("scale", "calibrated"), [(1.0, True), (1.5, False)])
def test_simulation_based_calibration(scale: float, calibrated: bool) -> None:
    """Ranks of the truth among 63 thinned draws are uniform (Talts et al., 2018); with another prior they are not.

    All simulated data sets are clients of one federation, so that one chain step serves them all.
    """
    from scipy.stats import chisquare

    rng = np.random.default_rng(11)
    truth = rng.normal(size=(600, 2))
    x = rng.normal(size=(600, 6, 2)) * 1.5
    y = (rng.random((600, 6)) < 1 / (1 + np.exp(-(x * truth[:, None]).sum(-1)))).astype(float)
    names = np.repeat([f"{j:03d}" for j in range(600)], 6)
    fed = Federation.from_arrays(x.reshape(-1, 2), y.ravel(), names, test=0.0, task="regression")
    method = type("Scaled", (Votes,), {"scale": scale})(architecture("linear", fed))
    chain = Langevin(["z"], 300 + 63 * 15, 0.3, metropolis=True, burn=300, thin=15, target=0.574, start="prior")
    draws = chains_of(method, fed.to(dtype=torch.float64), chain)["z_draws"][:, 0, 0]
    true = torch.as_tensor(truth)
    # coordinates do not see a wrong scale, which is wrong on both sides of zero: lengths do
    ranks = torch.cat([draws < true[:, None], (draws.norm(dim=-1) < true.norm(dim=1)[:, None])[..., None]], -1).sum(1)
    p = [chisquare(torch.bincount(ranks[:, k] // 4, minlength=16).numpy()).pvalue for k in range(3)]
    assert bool(min(p) > 0.01) is calibrated, p


class Rates(Method):
    """A positive latent: z ~ Gamma(3, 2), y | z ~ N(log z, 1): the chain moves on the real line."""

    prior = staticmethod(lambda: Gamma(torch.tensor(3.0).double(), torch.tensor(2.0).double()))

    def personal(self, start: InitialWeights) -> State:
        return {"z_draws": torch.ones((CHAINS, 2000), dtype=torch.float64)}

    def model(self, batch: Batch) -> None:
        with clients(batch):
            z = sample("z", self.prior())
            with data(batch):
                sample("y", Normal(z.log(), 1.0), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        z = param("z_draws")
        with clients(batch):
            sample("z", EmpiricalDraws(z))


def test_a_constrained_latent_keeps_its_law() -> None:
    fed = slopes([2, 5])
    chain = Langevin(["z"], 2500, 0.1, metropolis=True, burn=500, target=0.574)
    z = chains_of(Rates(architecture("linear", fed)), fed, chain)["z_draws"]
    assert (z > 0).all()
    grid = torch.linspace(1e-4, 12, 200_000, dtype=torch.float64)
    for j in range(2):
        y = fed.examples(fed.train[j])[1]
        density = Gamma(3.0, 2.0).log_prob(grid) + Normal(grid.log()[:, None], 1.0).log_prob(y).sum(1)
        weight = (density - density.max()).exp()
        mean = (weight * grid).sum() / weight.sum()
        sd = ((weight * (grid - mean).square()).sum() / weight.sum()).sqrt()
        assert abs(float(z[j].mean() - mean)) < 0.1 * float(sd)
        assert abs(float(z[j].std() / sd) - 1) < 0.1
