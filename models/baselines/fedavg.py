"""FedAvg: one model for all. McMahan et al., AISTATS 2017, Alg. 1.

    w, theta     ~ flat                                   rho -> 0: every w_j is w
    y_ij | x_ij  ~ Categorical(softmax(w^T h_theta(x_ij)))

A round: every client trains copies of w and theta jointly, by minibatch gradient descent on its mean log likelihood.
Those who take part send n_j w_j, n_j theta_j and n_j; the server divides: w = sum n_j w_j / sum n_j, and theta alike.
"""

from typing import ClassVar

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.ppl.plates import clients, data, flat, sample

from ._local_head import SharedBase


class FedAvg(SharedBase):
    """rho -> 0: every w_j is w."""

    about = About(
        name="fedavg",
        what="one model for all",
        paper="McMahan et al., AISTATS 2017",
        family="rho -> 0",
        stays="nothing",
        sent="all",
        message_size=1.0,
        order=160,
    )
    takes_adapters: ClassVar[bool] = True
    local_copies: ClassVar[tuple[str, ...]] = ()

    def shared(self, start: InitialWeights) -> State:
        return {"w": self.settings.init_scale * start.head, **start.base}

    def personal(self, start: InitialWeights) -> State:
        return {}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch), data(batch):
            sample("y", net.likelihood(net.head(w, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Nothing is personal."""

    def local(self) -> list[LocalStep]:
        return [self.sgd("w", "base")]

    def exchange(self) -> dict[str, AggregationRule]:
        rule = SampleWeighted(server_lr=self.settings.server_lr)
        return {"w": rule, "base": rule}

    @property
    def has_global_model(self) -> bool:
        return True
