"""Methods, networks and states for tests of all methods."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hierfl import Federation
from hierfl.experiments.methods import load
from hierfl.inference import Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import FedBN
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.rng import ClientNoise, client_keys, generator, permutation

ROOT = Path(__file__).parents[2]
#: the tutorial's method
TUTORIAL = load(str(ROOT / "docs" / "student_t.py")).cls


def case_name(case: tuple[type[Method], dict]) -> str:
    """Of a method and its settings."""
    return "-".join([case[0].name or case[0].__name__, *map(str, case[1].values())])


def network_for(cls: type[Method], fed: Federation) -> Architecture:
    """One hidden layer of five: with batch norm for FedBN; with an encoder that has it for latent features."""
    if cls is FedBN:
        d, layers = fed.event_shape.numel(), (nn.BatchNorm1d(5), nn.ReLU())
        with torch.random.fork_rng(devices=[]):
            return Architecture(
                Network(nn.Sequential(nn.Flatten(), nn.Linear(d, 5), *layers), weights="drawn"),
                LinearHead(5, fed.classes),
            )
    return architecture("mlp:5,z-norm" if cls.latent else "mlp:5", fed, latent=cls.latent)


def states(method: Method, fed: Federation) -> tuple[dict, dict]:
    """A shared state, and rows for all clients that differ from each other."""
    rng, start = generator("test state"), InitialWeights.for_network(method.network, 5)
    shared = {k: v.double() for k, v in method.shared(start).items()}
    initial = {k: v.double() for k, v in method.personal(start).items()}
    rows = {}
    for k, v in initial.items():
        wobble = 0.3 * torch.randn((fed.clients, 1, *v.shape), generator=rng, dtype=torch.float64)
        rows[k] = v * wobble.exp() if k == "rho" else v + wobble
    return shared, rows


def largest_first(fed: Federation) -> list[int]:
    """All clients in the order of a plate."""
    return sorted(range(fed.clients), key=lambda j: -len(fed.train[j]))


def chunk_of(method: Method, fed: Federation, order: list[int] | None = None) -> ClientChunk:
    """Clients that differ from each other, in the middle of round 1."""
    shared, rows = states(method, fed)
    order = order or largest_first(fed)
    return ClientChunk(method, fed, order, 1, 0, shared, {k: v[order] for k, v in rows.items()})


def order_of(chunk: ClientChunk, row: int, phase: object, epoch: int) -> torch.Tensor:
    """The order in which a row's examples are taken in an epoch of a phase."""
    name = chunk.federation.ids[chunk.clients[row]]
    return permutation(chunk.sizes[row], name, *chunk.stream(phase), "epochs", number=epoch)


def noise_for(fed: Federation, clients: list[int], particles: int = 1, counts: bool = False) -> ClientNoise:
    """Client-keyed noise, for each example or not."""
    sizes = [len(fed.train[j]) for j in clients] if counts else None
    return ClientNoise(client_keys(fed.ids[j] for j in clients), (0,), particles, counts=sizes, dtype=torch.float64)
