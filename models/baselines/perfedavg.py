"""Per-FedAvg: a model from which one step fits each client. Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, Alg. 1 (HF).

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w + offset_j)))

    minimised: sum_j F_j(w - alpha grad F_j(w))                  (F_j the mean loss)

A round, at every client that takes part, R iterations with three minibatches each, on a copy of w:

    v = grad F_j(w - alpha grad F_j(w)),    H v = [grad F_j(w + delta v) - grad F_j(w - delta v)] / (2 delta)
    w <- w - beta (v - alpha H v)

It sends its copy; the server takes the plain mean. Before every evaluation each client fits its offset_j by steps of
alpha, from 0: one step in the paper, one epoch in Zhu et al. (CVPR 2023).
"""

from dataclasses import dataclass
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.gradient_transforms import MetaGradient
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import UniformMean
from hierfl.nn.architecture import Architecture

from ._fine_tuned import FineTuned


class PerFedAvg(FineTuned):
    """The model-agnostic meta-learner with finite differences of gradients for the Hessian (HF)."""

    about = About(
        name="perfedavg",
        what="one step from good",
        paper="Fallah et al., NeurIPS 2020",
        family="rho -> 0, meta-gradient",
        stays="nothing",
        sent="all",
        message_size=1.0,
        order=320,
    )

    @dataclass(frozen=True)
    class Settings:
        """The paper: R of 4 or 10 iterations, one step of adaptation; Zhu et al. (2023): an epoch of adaptation."""

        steps: int = setting(10, "R, iterations that a client takes in a round, each of three minibatches", at_least=0)
        alpha: float = setting(1e-2, "step size with which a client adapts the shared model to its data", above=0)
        lr: float = setting(1e-2, "beta, step size of the shared model w, at the clients", above=0)
        difference: float = setting(1e-3, "delta, of the finite difference that stands for the Hessian", above=0)
        ft_epochs: int = setting(
            1, "passes through a client's data that adapt its model where it is evaluated", at_least=0,
            unless={"ft_steps": range(1, 2**31)},
        )  # fmt: skip
        ft_steps: int = setting(
            0, "minibatches that adapt a client's model, instead of ft_epochs; 0 for epochs", at_least=0
        )
        batch: int = setting(10, "examples in a minibatch", at_least=1)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        if network.base.drops:
            raise UserError(f"perfedavg takes differences of gradients: no dropout, as network {network.spec} has")

    def local(self) -> list[LocalStep]:
        s = self.settings
        ahead = MetaGradient(s.alpha, s.difference)
        return [SVI(["w", "base"], 0, sgd(s.lr), s.batch, per="example", steps=s.steps, transform=ahead)]

    def final_steps(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["offset"], s.ft_epochs, sgd(s.alpha), s.batch, per="example", steps=s.ft_steps or None)]

    def exchange(self) -> dict[str, AggregationRule]:
        return {"w": UniformMean(), "base": UniformMean()}
