"""FedProto: networks of one's own, and class centroids of their features for all. Tan et al., AAAI 2022, Alg. 1.

    c_k            ~ flat                                        centroids of D features, shared
    w_j, theta_j   ~ flat                                        rho -> inf on the whole network, z = h_theta_j(x)
    z_ij           ~ N(c_{y_ij}, D / (2 lambda) I)               where the class has a centroid
    y_ij | z_ij    ~ Categorical(softmax(w_j^T z_ij))            (site y_head)

    minimised by client j: mean over i of -log p(y_ij | z_ij, w_j) + lambda |z_ij - c_{y_ij}|^2 / D

What it needs beyond the one model is the factor of z, which is no datum but what theta_j makes of x. The head is there
to train the features; predictions are the nearest centroid's. As a distribution, that of prototypical networks (Snell
et al., NeurIPS 2017, Eq. 2), which the paper does not need, and which no client trains on:

    p(y = k | x)   = softmax_k(-|z - c_k|^2 / T)                 (site y)

A round: every client trains (w_j, theta_j) jointly, by minibatch gradient descent, the centroids held. Then those who
take part pass over their data once more and send, for each class, the sum of z_ij and the number of examples. The
server divides: c_k is the mean over all their examples. A class that none of them has keeps its centroid.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.likelihoods import Softmax
from hierfl.ppl.plates import clients, data, flat, mask, sample

from ._class_centroids import centroids, check_labels, means_of_all, no_centroids, pull
from .local import Local


class FedProto(Local):
    """rho -> inf on the whole network, whose features are pulled to class centroids that clients agree on."""

    about = About(
        name="fedproto",
        what="class centroids of own features",
        paper="Tan et al., AAAI 2022",
        family="rho -> inf, centroids",
        stays="all",
        sent="classes' sums of features",
        message_size=0.01,
        order=145,
    )

    @dataclass(frozen=True)
    class Settings(Local.Settings):
        """The paper: lambda 1."""

        lam: float = setting(
            1.0,
            "lambda, how strongly features are pulled to their class's centroid; 0 is local training",
            at_least=0,
            at_most=1e12,
        )
        temperature: float = setting(
            1.0, "T, what squared distances to centroids are divided by in predictions; accuracy is the same for all",
            above=0, at_most=1e12,
        )  # fmt: skip

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        check_labels(network, "fedproto")
        super().__init__(network, **settings)

    def shared(self, start: InitialWeights) -> State:
        return no_centroids(start, self.network)

    def model(self, batch: Batch) -> None:
        net = self.network
        c, has_centroid = centroids(net)
        with clients(batch):
            w_j = sample("w_j", flat(net.head.d))
            with data(batch):
                z = net.base(batch.x)  # (S, n, D)
                pull(z, batch, c, has_centroid, self.settings.lam)
                sample("y_head", net.likelihood(net.head(w_j, z)), obs=batch.y)
                with mask(mask=False):  # no term of the objective
                    sample("y", self.nearest(z.detach(), c, has_centroid), obs=batch.y)

    def nearest(self, z: Tensor, c: Tensor, has_centroid: Tensor) -> Softmax:
        """Softmax of minus the squared distances over T, whose mode is the nearest centroid.

        A class without a centroid is less likely than every other by a factor e at least, so that it is never the mode
        and log densities are finite; where none has one, all are alike.

        Args:
            z: features, (S, n, D).
            c: centroids, (C, D).
            has_centroid: which of them there are, (C,).
        """
        distances = torch.cdist(z, c, compute_mode="donot_use_mm_for_euclid_dist").square() / self.settings.temperature
        farthest = distances.where(has_centroid, 0).amax(-1, keepdim=True)
        return Softmax(-torch.where(has_centroid, distances, farthest + 1))

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[self.sgd("mu", "base")])

    def exchange(self) -> dict[str, AggregationRule]:
        return {"centroids": means_of_all()}
