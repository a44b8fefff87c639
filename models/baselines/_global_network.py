"""Methods that average one network of all clients: what FedAvg shares with those that keep some of it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import decayed_sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.ppl.plates import clients, data, flat, sample

from .._common_settings import lr_decay, server_momentum
from ._local_head import SharedBase


class GlobalNetwork(SharedBase):
    """rho -> 0: every w_j is w."""

    local_copies: ClassVar[tuple[str, ...]] = ()

    @dataclass(frozen=True)
    class Settings(SharedBase.Settings):
        """How steps change over the rounds, at the clients and at the server."""

        server_momentum: float = server_momentum()
        lr_decay: float = lr_decay()

    settings: Settings

    def shared(self, start: InitialWeights) -> State:
        return {"w": self.settings.init_scale * start.head, **start.base}

    def personal(self, start: InitialWeights) -> State:
        return {}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch), data(batch):
            sample("y", net.likelihood(net.head(w, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Nothing is personal."""

    def sgd(self, *names: str) -> SVI:
        """Minibatch gradient descent of these values."""
        s = self.settings
        return SVI(names, s.epochs, decayed_sgd(s.lr, s.lr_decay, s.momentum), s.batch, per="example")

    def local(self) -> list[LocalStep]:
        return [self.sgd("w", "base")]

    def exchange(self) -> dict[str, AggregationRule]:
        rule = SampleWeighted(server_lr=self.settings.server_lr, momentum=self.settings.server_momentum)
        return {"w": rule, "base": rule}

    @property
    def has_global_model(self) -> bool:
        return True
