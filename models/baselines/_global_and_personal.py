"""Methods with FedAvg's model and a personal one beside it, from which FedAvg's learns nothing: what they share.

    w            ~ flat                                          rho -> 0: all weights of a network, from all data
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))              (site y_all)
    w_j | w      ~ a prior, in which w is held
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w_j)))            (site y)

A cut: the data are seen twice, by w alone, and by w_j, from where no gradient flows back to w.
"""

from dataclasses import dataclass

from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.ppl.plates import clients, data, flat, sample

from .._common_settings import client_momentum, server_step
from ._whole_network import WholeNetwork


class GlobalAndPersonal(WholeNetwork):
    """w as in FedAvg, from all clients' data; w_j beside it, from where w learns nothing."""

    @dataclass(frozen=True)
    class Settings(WholeNetwork.Settings):
        """Both are trained together, on the same minibatches."""

        momentum: float = client_momentum()
        server_lr: float = server_step()

    settings: Settings

    def personal(self, start: InitialWeights) -> State:
        return {"v": self.begin(start)}

    def own(self, w: Tensor, batch: Batch) -> Tensor:
        """w_j, (S, 1, d), in the plate of clients."""
        raise NotImplementedError

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.d))
        with clients(batch):
            w_j = self.own(w.detach(), batch)
            with data(batch):
                sample("y_all", net.likelihood(net(w, batch.x)), obs=batch.y)
                sample("y", net.likelihood(net(w_j, batch.x)), obs=batch.y)

    def sgd(self, *names: str) -> SVI:
        """Minibatch gradient descent of these values."""
        s = self.settings
        return SVI(names, s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")

    def local(self) -> list[LocalStep]:
        return [self.sgd("w", "v")]

    def exchange(self) -> dict[str, AggregationRule]:
        return {"w": SampleWeighted(server_lr=self.settings.server_lr)}
