"""pFedVMP: variational message passing for a shared base and the centroids of its features.

Anonymous, "Personalized federated learning via variational message passing". Labels differ between clients; what a
class looks like should not. Every class k has a centroid mu_k in the space of the base network's features:

    w_j            ~ flat                                             head, the client's own (a point)
    mu_k           ~ flat, or N(0, I / prior_precision)               centroids, shared
    z_ij           = h_theta(x_ij) ~ N(mu_{y_ij}, I / (2 xi'))        features are drawn around their class's centroid
    y_ij | z_ij    ~ Categorical(softmax(w_j^T z_ij))

    minimised by client j: sum_i [ -log p(y_ij | z_ij, w_j) + xi' |z_ij - mu_{y_ij}|^2 ]                       (Eq. 9)

xi' is xi, or xi / D where the distance is the mean of the squares (the default): the paper does not say which. z is no
datum: it is what theta makes of x, so that its site is a factor that holds theta, and ELBOs of different xi or distance
are not comparable.

A round: every client trains theta and w_j on that objective, the centroids held. For each class that it has it then
sends a Gaussian factor of the centroid: the mean mu_jk of the class's features, with a precision from their covariance
Sigma_jk. The server multiplies the factors, and those of theta, whose precision is n_j / n I (Eq. 10, 12). Before any
client has reported a class, nothing pulls at its features.

    q_j(mu_k) = N(mu_jk, Lambda_jk^-1),         Lambda_jk = pinv(Sigma_jk) + alpha I                         (Eq. 11)
    Lambda_k  = sum_j Lambda_jk,                mu_k = Lambda_k^-1 sum_j Lambda_jk mu_jk                     (Eq. 13)
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pyro.distributions import Delta, Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.devices import send
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.gaussian import GaussianProduct
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.server.rules.running import CountSum
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.gaussian_factors import Gaussian, Kind, packed_size, sample_factor, sample_mean
from hierfl.ppl.plates import clients, data, flat, mask, param, sample
from hierfl.ppl.restrict import Restrict

from ._common_settings import client_momentum

#: torch's own for a matrix of 512 x 512 numbers in single precision
CUTOFF = 6e-5
#: settings without centroids, settings that send none, settings that take no covariance
FREE: dict[str, tuple[str, ...]] = {"prior": ("flat",)}
UNSENT = {"prior": ("fixed", "flat")}
UNSEEN = {**UNSENT, "precision": ("count", "equal")}


class PFedVMP(Method):
    """Shared base, personal heads, and centroids of features as messages."""

    about = About(
        name="pfedvmp",
        what="feature centroids by message passing",
        paper="anonymous",
        family="hierarchical",
        stays="head",
        sent="base, centroids' factors",
        message_size=2.28,
        order=60,
    )
    takes_adapters = True

    @dataclass(frozen=True)
    class Settings:
        """The paper: one epoch of SGD 0.01 with batches of 10, alpha 1; xi 50, of a scale that it does not state."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical",
            "of features: around centroids of classes that clients agree on | around zero | none (FedPer)",
        )
        precision: Literal["full", "diagonal", "count", "equal"] = setting(
            "full",
            "how a client's centroid is weighed: by its features' covariance, Eq. 11 | their variances alone | its "
            "number of examples (pFedVMP-avg) | all alike",
            unless=UNSENT,
        )
        xi: float = setting(
            50.0, "how strongly features are pulled to their class's centroid: weight of the squared distance", above=0,
            unless=FREE, scale_of=("hierarchical", "fixed"), at_most=1e12,
        )  # fmt: skip
        distance: Literal["mean", "sum"] = setting(
            "mean", "the squared distance that xi weighs is a mean | a sum over features", unless=FREE
        )
        alpha: float = setting(1.0, "added to the precision of a client's centroid, times I", above=0, unless=UNSEEN)
        cutoff: float = setting(
            CUTOFF, "variances below this share of the largest count as zero", above=0, below=1, unless=UNSEEN
        )
        prior_precision: float = setting(
            0.0, "precision of one more factor N(0, I / precision) of every centroid; 0 for none", at_least=0,
            unless=UNSENT, at_most=1e12,
        )  # fmt: skip
        epochs: int = setting(1, "passes through a client's data in a round", at_least=0)
        lr: float = setting(1e-2, "step size of the clients, on the mean over examples", above=0)
        batch: int = setting(10, "examples in a minibatch", at_least=1)
        momentum: float = client_momentum(0.0)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.noise is not None:
            raise UserError("pfedvmp has a centroid for every class: data with labels, not a regression")
        super().__init__(network, **settings)
        self.classes, self.features = network.head.outputs, network.head.features

    def shared(self, start: InitialWeights) -> State:
        if self.settings.prior != "hierarchical":
            return start.base
        centroids = torch.zeros(self.classes, self.features, dtype=torch.float64)
        return {"centroids": centroids, "counts": centroids.new_zeros(self.classes), **start.base}

    def personal(self, start: InitialWeights) -> State:
        return {"w_j_point": self.settings.init_scale * start.head}

    @property
    def spread(self) -> float:
        """Standard deviation of a feature around its centroid: minus its log density is xi times the distance."""
        features = self.features if self.settings.distance == "mean" else 1
        return (features / (2 * self.settings.xi)) ** 0.5

    def centroids(self, n: Tensor) -> tuple[Tensor, Tensor]:
        """mu (C, D), and which of them pull (C,); n gives dtype and device."""
        shape, weight = (self.classes, self.features), self.settings.prior_precision
        if self.settings.prior != "hierarchical":
            return n.new_zeros(shape), torch.full(shape[:1], self.settings.prior == "fixed", device=n.device)
        p = Normal(n.new_zeros(shape), weight**-0.5).to_event(2) if weight else flat(*shape)
        return sample("centroids", p), param("counts") > 0

    def model(self, batch: Batch) -> None:
        net, (mu, has_centroid) = self.network, self.centroids(batch.n)
        with clients(batch):
            w_j = sample("w_j", flat(net.head.d))
            with data(batch):
                z = net.head.reads(w_j, net.base(batch.x))  # (S, n, D)
                with mask(mask=has_centroid[batch.y]):
                    sample("z", Normal(mu[batch.y], mu.new_full((), self.spread)).to_event(1), obs=z)
                sample("y", net.likelihood(net.head.last(w_j, z)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            sample("w_j", Delta(param("w_j_point")).to_event(1))

    def sgd(self, *names: str) -> SVI:
        """Minibatch gradient descent of these values, on the mean over examples."""
        s = self.settings
        return SVI(names, s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")

    def local(self) -> list[LocalStep]:
        return [self.sgd("base", "w_j_point")]

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[self.sgd("w_j_point")])

    def new_client_terms(self, personal: State) -> State:
        return personal

    @property
    def kind(self) -> Kind:
        """The kind of the precisions that are sent."""
        kinds: dict[str, Kind] = {"full": "full", "diagonal": "diagonal"}
        return kinds.get(self.settings.precision, "scalar")

    def factors(self, chunk: ClientChunk) -> tuple[Tensor, Tensor]:
        """h = Lambda_jk mu_jk, (S, C, D), and Lambda_jk, packed: of each row's own classes, zero for others."""
        net, where = self.network, chunk.federation.by_class
        shape = (len(chunk.clients), self.classes, self.features)
        linear = torch.zeros(shape, dtype=torch.float64, device=chunk.n.device)
        precision = linear.new_zeros((*shape[:2], packed_size(self.features, self.kind)))
        for first, last in buckets(chunk.sizes):
            part = chunk.part(first, last)
            batch = part.batch()
            with torch.no_grad(), Restrict(part.view):
                zs = net.head.reads(part.view["w_j_point"], net.base(batch.x))
            counts = where.counts[part.clients]  # (S, C)
            largest_first = (-counts).ravel().argsort(kind="stable")[: np.count_nonzero(counts)]
            rows, labels = np.divmod(largest_first, self.classes)
            sizes = counts[rows, labels].tolist()
            for start, end in buckets(sizes):
                who = send(torch.from_numpy(np.stack([rows[start:end], labels[start:end]])), linear.device)
                own = [torch.from_numpy(where.places(part.clients[rows[p]], labels[p])) for p in range(start, end)]
                places = send(torch.nn.utils.rnn.pad_sequence(own, batch_first=True), linear.device)
                n = send(sizes[start:end], linear.device)
                factor = self.factor(zs[who[0][:, None], places], n)
                linear[first + who[0], who[1]] = factor.linear
                precision[first + who[0], who[1]] = factor.packed()
        return linear, precision

    def factor(self, z: Tensor, n: Tensor) -> Gaussian:
        """q_j(mu_k) of each class's features (P, Z, D), of which the first n (P,) are there.

        Eq. 11, or an ablation.
        """
        s = self.settings
        if self.kind != "scalar":
            return sample_factor(z, self.kind, s.alpha, s.cutoff, n)
        weight = n if s.precision == "count" else torch.ones_like(n)
        return Gaussian.from_mean(sample_mean(z.double(), n), weight[:, None].double(), "scalar")

    def counts(self, chunk: ClientChunk) -> Tensor:
        """How many examples of each class the rows have, (S, C): q(y_k), but for the sum."""
        batch = chunk.batch()
        one_hot = torch.nn.functional.one_hot(batch.y, self.classes).to(chunk.n)
        return (one_hot if batch.mask is None else one_hot * batch.mask[..., None]).sum(1)

    def exchange(self) -> dict[str, AggregationRule]:
        rules: dict[str, AggregationRule] = {"base": SampleWeighted()}
        if self.settings.prior == "hierarchical":
            rules["centroids"] = GaussianProduct(self.factors, self.kind, self.settings.prior_precision)
            rules["counts"] = CountSum(self.counts)
        return rules

    @property
    def has_global_model(self) -> bool:
        return False
