"""FedAvg-FT: FedAvg, then each client's own fit. McMahan et al., AISTATS 2017; Collins et al., ICML 2021, for the fit.

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w + offset_j)))   offset_j of the head, or of all weights

A round: every client trains a copy w_j of w by minibatch gradient descent on its mean log likelihood, with offset 0.
Those who take part send n_j w_j and n_j; the server divides. Before every evaluation each client fits its offset_j
given w, from 0, for a few epochs: early stopping is the only prior.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

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
from hierfl.ppl.plates import clients, data, flat, param, sample

from .._common_settings import server_step
from ._fine_tuned import FineTuned, with_offset
from ._whole_network import WholeNetwork


class FedAvgFT(FineTuned):
    """FedAvg, and then each client's own fit from what it gives."""

    about = About(
        name="fedavg-ft",
        what="FedAvg, and a local fit in the end",
        family="rho -> 0, then a fit",
        stays="nothing",
        sent="all",
        message_size=1.0,
        order=310,
    )

    @dataclass(frozen=True)
    class Settings(WholeNetwork.Settings):
        """FedRep's repository: the head alone, 10 epochs."""

        scope: Literal["head", "all"] = setting(
            "head", "what each client fits for itself: the last layer | all weights"
        )
        ft_epochs: int = setting(10, "passes through a client's data of that fit", at_least=0)
        ft_lr: float = setting(1e-2, "step size of that fit", above=0)
        momentum: float = setting(
            0.9, "momentum of the clients' steps and of the fit; every round begins without any", at_least=0
        )
        server_lr: float = server_step()

    settings: Settings

    def personal(self, start: InitialWeights) -> State:
        d = len(start.head) if self.settings.scope == "head" else self.network.d
        return {"offset": start.head.new_zeros(d)}

    def model(self, batch: Batch) -> None:
        self.response(batch, sample("w", flat(self.network.d)))

    def response(self, batch: Batch, w: Tensor) -> None:
        """p(y | x), given w."""
        net = self.network
        with clients(batch), data(batch):
            y = with_offset(net, w, param("offset"), batch.x)
            sample("y", net.likelihood(y), obs=batch.y)

    def local(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")]

    def final_steps(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["offset"], s.ft_epochs, sgd(s.ft_lr, s.momentum), s.batch, per="example")]

    def exchange(self) -> dict[str, AggregationRule]:
        rule = SampleWeighted(server_lr=self.settings.server_lr)
        return {"w": rule, "base": rule}
