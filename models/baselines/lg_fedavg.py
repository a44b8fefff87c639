"""LG-FedAvg: local representations, and a global model of them. Liang et al., 2019, Alg. 1.

    w, theta     ~ flat                                   rho -> 0: the top layers, the head among them
    theta_j      ~ flat                                   rho -> inf: the layers below
    y_ij | x_ij  ~ Categorical(softmax(w^T h_{theta, theta_j}(x_ij)))

A round: every client trains copies of w and theta, and its theta_j, jointly, by minibatch gradient descent on its mean
log likelihood. Those who take part send n_j times the top layers and n_j; the server divides.
"""

from dataclasses import dataclass
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture

from ._global_network import GlobalNetwork


class LGFedAvg(GlobalNetwork):
    """rho -> 0 on the top layers, rho -> inf on those below: local representations, global head."""

    about = About(
        name="lg-fedavg",
        what="own representation",
        paper="Liang et al., 2019",
        family="rho -> inf on the base",
        stays="lower layers",
        sent="top layers",
        message_size=0.01,
        order=140,
    )

    @dataclass(frozen=True)
    class Settings(GlobalNetwork.Settings):
        """The paper shares the last layer or two."""

        top: int = setting(
            1, "how many of the last layers with weights are shared; the others are personal", at_least=1
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        below = network.base.layers[: len(network.base.layers) - (self.settings.top - 1)]
        if not below:
            raise UserError(
                f"network {network.spec} has {1 + len(network.base.layers)} layers with weights, and one "
                f"at least is the client's own: top={self.settings.top} is too many"
            )
        self.below = {name for layer in below for name in layer}

    def shared(self, start: InitialWeights) -> State:
        return {k: v for k, v in super().shared(start).items() if k not in self.below}

    def personal(self, start: InitialWeights) -> State:
        return {k: v for k, v in start.base.items() if k in self.below}

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[self.sgd(*sorted(self.below))])

    @property
    def has_global_model(self) -> bool:
        return False
