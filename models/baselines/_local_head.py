"""Methods in which a part of the network is personal, with a point guide: what several of them share.

    w_j | w ~ N(w, rho^2 I),    y_ij ~ Categorical(softmax(w_j^T h_theta(x_ij))),    q(w_j) = delta(mu_j)

rho -> inf gives every client a head of its own, rho -> 0 the same head to all. Training is minibatch gradient descent
on the mean log likelihood.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pyro.distributions import Delta

from hierfl.data.batch import Batch
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample

from .._common_settings import client_momentum, server_step


class LocalHead(Method):
    """rho -> inf: a head of its own for every client."""

    @dataclass(frozen=True)
    class Settings:
        """Minibatch gradient descent on the mean log likelihood."""

        epochs: int = setting(5, "passes through a client's data in a round", at_least=0)
        lr: float = setting(1e-2, "step size of the clients", above=0)
        batch: int = setting(10, "examples in a minibatch", at_least=1)
        momentum: float = client_momentum()
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)

    settings: Settings

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


class SharedBase(LocalHead):
    """The base is all clients', theta = sum n_j theta_j / sum n_j."""

    local_copies: ClassVar[tuple[str, ...]] = ("base",)

    @dataclass(frozen=True)
    class Settings(LocalHead.Settings):
        """Settings of a method with shared values, which the server may average over rounds as well."""

        server_lr: float = server_step()

    settings: Settings

    def shared(self, start: InitialWeights) -> State:
        return start.base

    def personal(self, start: InitialWeights) -> State:
        return {"mu": self.settings.init_scale * start.head}

    def new_client_terms(self, personal: State) -> State:
        return personal

    def exchange(self) -> dict[str, AggregationRule]:
        return {"base": SampleWeighted(server_lr=self.settings.server_lr)}


class OwnHead(SharedBase):
    """A head of its own for every client, on the base of all: which base predicts is said.

    Papers differ. Public code of pFedVEM evaluates a client's own copy of the base after its training. PFLlib evaluates
    the average that the client has just received.
    """

    @dataclass(frozen=True)
    class Settings(SharedBase.Settings):
        """Settings of the base with which a client predicts."""

        predict_with: Literal["own", "average"] = setting(
            "own", "the base that a client predicts with: its own, as it was just trained | the average that it gets"
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        if self.settings.predict_with == "average":
            vars(self)["local_copies"] = ()  # of this instance
