"""Which part of a network is personal: references that every comparison needs, as limits of one model, point guide:

    w_j | w ~ N(w, rho^2 I),    y_ij ~ Categorical(softmax(w_j^T h_theta(x_ij))),    q(w_j) = delta(mu_j)

              rho     head        base        what a client trains     what it sends
    FedAvg    -> 0    w_j = w     theta       (w, theta) jointly       n_j w, n_j theta, n_j
    FedPer    -> inf  mu_j        theta       (mu_j, theta) jointly    n_j theta, n_j
    FedRep    -> inf  mu_j        theta       mu_j, then theta         n_j theta, n_j
    LG-FedAvg -> 0    w_j = w     theta_j     (w, theta_j) jointly     n_j w, n_j
    FedBN     -> 0    w_j = w     theta but   (w, theta) jointly       n_j w, n_j theta less batch norm, n_j
                                  its batch norm: theta_j
    Local     -> inf  mu_j        theta_j     (mu_j, theta_j) jointly  nothing

Joint and block training are minibatch gradient descent on the mean log likelihood. (McMahan et al., AISTATS 2017;
Arivazhagan et al., 2019; Collins et al., ICML 2021; Liang et al., 2019; Li et al., ICLR 2021.)
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pyro.distributions import Delta

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.exchange import SampleWeighted
from hierfl.inference.method import LocalStep, Method, Rule, Start, State, setting
from hierfl.inference.svi import SVI, running_statistics, sgd
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample


class Limit(Method):
    """rho -> inf: a head of its own for every client, by minibatch gradient descent."""

    @dataclass(frozen=True)
    class Settings:
        """Minibatch gradient descent on the mean log likelihood."""

        epochs: int = setting(5, "epochs a round", at_least=0)
        lr: float = setting(1e-2, "step size", above=0)
        batch: int = setting(10, "examples per step", at_least=1)
        momentum: float = setting(0.9, "forgotten each round", at_least=0)
        w_0: float = setting(0.1, "standard deviation of the initial head", at_least=0)

    def model(self, batch: Batch) -> None:
        net = self.network
        with clients(batch):
            w_j = sample("w_j", flat(net.head.d))
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        mu = param("mu")
        with clients(batch):
            sample("w_j", Delta(mu).to_event(1))

    def sgd(self, *names: str) -> SVI:
        """Minibatch gradient descent of these values."""
        s = self.settings
        return SVI(names, s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")

    @property
    def has_global_model(self) -> bool:
        return False


class Local(Limit):
    """rho -> inf on everything: no messages."""

    name = "local"

    def personal(self, start: Start) -> State:
        return {"mu": self.settings.w_0 * start.head, **start.base}

    def local(self) -> list[LocalStep]:
        return [self.sgd("mu", "base")]


class SharedBase(Limit):
    """The base is everybody's."""

    copies: ClassVar[tuple[str, ...]] = ("base",)

    @dataclass(frozen=True)
    class Settings(Limit.Settings):
        """Where something is shared, the server may average over rounds as well."""

        beta: float = setting(0.0, "how much of what is shared the server keeps", at_least=0, below=1)

    def shared(self, start: Start) -> State:
        return start.base

    def personal(self, start: Start) -> State:
        return {"mu": self.settings.w_0 * start.head}

    def newcomer(self, personal: State, initial: State) -> State:
        return {k: v.mean(0) for k, v in personal.items()}

    def exchange(self) -> dict[str, Rule]:
        return {"base": SampleWeighted(keep=self.settings.beta)}


class FedAvg(SharedBase):
    """rho -> 0: every w_j is w."""

    name = "fedavg"
    copies: ClassVar[tuple[str, ...]] = ()

    def shared(self, start: Start) -> State:
        return {"w": self.settings.w_0 * start.head, **start.base}

    def personal(self, start: Start) -> State:
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

    def exchange(self) -> dict[str, Rule]:
        rule = SampleWeighted(keep=self.settings.beta)
        return {"w": rule, "base": rule}

    @property
    def has_global_model(self) -> bool:
        return True


class FedBN(FedAvg):
    """rho -> 0, and a batch norm of its own for every client."""

    name = "fedbn"

    @dataclass(frozen=True)
    class Settings(FedAvg.Settings):
        """What of batch norm stays with the client."""

        keeps: Literal["all", "statistics"] = setting(
            "all", "of batch norm: weights and running statistics | the latter alone (SiloBN; Andreux et al., 2020)"
        )
        refresh: int = setting(
            0, "epochs after the last round that move statistics on, under the averaged weights", at_least=0
        )

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        self.kept = network.norms(self.settings.keeps)

    def shared(self, start: Start) -> State:
        return {k: v for k, v in super().shared(start).items() if k not in self.kept}

    def personal(self, start: Start) -> State:
        return {k: v for k, v in start.base.items() if k in self.kept}

    def posterior(self) -> list[LocalStep]:
        s = self.settings
        return [running_statistics(self.kept, s.refresh, s.batch)] if s.refresh else []

    def adaptation(self) -> list[LocalStep]:
        return [self.sgd(*sorted(self.kept))]

    @property
    def has_global_model(self) -> bool:
        return False


class FedPer(SharedBase):
    """rho -> inf on the head: base and head trained jointly."""

    name = "fedper"

    def local(self) -> list[LocalStep]:
        return [self.sgd("mu", "base")]

    def adaptation(self) -> list[LocalStep]:
        return [self.sgd("mu")]


class FedRep(SharedBase):
    """rho -> inf on the head: first the head, then the base."""

    name = "fedrep"

    @dataclass(frozen=True)
    class Settings(SharedBase.Settings):
        """Head and base have epochs of their own."""

        head_epochs: int = setting(10, "epochs of the head, before the base's", at_least=0)

    def local(self) -> list[LocalStep]:
        s = self.settings
        head = SVI(["mu"], s.head_epochs, sgd(s.lr, s.momentum), s.batch, per="example")
        return [head, self.sgd("base")]


class LGFedAvg(FedAvg):
    """rho -> 0 on the top layers, rho -> inf on those below: local representations, global head."""

    name = "lg-fedavg"

    @dataclass(frozen=True)
    class Settings(FedAvg.Settings):
        """The paper shares the last layer or two."""

        top: int = setting(1, "how many of the last layers with weights are shared", at_least=1)

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        below = network.base.layers[: len(network.base.layers) - (self.settings.top - 1)]
        if not below:
            raise UserError(
                f"network {network.spec} has {1 + len(network.base.layers)} layers with weights, and one "
                f"at least is the client's own: top={self.settings.top} is too many"
            )
        self.below = {name for layer in below for name in layer}

    def shared(self, start: Start) -> State:
        return {k: v for k, v in super().shared(start).items() if k not in self.below}

    def personal(self, start: Start) -> State:
        return {k: v for k, v in start.base.items() if k in self.below}

    def adaptation(self) -> list[LocalStep]:
        return [self.sgd(*sorted(self.below))]

    @property
    def has_global_model(self) -> bool:
        return False
