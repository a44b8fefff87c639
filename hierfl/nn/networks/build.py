"""What a method builds its model from, by the name of its network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import torch

from ...calls import checked_call
from ...errors import UserError
from ..architecture import Architecture
from ..functional import Network
from ..head import LinearHead
from ..likelihoods import Learned
from .latent import Z_NORM, cut
from .spec import module_of

if TYPE_CHECKING:
    from ...data.federation import Federation


@checked_call
def architecture(
    spec: str, federation: Federation, noise: float | Learned = "shared", latent: bool = False
) -> Architecture:
    """A network for this federation's inputs and responses.

    With latent features the network is cut at its last convolution, or its last hidden layer where it has none. That
    layer gives twice as many numbers, z's mean and log variance, without its batch norm; what follows it, its ReLU
    first, becomes the base network. (The network without latent features is the limit of no variance.)

    Args:
        spec: one of :data:`~hierfl.nn.networks.registry.NETWORKS`. pFedVEM's are mlp:100 (Fashion-MNIST),
            cnn:16,32:120,84 (CIFAR-10) and convnet:32,64,128,256,100 (CIFAR-100, SUN397); FedPop's mlp:512,256,64
            (MNIST), cnn:64,64:120,64 (CIFAR-10) and cnn:64,128:256,128,dropout=0.6 (CIFAR-100); pFedV's
            bncnn:64,64,128:2048,512 (Digit-Five); pFedVMP's cnn:32,64:512,leaky=0.1.
        federation: says what goes in and comes out.
        noise: standard deviation of a regression's response in the user's units, whose responses are then used as
            they are; "shared" standardises them and learns one for all clients, "clients" one for each client.
        latent: with latent features.

    Raises:
        UserError: for a spec that cannot be read or does not suit the inputs, or a noise that is no standard deviation.
    """
    if not isinstance(spec, str) or not hasattr(federation, "event_shape"):
        raise UserError(
            "architecture takes a name and a federation, as in architecture('mlp:100', federation), not "
            f"{type(spec).__name__} and {type(federation).__name__}"
        )
    fits = noise in get_args(Learned) if isinstance(noise, str | bool) else 0 < noise < float("inf")
    if not fits:
        raise UserError(f'noise must be a number above zero, "shared" or "clients", not {noise!r}')
    outputs = federation.classes if federation.task == "classification" else 1
    event, whole = federation.event_shape, spec
    spec = spec.removesuffix(Z_NORM)
    if spec != whole and not latent:
        raise UserError(f"{Z_NORM[1:]} is for methods with latent features (pfedv, fedv); got {whole}")
    encoder: Any = None
    latents = 0
    with torch.random.fork_rng(devices=[]):  # the weights made here are never used: see Network.init
        try:
            module, kind = module_of(spec, event)
            features = module.eval()(torch.zeros(1, *event)).shape[-1]
            if latent:
                encoder, module = cut(module, event, whole)
                latents = encoder.eval()(torch.zeros(1, *event)).shape[-1] // 2
        except RuntimeError as error:
            small = "size" in str(error)  # torch's word for a picture that a convolution does not fit into
            why = f"does not fit inputs {tuple(event)}" if small else "does not fit into memory"
            raise UserError(f"network {spec} {why}") from error
    head = LinearHead(features, outputs, bias=kind.head_bias)
    noise_or_none = None if federation.classes else noise
    if encoder is None:
        return Architecture(Network(module, weights="drawn"), head, noise_or_none, spec)
    base, encoder = Network(module, event=1, weights="drawn"), Network(encoder, "encoder", weights="drawn")
    return Architecture(base, head, noise_or_none, whole, encoder, latents)
