"""pFedBayes: variational Bayesian networks around a learned prior. Zhang et al., ICML 2022, Alg. 1.

    w_j | w      ~ N(w, diag sigma^2)                            w_j all weights of a network, sigma = softplus(spread)
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w_j)))
    q(w_j)       = N(mu_j, diag softplus(pi_j)^2)                w and sigma are points

    maximised by client j: E_q log p(D_j | w_j) - zeta KL(q(w_j) || p(w_j | w, sigma))       zeta = 1 is the ELBO

A round, at every client, with each minibatch: a step on q(w_j) given its copy of the prior, then one on the copy of
(w, sigma) by the KL alone. Those who take part send the copy; the server moves by its step (beta) to the plain mean.
"""

from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import Normal
from torch import Tensor
from torch.nn.functional import softplus

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI, Block
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import UniformMean
from hierfl.inference.state import State
from hierfl.ppl.plates import clients, data, flat, param, sample, scale

from ._whole_network import WholeNetwork


class PFedBayes(WholeNetwork):
    """A Gaussian for every weight: q(w_j) at the clients, the prior's mean and spread shared."""

    about = About(
        name="pfedbayes",
        what="variational networks",
        paper="Zhang et al., ICML 2022",
        family="sigma learned, all weights",
        stays="q(all)",
        sent="copy of the prior",
        message_size=2.0,
        order=250,
    )

    @dataclass(frozen=True)
    class Settings(WholeNetwork.Settings):
        """The paper: zeta 10, step size 0.001, softplus^-1 of the initial spread -2.5."""

        epochs: int = setting(5, "R, passes through a client's data in a round", at_least=0)
        lr: float = setting(1e-3, "step size of q(w_j), on the objective summed over examples", above=0)
        prior_lr: float = setting(1e-3, "step size of the client's copy of the prior", above=0)
        batch: int = setting(0, "examples in a minibatch; 0 for all", at_least=0)
        zeta: float = setting(1.0, "weight of the KL divergence from the prior; 1 is the ELBO", above=0, at_most=1e12)
        sigma_0: float = setting(
            0.08, "initial standard deviation of each weight, in prior and q", above=0, at_most=1e12
        )
        particles: int = setting(
            1, "K, draws of the weights over which a step's gradient is averaged", at_least=1, at_most=10_000
        )
        server_lr: float = setting(
            1.0, "beta, how far the server moves to the clients' mean: 1 replaces what it had", above=0
        )

    settings: Settings

    def spread(self, start: InitialWeights) -> Tensor:
        """softplus^-1(sigma_0), (d,)."""
        sigma_0 = torch.tensor(self.settings.sigma_0, dtype=torch.float64)
        return sigma_0.expm1().log().expand_as(self.begin(start))

    def shared(self, start: InitialWeights) -> State:
        return {**super().shared(start), "spread": self.spread(start)}

    def personal(self, start: InitialWeights) -> State:
        return {"mu": self.begin(start), "pi": self.spread(start)}

    def prior(self, batch: Batch) -> Any:
        return Normal(sample("w", flat(self.network.d)), softplus(param("spread"))).to_event(1)

    def posterior_of(self) -> Any:
        return Normal(param("mu"), softplus(param("pi"))).to_event(1)

    def model(self, batch: Batch) -> None:
        net, p = self.network, self.prior(batch)
        with clients(batch):
            with scale(scale=self.settings.zeta):
                w_j = sample("w_j", p)  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net(w_j, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        q = self.posterior_of()
        with clients(batch), scale(scale=self.settings.zeta):
            sample("w_j", q)

    def local(self) -> list[LocalStep]:
        s = self.settings
        copy = Block(["w", "spread"], sgd(s.prior_lr), terms="prior")
        return [SVI(["mu", "pi"], s.epochs, sgd(s.lr), s.batch or None, s.particles, then=[copy])]

    def exchange(self) -> dict[str, AggregationRule]:
        rule = UniformMean(server_lr=self.settings.server_lr)
        return {"w": rule, "spread": rule}

    def schedule(self) -> Schedule:
        s = self.settings
        return Schedule(new_client_steps=[SVI(["mu", "pi"], s.epochs, sgd(s.lr), s.batch or None, s.particles)])
