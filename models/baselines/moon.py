"""MOON: FedAvg whose features stay near those of the broadcast network. Li, He and Song, CVPR 2021, Eq. 3, Alg. 1.

    w, theta       ~ flat                                        rho -> 0: every w_j is w; z = h_theta(x)
    c_ij           = 1 ~ Bernoulli(e^{s_g / tau} / (e^{s_g / tau} + e^{s_p / tau})), to the power mu
    y_ij | z_ij    ~ Categorical(softmax(w^T z_ij))

    s_g, s_p: cosines of z_ij and the features of x_ij under theta as it was broadcast, and as j has last trained it
    minimised by client j: mean over i of -log p(y_ij | z_ij) - mu log p(c_ij = 1 | z_ij)

What it needs beyond the one model is the model-contrastive factor: of the two held networks it is the broadcast one
that z must look like. h_theta ends in a projection head (two layers), of which the last layer and the factor both see
the output. The factor says nothing of a new x: it is no part of a prediction.

A round: those who take part train copies of w and theta jointly, by minibatch gradient descent, both other networks
held, keep theta_j until they take part again, and send n_j w_j, n_j theta_j and n_j; the server divides. Where a client
has never taken part, its last network is the one from which all began; in the first round that is the broadcast one,
s_g = s_p, and the factor has no gradient.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.likelihoods import Softmax
from hierfl.ppl.plates import clients, data, flat, sample, scale

from ._global_network import GlobalNetwork


class MOON(GlobalNetwork):
    """rho -> 0, and features that look like the broadcast network's rather than the client's last one's."""

    about = About(
        name="moon",
        what="features near the global network's",
        paper="Li et al., CVPR 2021",
        family="rho -> 0, contrastive factor",
        stays="last network",
        sent="all",
        message_size=1.47,
        order=325,
    )

    @dataclass(frozen=True)
    class Settings(GlobalNetwork.Settings):
        """The paper: mu of 0.1 to 10 (5 on CIFAR-10, 1 on CIFAR-100), tau 0.5, a projection to 256."""

        mu: float = setting(
            1.0, "how much the contrastive factor counts beside the likelihood; 0 is FedAvg", at_least=0, at_most=1e12
        )
        tau: float = setting(
            0.5, "temperature, what cosines of features are divided by", above=0, unless={"mu": (0,)}, at_most=1e12
        )
        projection: int = setting(
            256, "outputs of the projection head, two layers behind the base network; 0 for none", at_least=0
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        if self.settings.projection:
            self.network = projected(network, self.settings.projection)
        base = self.network.base
        if not base.names:
            raise UserError(
                f"moon compares features that it learns, and network {network.spec} has none; projection=256 adds some"
            )
        self.sent_base, self.last_base = base.broadcast(), Network(base.module, "last", base.event)

    def personal(self, start: InitialWeights) -> State:
        return {last_name(k): v for k, v in start.base.items()}

    def model(self, batch: Batch) -> None:
        net, s = self.network, self.settings
        w = sample("w", flat(net.head.d))
        with clients(batch), data(batch):
            z = net.base(batch.x)  # (S, n, D)
            if s.mu:
                logits = cosines(z, self.sent_base(batch.x), self.last_base(batch.x)) / s.tau
                with scale(scale=s.mu):
                    sample("contrast", Softmax(logits), obs=torch.zeros_like(batch.y, dtype=torch.long))
            sample("y", net.likelihood(net.head(w, z)), obs=batch.y)

    def local(self) -> list[LocalStep]:
        return [*super().local(), Keep()]

    def schedule(self) -> Schedule:
        # The last network is that of the last round in which the client took part.
        return Schedule(absent="freeze", new_client_steps=[])

    def new_client_terms(self, personal: State) -> State:
        return {}  # predictions need no last network, so that none is sent


def projected(network: Architecture, outputs: int) -> Architecture:
    """The network with a projection head behind its base: a layer of as many units as features, ReLU, a layer.

    Args:
        network: with features of any number D.
        outputs: of the projection head, which the last layer sees.
    """
    module, features = network.base.module, network.head.features
    below, prefix = (list(module), "") if type(module) is nn.Sequential else ([module], "0.")
    given = {f"{prefix}{key}" for key in network.base.given}
    with torch.random.fork_rng(devices=[]):  # the weights made here are never used: see Network.init
        head = [nn.Linear(features, features), nn.ReLU(), nn.Linear(features, outputs)]
    base = Network(nn.Sequential(*below, *head), network.base.name, network.base.event, given)
    return dataclasses.replace(network, base=base, head=dataclasses.replace(network.head, features=outputs))


def cosines(z: Tensor, sent: Tensor, last: Tensor) -> Tensor:
    """s_g and s_p, (S, n, 2).

    Args:
        z: features under the network that is trained, (S, n, D).
        sent: under the broadcast one, (S, n, D).
        last: under the client's last one, (S, n, D).
    """
    return torch.stack([torch.cosine_similarity(z, other, -1) for other in (sent, last)], -1)


def last_name(name: str) -> str:
    """A value of the base network in the client's last one."""
    return f"last.{name.removeprefix('base.')}"


class Keep:
    """A local step: the base network as it was trained becomes the client's last one."""

    trains: tuple[str, ...] = ("last",)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Copies."""
        names = chunk.method.network.base.names
        return chunk.put({last_name(k): chunk.values[k].clone() for k in names})
