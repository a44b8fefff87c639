"""FedPer: a personal head on a shared base, trained jointly. Arivazhagan et al., 2019.

    w_j          ~ flat                                   rho -> inf on the head
    y_ij | x_ij  ~ Categorical(softmax(w_j^T h_theta(x_ij)))
    q(w_j)       = delta(mu_j)

A round: every client trains mu_j and a copy theta_j of the base jointly, by minibatch gradient descent on its mean log
likelihood. Those who take part send n_j theta_j and n_j; the server divides: theta = sum n_j theta_j / sum n_j.
"""

from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.schedule import Schedule

from ._local_head import OwnHead


class FedPer(OwnHead):
    """rho -> inf on the head: base and head trained jointly."""

    about = About(
        name="fedper",
        what="own head, trained jointly",
        paper="Arivazhagan et al., 2019",
        family="rho -> inf on heads",
        stays="head",
        sent="base",
        message_size=0.99,
        order=120,
    )
    takes_adapters = True

    def local(self) -> list[LocalStep]:
        return [self.sgd("mu", "base")]

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[self.sgd("mu")])
