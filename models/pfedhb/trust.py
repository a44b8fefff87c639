"""Weights of clients whose labels mean something else in the values that all clients share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Form, beside
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.server.rules.weights import times_rows
from hierfl.inference.state import State

from .heads import HeadSpreads
from .rho_nodes import RhoNodes

#: a client counts in full unless more than this part of its examples has labels that mean something else
FLAGGED = 0.5
#: the least that a client counts, in parts of its examples
MIN_TRUST = 0.01
#: first round in which a client may count less, and the largest share of confused labels in the population with which
#: one may. A network that has learned little yet takes most labels for confused.
FIRST_ROUND, MAX_CONFUSED_SHARE = 2, 0.25


def trust_of(confused: Tensor) -> Tensor:
    """A client's weight: exactly 1 below :data:`FLAGGED`, otherwise the share of its examples with the usual labels.

    Args:
        confused: the expected share of its examples whose labels mean something else.
    """
    return torch.where(confused > FLAGGED, (1 - confused).clamp_min(MIN_TRUST), torch.ones_like(confused))


def trusted(chunk: ClientChunk) -> Tensor:
    """Each row's weight, (S,): 1 while the model has no confusion, or the network cannot tell classes apart."""
    trust = chunk.values["trust"].flatten()
    share, some = chunk.shared["confusion.numbers"][:2]
    tells = (share * some <= MAX_CONFUSED_SHARE) & (chunk.round >= FIRST_ROUND)
    if (entered := chunk.shared.get("parts.confusion")) is not None:
        tells = tells & (entered > 0)
    return torch.where(tells, trust, torch.ones_like(trust))


@dataclass(frozen=True)
class TrustWeighted(SampleWeighted):
    """The mean of the clients' copies weighted by their examples whose labels mean what they say.

    Where no client is flagged it is FedAvg's mean exactly.
    """

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The values times a weight above zero."""
        return {**super().form(old), "weight": beside(old)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """(n_j e_j theta_j, n_j e_j)."""
        weight = chunk.n * trusted(chunk).to(chunk.n)
        return {**{name: times_rows(weight, chunk.values[name].squeeze(1)) for name in names}, "weight": weight}


@dataclass(frozen=True)
class TrustedSpreads(HeadSpreads):
    """Spreads in which a flagged client has its reduced weight."""

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """What the local step has left, times e_j."""
        weight = trusted(chunk)
        return {key: times_rows(weight.to(value), value) for key, value in super().message(names, chunk).items()}


@dataclass(frozen=True)
class TrustedNodes(RhoNodes):
    """Nodes of rho in which a flagged client has its reduced weight."""

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """What the local step has left of each node, times e_j."""
        weight = trusted(chunk)
        return {key: times_rows(weight.to(value), value) for key, value in super().message(names, chunk).items()}
