"""Initial weights, the same for every method."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.nn.architecture import Architecture
from hierfl.rng import generator

from ..state import State


@dataclass(frozen=True)
class InitialWeights:
    """Initial weights of this network and seed, the same for every method: comparisons are of the methods alone.

    A network that is cut into encoder and base starts from other weights than the same in one piece.

    Attributes:
        base: of the base network (and of the encoder, where there is one), {name: (*shape)}: fresh weights, or those
            that its module came with (``Network(module, weights="given")``).
        head: standard normals, one for each of the head's parameters, (d,), and zeros for B of adapters; float64.
        rng: for anything else that a method starts with.
    """

    base: State
    head: Tensor
    rng: torch.Generator

    @classmethod
    def for_network(cls, network: Architecture, seed: int) -> InitialWeights:
        """The start that belongs to a seed."""
        head = torch.randn(network.head.d, generator=generator(seed, "initial head"), dtype=torch.float64)
        head = network.head.begun(head)
        base = {k: v for net in network.networks for k, v in net.init(generator(seed, f"initial {net.name}")).items()}
        return cls(base, head, generator(seed, "initial values"))


#: what a checkpoint calls the fingerprint of :func:`given_weights`
GIVEN_WEIGHTS_KEY = "network weights"


def given_weights(network: Architecture) -> dict[str, str]:
    """A fingerprint of the weights that came with a network's modules; empty where all are drawn."""
    digest, some = hashlib.blake2b(digest_size=8), False
    for net in network.networks:
        kept = {**{k: v for k, v in net.module.state_dict().items() if k in net.given}, **net.whole.constants}
        for name, value in kept.items():
            some = True
            digest.update(f"{net.name}.{name}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().double().contiguous().numpy().tobytes())
    return {GIVEN_WEIGHTS_KEY: digest.hexdigest()} if some else {}
