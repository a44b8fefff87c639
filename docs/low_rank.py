"""A low-rank population: clients differ along a few directions. w_j = w + B z_j + rho e_j, z_j and e_j standard normal.

w_j | w, B, rho ~ N(w, B B^T + rho^2 I)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pyro.distributions import LowRankMultivariateNormal, Normal
from torch.nn.functional import softplus

from hierfl.inference import SVI, Gradient, Method, SampleWeighted, setting
from hierfl.inference.local.optimizers import adam, sgd
from hierfl.ppl.plates import clients, data, flat, param, sample


class LowRankPopulation(Method):
    """Centre w, directions B and spread rho are learned by the summed gradient."""

    local_copies = ("base",)

    @dataclass(frozen=True)
    class Settings:
        prior: Literal["hierarchical", "fixed"] = setting(
            "hierarchical", "w, B and rho learned | held at 0, 0 and sigma_0"
        )
        rank: int = setting(2, "directions in which clients differ", at_least=1, unless={"prior": ("fixed",)})
        b_0: float = setting(
            0.1, "initial length of an entry of B; 0: no directions", at_least=0, unless={"prior": ("fixed",)}
        )
        sigma_0: float = setting(1.0, "initial spread, in guide and prior", above=0, scale_of=("hierarchical", "fixed"))
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0)
        head_lr: float = setting(0.01, "step size of the head", above=0)
        base_lr: float = setting(0.005, "step size of the base", above=0)
        base_epochs: int = setting(5, "passes through a client's data that train the base in a round", at_least=0)
        particles: int = setting(5, "draws of a head over which a step's gradient is averaged", at_least=1)
        server_lr: float = setting(0.03, "Adam's step size on the server", above=0, unless={"prior": ("fixed",)})

    def shared(self, start):
        s, d = self.settings, self.network.head.d
        log_rho = torch.tensor([s.sigma_0], dtype=torch.float64).log()
        if s.prior == "fixed":
            return {"w": torch.zeros_like(start.head), "log_rho": log_rho, **start.base}
        B = s.b_0 * torch.randn(d, s.rank, generator=start.rng, dtype=torch.float64)
        return {"w": s.init_scale * start.head, "B": B, "log_rho": log_rho, **start.base}

    def personal(self, start):
        mu = self.settings.init_scale * start.head
        pi = torch.tensor([self.settings.sigma_0], dtype=torch.float64).expm1().log().expand_as(mu)
        return {"mu": mu, "pi": pi}

    def model(self, batch):
        net, learned = self.network, self.settings.prior == "hierarchical"
        w, rho = sample("w", flat(net.head.d)), param("log_rho").exp()
        if learned:
            p = LowRankMultivariateNormal(w, param("B"), rho.square() * torch.ones_like(w))
        else:
            p = Normal(w, rho).to_event(1)
        with clients(batch):
            w_j = sample("w_j", p)
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch):
        with clients(batch):
            sample("w_j", Normal(param("mu"), softplus(param("pi"))).to_event(1))

    def local(self):
        s = self.settings
        head = SVI(["mu", "pi"], epochs=10, optimizer=sgd(s.head_lr, 0.9), particles=s.particles)
        base = SVI(["base"], s.base_epochs, sgd(s.base_lr, 0.9), batch=10, particles=s.particles, per="example")
        return [head, base]

    def exchange(self):
        rule = Gradient(adam(self.settings.server_lr), particles=3)
        learned = {"w": rule, "B": rule, "log_rho": rule} if self.settings.prior == "hierarchical" else {}
        return {**learned, "base": SampleWeighted()}

    @property
    def has_global_model(self):
        return self.settings.prior == "hierarchical"

    def population_numbers(self, shared):
        directions = {"directions": shared["B"].square().mean().sqrt()} if "B" in shared else {}
        return {"rho": shared["log_rho"].exp(), **directions}
