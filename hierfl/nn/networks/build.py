"""What a method builds its model from, by the name of its network."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from ...calls import checked_call
from ...errors import UserError
from ..architecture import Architecture
from ..likelihoods import Learned
from .recipe import Recipe
from .weights import Weights

if TYPE_CHECKING:
    from ...data.federation import Federation

#: of a given standard deviation, in any unit; its inverse is the smallest
LARGEST_NOISE = 1e12


@checked_call
def architecture(
    spec: str, federation: Federation, noise: float | Learned = "shared", latent: bool = False, *,
    head: str = "linear", weights: Weights | None = None,
) -> Architecture:  # fmt: skip
    """A network for this federation's inputs and responses.

    With latent features the network is cut at its last convolution, or its last hidden layer where it has none. That
    layer gives twice as many numbers, z's mean and log variance, without its batch norm; what follows it, its ReLU
    first, becomes the base network. The network without latent features is the limit of no variance.

    Args:
        spec: one of :data:`~hierfl.nn.networks.registry.NETWORKS`. pFedVEM's are mlp:100 (Fashion-MNIST),
            cnn:16,32:120,84 (CIFAR-10) and convnet:32,64,128,256,100 (CIFAR-100, SUN397); FedPop's mlp:512,256,64
            (MNIST), cnn:64,64:120,64 (CIFAR-10) and cnn:64,128:256,128,dropout=0.6 (CIFAR-100); pFedV's
            bncnn:64,64,128:2048,512 (Digit-Five); pFedVMP's cnn:32,64:512,leaky=0.1.
        federation: says what goes in and comes out.
        noise: standard deviation of a regression's response in the user's units, whose responses are then used as
            they are; "shared" standardises them and learns one for all clients, "clients" one for each client.
        latent: with latent features.
        head: "linear", the last layer; or "lora:RANK" or "lora:RANK:LAYER,LAYER,...", low-rank adapters of these layers
            (or of all) beside it, on a network that is not trained, see :mod:`hierfl.nn.adapters`; "lora-fixed:RANK"
            does not train the matrices A either.
        weights: a file of weights, or its tensors by name, that the network begins with, see
            :func:`.weights.load_weights`; where ``spec`` ends in ",affine-norm" batch norm goes by the file's
            statistics, as they are.

    Raises:
        UserError: for a spec that cannot be read or does not suit the inputs, or a noise that is no standard deviation;
            a head or a file that does not fit the network.
    """
    if not isinstance(spec, str) or not hasattr(federation, "event_shape"):
        raise UserError(
            "architecture takes a name and a federation, as in architecture('mlp:100', federation), not "
            f"{type(spec).__name__} and {type(federation).__name__}"
        )
    fits = noise in get_args(Learned) if isinstance(noise, str | bool) else 0 < noise < float("inf")
    if not fits:
        raise UserError(f'noise must be a number above zero, "shared" or "clients", not {noise!r}')
    if not isinstance(noise, str) and not 1 / LARGEST_NOISE <= noise <= LARGEST_NOISE:
        raise UserError(f"noise must be from {1 / LARGEST_NOISE:g} to {LARGEST_NOISE:g}, not {noise:g}")
    outputs = federation.classes if federation.task == "classification" else 1
    recipe = Recipe(spec, tuple(federation.event_shape), outputs, latent, head)
    return recipe.made(None if federation.classes else noise, weights)
