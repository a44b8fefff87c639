"""Methods in which all of a network's weights are one vector w_j: what they share.

w_j | w ~ N(w, rho_j^2 I),    y_ij ~ Categorical(softmax(f(x_ij; w_j)))            w_j all weights of a network
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, sample
from hierfl.rng import normals


class WholeNetwork(Method):
    """All of a network's weights are one vector w_j.

    Batch norm's running statistics are no weights. Where nothing personal is predicted with they are averaged beside w;
    the others take no network that has them.
    """

    #: whether running statistics are averaged
    averages_norms: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Settings:
        """Minibatch gradient descent on the mean log likelihood."""

        epochs: int = setting(5, "passes through a client's data in a round", at_least=0)
        lr: float = setting(1e-2, "step size of the clients", above=0)
        batch: int = setting(10, "examples in a minibatch", at_least=1)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        if network.base.norm_names and not self.averages_norms:
            name = self.name or type(self).__name__
            raise UserError(
                f"{name} has no running statistics of batch norm, as network {network.spec} "
                "has: fedbn keeps them with the client; fedavg, fedavg-ft, fedprox, scaffold, perfedavg, ifca, fedpa, "
                "fedep and fola average them"
            )

    def begin(self, start: InitialWeights) -> Tensor:
        """The initial weights, (d,): those of every other method with this network and seed."""
        return self.network.vector(start.base, self.settings.init_scale * start.head)

    def shared(self, start: InitialWeights) -> State:
        return {"w": self.begin(start), **self.network.statistics(start.base)}

    def prior(self, batch: Batch) -> Any:
        """p(w_j | w)."""
        raise NotImplementedError

    def posterior_of(self) -> Any:
        """q(w_j)."""
        raise NotImplementedError

    def output(self, w_j: Tensor, x: Tensor) -> Tensor:
        """The outputs of a client's network, given its latent (..., S, 1, d)."""
        return self.network(w_j, x)

    def model(self, batch: Batch) -> None:
        net, p = self.network, self.prior(batch)
        with clients(batch):
            w_j = sample("w_j", p)  # (S, 1, d)
            with data(batch):
                sample("y", net.likelihood(self.output(w_j, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        q = self.posterior_of()
        with clients(batch):
            sample("w_j", q)

    def new_client_terms(self, personal: State) -> State:
        return personal


def drawn(w: Tensor, scale: Tensor, number: int) -> Tensor:
    """Draws of N(w, diag(scale)^2), the same for everyone: (number, 1, 1, d), as ``shared_draws`` gives them."""
    xi = normals(torch.Size((number, *w.shape)), 0, "draws of q(w)", dtype=w.dtype, device=w.device)
    return (w + xi * scale)[:, None, None]


def penalty(strength: float, batch: Batch) -> Tensor:
    """rho_j of a penalty (strength / 2) |w_j - w|^2 beside a mean loss, (S, 1, 1): rho_j^2 = 1 / (strength n_j)."""
    return (strength * batch.n).rsqrt()[:, None, None]
