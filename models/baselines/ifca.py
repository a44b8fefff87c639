"""IFCA: clusters of clients. Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, Alg. 1.

    w^1 ... w^C  ~ flat                                          heads of a shared base, or all weights
    w_j          = w^label_j                                     label_j a point: a hard mixture
    y_ij | x_ij  ~ Categorical(softmax(w_j^T h_theta(x_ij)))

A round: every client that takes part sets label_j to the cluster under which its training data are likeliest, and
trains copies of that w^c and of theta, by minibatch gradient descent on its mean log likelihood. It sends n_j w_j and
n_j in its cluster's slot, and n_j theta_j, n_j; the server divides, slot by slot. A cluster that no client has chosen
stays.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.hard_assignment import HardAssignment
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.clusters import ClusterMeans
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample

from .._common_settings import client_momentum, server_step
from ._whole_network import WholeNetwork


class IFCA(WholeNetwork):
    """Clusters of clients: each trains the model, of several, under which its data are likeliest."""

    about = About(
        name="ifca",
        what="clusters",
        paper="Ghosh et al., NeurIPS 2020",
        family="a mixture of points",
        stays="label, chosen again each round",
        sent="base, all slots of heads",
        message_size=1.01,
        order=340,
    )

    @dataclass(frozen=True)
    class Settings(WholeNetwork.Settings):
        """The paper shares the base network and has a head for each cluster where clusters are not well apart."""

        clusters: int = setting(2, "C, how many clusters", at_least=1, at_most=10_000)
        scope: Literal["head", "all"] = setting(
            "head", "what each cluster has for itself: the last layer, the rest being shared | all weights"
        )
        momentum: float = client_momentum()
        server_lr: float = server_step()

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        # Clusters that share the base share its statistics.
        self.averages_norms = settings.get("scope", "head") == "head"  # type: ignore[misc]
        super().__init__(network, **settings)

    def shared(self, start: InitialWeights) -> State:
        s = self.settings
        # Equal ones would be chosen alike for ever.
        more = torch.randn((s.clusters - 1, len(start.head)), generator=start.rng, dtype=start.head.dtype)
        heads = s.init_scale * torch.cat([start.head[None], more])
        if s.scope == "head":
            return {"w": heads, **start.base}
        whole = torch.stack([self.network.vector(start.base, head) for head in heads])
        return {"w": whole}

    def personal(self, start: InitialWeights) -> State:
        return {"label": torch.zeros(1)}

    def model(self, batch: Batch) -> None:
        net, s = self.network, self.settings
        d = net.head.d if s.scope == "head" else net.d
        w = sample("w", flat(s.clusters, d))
        own = param("label").unsqueeze(-1) == torch.arange(s.clusters, device=batch.n.device)[:, None]  # (S, 1, C, 1)
        w_j = torch.where(own, w, 0).sum(-2)
        with clients(batch), data(batch):
            y = net.head(w_j, net.base(batch.x)) if s.scope == "head" else net(w_j, batch.x)
            sample("y", net.likelihood(y), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Labels and weights are points."""

    def local(self) -> list[LocalStep]:
        s = self.settings
        descent = SVI(["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")
        return [self.assignment, descent]

    @property
    def assignment(self) -> LocalStep:
        """Every client chooses its cluster again."""
        return HardAssignment("label", self.settings.clusters)

    def schedule(self) -> Schedule:
        return Schedule(absent="freeze", commit="if-used", final_steps=[self.assignment], final_when="evaluation")

    def exchange(self) -> dict[str, AggregationRule]:
        server_lr = self.settings.server_lr
        return {"w": ClusterMeans("label", server_lr), "base": SampleWeighted(server_lr)}

    def new_client_terms(self, personal: State) -> State:
        label = personal["label"]
        return {"label": (label == torch.arange(self.settings.clusters, device=label.device)).long()}

    def init_new_client(self, means: State, initial: State, personal: State) -> State:
        return {"label": means["label"].argmax().view(1)}  # the larger cluster's

    def client_summary(self, values: State) -> State:
        return {"label": values["label"].flatten()}

    @property
    def has_global_model(self) -> bool:
        return False
