"""FedRep: a personal head on a shared representation, the head trained first. Collins et al., ICML 2021, Alg. 1.

    w_j          ~ flat                                   rho -> inf on the head
    y_ij | x_ij  ~ Categorical(softmax(w_j^T h_theta(x_ij)))
    q(w_j)       = delta(mu_j)

A round, at every client: mu_j given theta, then a copy theta_j given mu_j, each by minibatch gradient descent on the
mean log likelihood. Those who take part send n_j theta_j and n_j; the server divides:
theta = sum n_j theta_j / sum n_j.
"""

from dataclasses import dataclass

from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.settings import setting

from ._local_head import OwnHead


class FedRep(OwnHead):
    """rho -> inf on the head: first the head, then the base."""

    about = About(
        name="fedrep",
        what="own head, trained first",
        paper="Collins et al., ICML 2021",
        family="rho -> inf on heads",
        stays="head",
        sent="base",
        message_size=0.99,
        order=130,
    )
    takes_adapters = True

    @dataclass(frozen=True)
    class Settings(OwnHead.Settings):
        """Head and base have epochs of their own."""

        head_epochs: int = setting(10, "passes that train the head, before those that train the base", at_least=0)

    settings: Settings

    def local(self) -> list[LocalStep]:
        s = self.settings
        head = SVI(["mu"], s.head_epochs, sgd(s.lr, s.momentum), s.batch, per="example")
        return [head, self.sgd("base")]
