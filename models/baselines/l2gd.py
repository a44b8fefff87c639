"""L2GD: loopless local gradient descent. Hanzely and Richtarik, 2020, Eq. 2, Alg. 1.

    w_j | w      ~ N(w, rho_j^2 I),  rho_j^2 = 1 / (lambda n_j)  w_j all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w_j)))
    q(w_j)       = delta(mu_j)

    minimised: sum_j F_j(mu_j) + (lambda / 2) |mu_j - w|^2       (Eq. 2; F_j the mean loss, w the mean of all mu_j)

Each iteration is a step on the likelihood, or with probability p one towards w. Steps towards w leave the mean where it
is, so that it is sent only where a step on the likelihood came before: a round is a run of the ones and then a run of
the others. Their lengths are geometric, the same for all clients. The server takes the plain mean of the mu_j.
"""

import math
from dataclasses import dataclass
from typing import Any

from pyro.distributions import Delta, Normal

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import UniformMean
from hierfl.inference.state import State
from hierfl.ppl.plates import flat, param, sample
from hierfl.rng import uniform

from ._whole_network import WholeNetwork, penalty


class L2GD(WholeNetwork):
    """Random steps on the likelihood, and towards the mean of all w_j."""

    about = About(
        name="l2gd",
        what="random steps apart and together",
        paper="Hanzely and Richtarik, 2020",
        family="rho fixed, all weights",
        stays="all",
        sent="all",
        message_size=1.0,
        order=230,
    )

    @dataclass(frozen=True)
    class Settings:
        """The paper: p 0.9, alpha 1, lambda 0.5, of which lr is alpha / (J (1 - p))."""

        lam: float = setting(
            0.5,
            "lambda, how strongly clients are pulled to their mean: rho_j^2 = 1 / (lambda n_j)",
            above=0,
            at_most=1e12,
        )
        p: float = setting(0.5, "probability that a step goes to the mean, not along the likelihood", above=0, below=1)
        lr: float = setting(
            1e-2, "step size along the likelihood; to the mean it is lr (1 - p) / p, times the pull lambda", above=0
        )
        batch: int = setting(10, "examples in a minibatch", at_least=1)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)

    settings: Settings

    def personal(self, start: InitialWeights) -> State:
        return {"mu": self.begin(start)}

    def prior(self, batch: Batch) -> Any:
        return Normal(sample("w", flat(self.network.d)), penalty(self.settings.lam, batch)).to_event(1)

    def posterior_of(self) -> Any:
        return Delta(param("mu")).to_event(1)

    def local(self) -> list[LocalStep]:
        s = self.settings
        aside = sgd(s.lr * (1 - s.p) / s.p)
        towards = SVI(["mu"], 1, aside, per="example", terms="prior", steps=geometric(1 - s.p, "towards"))
        own_steps = SVI(
            ["mu"], 1, sgd(s.lr), s.batch, per="example", terms="data", steps=geometric(s.p, "along")
        )  # fmt: skip
        return [towards, own_steps]

    def exchange(self) -> dict[str, AggregationRule]:
        return {"w": UniformMean(of="mu")}

    def schedule(self) -> Schedule:
        s = self.settings
        return Schedule(new_client_steps=[SVI(["mu"], 1, sgd(s.lr), s.batch, per="example")])


def geometric(stop: float, name: str) -> Any:
    """How often in a row, at least once: after each time it ends with probability ``stop``; one number for a round."""

    def count(chunk: ClientChunk) -> int:
        u = uniform(chunk.seed, chunk.round, "turns", name)
        return 1 + (math.floor(math.log1p(-u) / math.log1p(-stop)) if stop < 1 else 0)

    return count
