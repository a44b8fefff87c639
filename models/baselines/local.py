"""Local: every client alone.

    w_j, theta_j ~ flat                                   rho -> inf on the whole network
    y_ij         ~ Categorical(softmax(w_j^T h_theta_j(x_ij)))
    q(w_j)       = delta(mu_j)

A round: every client trains (mu_j, theta_j) jointly, by minibatch gradient descent on its mean log likelihood. Nothing
is sent.
"""

from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State

from ._local_head import LocalHead


class Local(LocalHead):
    """rho -> inf on everything: no messages."""

    about = About(
        name="local",
        what="every client alone",
        family="rho -> inf",
        stays="all",
        sent="nothing",
        message_size=0.0,
        order=110,
    )
    takes_adapters = True

    def personal(self, start: InitialWeights) -> State:
        return {"mu": self.settings.init_scale * start.head, **start.base}

    def local(self) -> list[LocalStep]:
        return [self.sgd("mu", "base")]
