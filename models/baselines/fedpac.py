"""FedPAC: features around shared centroids, heads rebuilt from all clients'. Xu, Tong and Huang, ICLR 2023, Alg. 1.

    theta          ~ flat                                        rho -> 0: z = h_theta(x), D features
    c_k            ~ flat                                        centroids of the features, shared
    w_j            ~ flat                                        rho -> inf on the head
    z_ij           ~ N(c_{y_ij}, D / (2 lambda) I)               where the class has a centroid
    y_ij | z_ij    ~ Categorical(softmax(w_j^T z_ij))
    q(w_j)         = delta(mu_j)

    minimised by client j: mean over i of -log p(y_ij | z_ij, w_j) + lambda |z_ij - c_{y_ij}|^2 / D

What it needs beyond the one model is the factor of z (see fedproto.py), and instead of a prior of w_j a choice of whom
to borrow from, pair by pair. H_j[k] = p_j(k) E_j[z given k], with p_j(k) the share of class k, estimates E[e_y z^T]
with variance V_j; the server weighs all heads as it would all H_a to estimate client j's:

    V_j = (E_j |z|^2 - |H_j|^2) / n_j,   mu_j <- sum_a alpha_ja mu_a
    alpha_j = argmin over the simplex of sum_a alpha_a^2 V_a + |sum_a alpha_a (H_j - H_a)|^2

A round, at every client: H_j and V_j of the features of theta as received; mu_j given theta; a copy theta_j given mu_j
and the centroids, each by minibatch gradient descent; then sums and counts of its features by class, of theta_j.
Those who take part send n_j theta_j, n_j, sums and counts, of which the server needs the sum: theta and c_k are the
means over all their examples. They also send mu_j, V_j and H_j, which the server sees client by client: there is no sum
that would do, so no secure one can be, and row k of H_j is, where the client has one example of class k, that example's
features over n_j.

Each of them is sent theta, the centroids, the mean of the new heads (which bounds what may be sent) and its own mu_j,
never another's. Who has not reported keeps its head, which is in no client's combination.

``shares="on"`` is an ablation of this project: y has the offset log E[pi_j | n_j] - log m (:mod:`.._share_offset`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.class_features import class_features
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.own_combination import OwnCombination
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, sample

from .._common_settings import client_momentum
from .._share_offset import ShareOffset, shares_setting
from ._class_centroids import centroids, check_labels, means_of_all, no_centroids, pull
from .fedrep import FedRep


class FedPAC(ShareOffset, FedRep):
    """rho -> inf on the head, which the server rebuilds from those of clients with like features and labels."""

    about = About(
        name="fedpac",
        what="centroids, heads combined pair by pair",
        paper="Xu et al., ICLR 2023",
        family="rho -> inf on heads, centroids",
        stays="head",
        sent="all, class features; not in sums",
        message_size=1.03,
        order=131,
    )
    #: predictions are with the base and the head that the server has made, which go together
    local_copies: ClassVar[tuple[str, ...]] = ()
    replies: ClassVar[tuple[str, ...]] = ("mu", "own_share")

    @dataclass(frozen=True)
    class Settings(FedRep.Settings):
        """The paper and its code: lambda 1, one epoch of steps of 0.1 for the head, five of 0.01 for the base."""

        momentum: float = client_momentum(0.5)
        head_epochs: int = setting(1, "passes that train the head, before those that train the base", at_least=0)
        head_lr: float = setting(0.1, "step size of the head", above=0, unless={"head_epochs": (0,)})
        lam: float = setting(
            1.0,
            "lambda, how strongly features are pulled to their class's centroid; 0 for not at all",
            at_least=0,
            at_most=1e12,
        )
        shares: Literal["off", "on"] = shares_setting()

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        check_labels(network, "fedpac")
        super().__init__(network, **settings)

    def shared(self, start: InitialWeights) -> State:
        head = self.settings.init_scale * start.head
        return {**start.base, **no_centroids(start, self.network), "heads": head, **self.offset_shared(start)}

    def personal(self, start: InitialWeights) -> State:
        return {**super().personal(start), "own_share": start.head.new_ones(()), **self.offset_personal(start)}

    def model(self, batch: Batch) -> None:
        net = self.network
        c, has_centroid = centroids(net)
        with clients(batch):
            w_j = sample("w_j", flat(net.head.d))
            with data(batch):
                z = net.base(batch.x)  # (S, n, D)
                pull(z, batch, c, has_centroid, self.settings.lam)
                sample("y", net.likelihood(self.at_client(net.head(w_j, z))), obs=batch.y)

    def local(self) -> list[LocalStep]:
        s = self.settings
        head = SVI(["mu"], s.head_epochs, sgd(s.head_lr, s.momentum), s.batch, per="example")
        return [*self.offset_steps(), head, self.sgd("base")]

    def new_client_terms(self, personal: State) -> State:
        return {"mu": personal["mu"]}

    def client_summary(self, values: State) -> State:
        """What share of a client's head is its own."""
        return {"own_share": values["own_share"].flatten()}

    def statistics(self, chunk: ClientChunk) -> tuple[Tensor, Tensor]:
        """V_j (S,) and H_j (S, C, D) of the features of the base that was broadcast."""
        features, n = class_features(chunk, "received"), chunk.n
        h = features.sums / n[:, None, None]
        # No variance is below zero, but rounding may be.
        return (features.squares / n - h.square().sum((1, 2))).clamp_min(0) / n, h

    def exchange(self) -> dict[str, AggregationRule]:
        shape = (self.network.head.outputs, self.network.head.features)
        return {
            **super().exchange(),
            "centroids": means_of_all(),
            "heads": OwnCombination("heads", "mu", "own_share", self.statistics, shape),
            **self.offset_rules(),
        }
