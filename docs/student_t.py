"""A heavy-tailed population: w_j ~ StudentT(df, w, rho), so that one odd client does not drag everyone along."""

from dataclasses import dataclass

import torch
from pyro.distributions import Normal, StudentT
from torch.nn.functional import softplus

from hierfl.inference import SVI, Gradient, Method, SampleWeighted, setting
from hierfl.inference.local.optimizers import adam, sgd
from hierfl.ppl.plates import clients, data, flat, param, sample


class StudentPopulation(Method):
    """The population's centre w and scale rho are learned by the generic rule: no closed form is needed."""

    local_copies = ("base",)

    @dataclass(frozen=True)
    class Settings:
        df: float = setting(4.0, "degrees of freedom of the population", above=1)
        rho_0: float = setting(0.1, "initial scale of the population", above=0)
        lr: float = setting(0.005, "step size at the clients", above=0)
        server_lr: float = setting(0.03, "Adam's step size on the server", above=0)

    def shared(self, start):
        return {"w": 0.1 * start.head, "log_rho": torch.tensor([self.settings.rho_0]).log(), **start.base}

    def personal(self, start):
        return {"mu": 0.1 * start.head, "pi": torch.full_like(start.head, -2.3)}

    def model(self, batch):
        net, df = self.network, self.settings.df
        w, rho = sample("w", flat(net.head.d)), param("log_rho").exp()
        with clients(batch):
            w_j = sample("w_j", StudentT(df, w, rho).to_event(1))
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch):
        mu, sigma = param("mu"), softplus(param("pi"))
        with clients(batch):
            sample("w_j", Normal(mu, sigma).to_event(1))

    def local(self):
        head = SVI(["mu", "pi"], epochs=5, optimizer=sgd(self.settings.lr, 0.9), particles=3)
        return [head, SVI(["base"], epochs=3, optimizer=sgd(self.settings.lr, 0.9), batch=10, per="example")]

    def exchange(self):
        rule = Gradient(adam(self.settings.server_lr), particles=3)
        return {"w": rule, "log_rho": rule, "base": SampleWeighted()}
