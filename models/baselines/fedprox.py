"""FedProx: FedAvg whose clients are held near the broadcast model. Li et al., MLSys 2020, Eq. 2, Alg. 2.

    w_j | w      ~ N(w, rho_j^2 I),  rho_j^2 = 1 / (mu n_j)      w_j all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w_j)))
    q(w_j)       = delta(w_j)

    minimised by client j: F_j(w_j) + (mu / 2) |w_j - w|^2       (Eq. 2; F_j the mean loss)

A round: every client trains a copy w_j of w on that objective, from w. Those who take part send n_j w_j and n_j, and
forget w_j; the server divides: w = sum n_j w_j / sum n_j, the exact M-step.
"""

from dataclasses import dataclass
from typing import Any

from pyro.distributions import Delta, Normal

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.ppl.plates import param

from .._common_settings import client_momentum, server_step
from ._whole_network import WholeNetwork, penalty


class FedProx(WholeNetwork):
    """w_j is a copy of w that the prior holds back, and that is forgotten when it has been sent."""

    about = About(
        name="fedprox",
        what="a prior holds local training back",
        paper="Li et al., MLSys 2020",
        family="rho fixed, all weights",
        stays="nothing",
        sent="all",
        message_size=1.0,
        order=210,
    )
    averages_norms = True

    @dataclass(frozen=True)
    class Settings(WholeNetwork.Settings):
        """The paper: mu of 0.001 to 1."""

        mu: float = setting(
            0.1, "how strongly a client is pulled to the broadcast model: rho_j^2 = 1 / (mu n_j)", above=0, at_most=1e12
        )
        momentum: float = client_momentum()
        server_lr: float = server_step()

    settings: Settings

    def personal(self, start: InitialWeights) -> State:
        return {}

    def prior(self, batch: Batch) -> Any:
        return Normal(param("broadcast.w"), penalty(self.settings.mu, batch)).to_event(1)

    def posterior_of(self) -> Any:
        return Delta(param("w")).to_event(1)  # the client's copy

    def local(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")]

    def exchange(self) -> dict[str, AggregationRule]:
        rule = SampleWeighted(server_lr=self.settings.server_lr)
        return {"w": rule, "base": rule}
