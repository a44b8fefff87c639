"""FedAvg: one model for all. McMahan et al., AISTATS 2017, Alg. 1.

    w, theta     ~ flat                                   rho -> 0: every w_j is w
    y_ij | x_ij  ~ Categorical(softmax(w^T h_theta(x_ij)))

A round: every client trains copies of w and theta jointly, by minibatch gradient descent on its mean log likelihood.
Those who take part send n_j w_j, n_j theta_j and n_j; the server divides: w = sum n_j w_j / sum n_j, and theta alike.

With ``average`` predictions are made by weights that are averaged over the rounds (Polyak and Juditsky 1992; over
epochs SWA, Izmailov et al., UAI 2018). Training does not see them.
"""

from dataclasses import dataclass
from typing import ClassVar

from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.running import Averaged
from hierfl.inference.state import State

from ._global_network import GlobalNetwork


class FedAvg(GlobalNetwork):
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

    @dataclass(frozen=True)
    class Settings(GlobalNetwork.Settings):
        """And which weights predict."""

        average: int = setting(
            1,
            "rounds over which w and theta are averaged for predictions, with exponential weights; 1: none",
            at_least=1, newer=True,
        )  # fmt: skip

    settings: Settings

    def shared(self, start: InitialWeights) -> State:
        network = super().shared(start)
        averaged = {f"averaged.{key}": value for key, value in network.items()} if self.settings.average > 1 else {}
        return {**network, **averaged}

    def exchange(self) -> dict[str, AggregationRule]:
        average = self.settings.average
        return super().exchange() | ({"averaged": Averaged("averaged", average)} if average > 1 else {})

    def prediction_params(self, shared: State) -> State:
        averaged = {k.removeprefix("averaged."): v for k, v in shared.items() if k.startswith("averaged.")}
        return {**shared, **averaged}
