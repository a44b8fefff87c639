"""Class centroids that clients share, and the factor that pulls their features to them: what two methods share.

c_k ~ flat,    z_ij ~ N(c_{y_ij}, D / (2 lambda) I)    where class y_ij has a centroid; z = h_theta(x), D features

As a penalty beside a mean loss it is lambda |z_ij - c_{y_ij}|^2 / D, the mean over the client's examples.
"""

from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.class_features import class_features
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.class_means import ClassMeans
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import flat, mask, param, sample


def check_labels(network: Architecture, name: str) -> None:
    """Raises a UserError for a regression, which has no classes."""
    if network.noise is not None:
        raise UserError(f"{name} has a centroid for every class: data with labels, not a regression")


def no_centroids(start: InitialWeights, network: Architecture) -> State:
    """The shared values before anybody has sent anything: zeros (C, D), of no examples (C,)."""
    centroids = start.head.new_zeros(network.head.outputs, network.head.features)
    return {"centroids": centroids, "centroids.counts": centroids.new_zeros(network.head.outputs)}


def centroids(network: Architecture) -> tuple[Tensor, Tensor]:
    """c (C, D), a latent of the model, and which of them there are, (C,)."""
    c = sample("centroids", flat(network.head.outputs, network.head.features))
    return c, param("centroids.counts") > 0


def pull(z: Tensor, batch: Batch, c: Tensor, has_centroid: Tensor, lam: float) -> None:
    """The factor of features z (S, n, D), inside the data plate; nothing for lambda 0."""
    if lam:
        spread = c.new_full((), (c.shape[-1] / (2 * lam)) ** 0.5)
        with mask(mask=has_centroid[batch.y]):
            sample("z", Normal(c[batch.y], spread).to_event(1), obs=z)


def class_sums(chunk: ClientChunk) -> tuple[Tensor, Tensor]:
    """Each row's sums of features (S, C, D) and numbers of examples (S, C), by class, of its trained base."""
    features = class_features(chunk)
    return features.sums, features.counts


def means_of_all() -> ClassMeans:
    """The rule: c_k is the mean over all examples of those who report; a class that none of them has stays."""
    return ClassMeans("centroids", class_sums)
