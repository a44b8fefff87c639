"""FedBN: FedAvg but for batch norm, which stays with the client. Li et al., ICLR 2021.

    w, theta       ~ flat                                 rho -> 0
    b_j            ~ flat                                 rho -> inf: batch norm's part of the base network
    y_ij | x_ij    ~ Categorical(softmax(w^T h_{theta, b_j}(x_ij)))

A round: every client trains copies of w and theta, and its b_j, jointly, by minibatch gradient descent on its mean log
likelihood. Those who take part send n_j w_j, n_j theta_j and n_j; the server divides. With local_norm=statistics only
the running statistics are personal (SiloBN; Andreux et al., 2020).
"""

from dataclasses import dataclass
from typing import Any, Literal

from hierfl.inference.local.svi import running_statistics
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture

from ._global_network import GlobalNetwork


class FedBN(GlobalNetwork):
    """rho -> 0, and a batch norm of its own for every client."""

    about = About(
        name="fedbn",
        what="own batch norm",
        paper="Li et al., ICLR 2021",
        family="rho -> inf on batch norm",
        stays="batch norm",
        sent="the rest",
        message_size=None,
        order=150,
    )

    @dataclass(frozen=True)
    class Settings(GlobalNetwork.Settings):
        """What of batch norm stays with the client."""

        local_norm: Literal["all", "statistics"] = setting(
            "all",
            "what of batch norm each client has for itself: weights and running statistics | the latter alone (SiloBN)",
        )
        bn_refresh_epochs: int = setting(
            0,
            "after the last round: passes through a client's data that update its running statistics under the "
            "averaged weights",
            at_least=0,
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        self.kept = network.norms(self.settings.local_norm)

    def shared(self, start: InitialWeights) -> State:
        return {k: v for k, v in super().shared(start).items() if k not in self.kept}

    def personal(self, start: InitialWeights) -> State:
        return {k: v for k, v in start.base.items() if k in self.kept}

    def schedule(self) -> Schedule:
        s = self.settings
        refresh = [running_statistics(self.kept, s.bn_refresh_epochs, s.batch)] if s.bn_refresh_epochs else []
        return Schedule(final_steps=refresh, new_client_steps=[self.sgd(*sorted(self.kept))])

    @property
    def has_global_model(self) -> bool:
        return False
