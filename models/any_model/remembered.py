"""Sums over all clients, in which an absent client counts with its last message that was used.

A client's bound f_j of the globals is the quadratic around the mean m of the round in which it was counted,

    f_j(x)  ~  eta_j^T x - x^T A_j x / 2,        eta_j = b_j + A_j m

The client sends by how much eta_j and A_j have changed since then, so that the server's sums are those of all clients
that were ever counted. It keeps what was counted (``own.sent``), and a message that is lost is not: its personal values
go back (``commit="if-used"``). The gradient at any mean is eta - A m. With a message of everyone it is the plain sum.
Of A_j a message has numbers that are linear in it: the lower triangle, or those of :mod:`.low_rank.sketch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from .local import Message
from .names import OWN_SENT

#: values of a plate that are gone when the round ends: what is sent
CHANGE, BOUND_NOW, SPREAD_NOW = "own.change", "own.bound", "own.spread"
#: a guide has arrived where steps were short while every client has reported so often
OFTEN = 4.0
#: the largest spread that is sent; larger ones are cut to it
MAX_SPREAD = 1e12
#: numbers so many times as large as those that were counted are not counted: they would leave few digits in sums of
#: differences when they are gone again. The bound of such a step is so low that the server takes it back
WILD = 1e8
#: what the server remembers
COUNTED = ("clients", "linear", "curvature", "quiet")


class Bound(Protocol):
    """Clients' bounds at a guide, (S,), their gradients (S, p), and how far they are from quadratics, (S,)."""

    @property
    def bound(self) -> Tensor: ...

    @property
    def gradient(self) -> Tensor: ...

    @property
    def spread(self) -> Tensor: ...


def triangle_size(p: int) -> int:
    """Numbers of the lower triangle of A_j."""
    return p * (p + 1) // 2


def triangles(mean: Tensor, sent: Message) -> tuple[Tensor, Tensor]:
    """Lower triangles of A_j (S, p (p + 1) / 2), and A_j m (S, p).

    Args:
        mean: m, (p,), or each client's, (S, p).
        sent: bounds and their derivatives there.
    """
    row, column = torch.tril_indices(*sent.precision.shape[1:], device=mean.device)
    curvature_at_mean = sent.precision @ mean if mean.dim() == 1 else torch.einsum("spr,sr->sp", sent.precision, mean)
    return sent.precision[:, row, column], curvature_at_mean


def noted(chunk: ClientChunk, bound: Bound, curvature: Tensor, curvature_at_mean: Tensor) -> State:
    """A round's values at its clients: those that count from now on, if the message is used, and those that are sent.

    Args:
        chunk: the clients, with what was counted before.
        bound: their bounds and the gradients of these.
        curvature: the numbers of A_j, (S, c).
        curvature_at_mean: A_j m, at the mean at which they were found, (S, p).
    """
    linear = bound.gradient + curvature_at_mean
    now = torch.cat([linear.new_ones(len(linear), 1), linear, curvature], 1)
    before = chunk.values[OWN_SENT].squeeze(1)
    largest = before.abs().amax(1)
    wild = (before[:, 0] > 0) & (now.abs().amax(1) > WILD * largest)
    now = torch.where(wild[:, None], before, now)
    values = {
        OWN_SENT: now,
        CHANGE: now - before,
        BOUND_NOW: bound.bound,
        SPREAD_NOW: bound.spread.clamp_max(MAX_SPREAD),
    }
    return {name: value.unsqueeze(1) for name, value in values.items()}


def sent(chunk: ClientChunk, p: int, curvature: Mapping[str, int]) -> State:
    """The fields of a message of a round of the climb, (S, ...) each.

    Args:
        chunk: the clients after their step.
        p: how many globals.
        curvature: fields of A_j's numbers, and how many each has.
    """
    joined, linear, *parts = chunk.values[CHANGE].squeeze(1).split([1, p, *curvature.values()], -1)
    return {
        "joined": joined.squeeze(-1), "linear": linear, **dict(zip(curvature, parts, strict=True)),
        "bound": chunk.values[BOUND_NOW].squeeze(1), "spread": chunk.values[SPREAD_NOW].squeeze(1),
    }  # fmt: skip


@dataclass(frozen=True)
class Remembered:
    """The server's sums over all clients as they were last counted.

    Attributes:
        clients: how many were counted so far, ().
        linear: sum of eta_j, (p,).
        curvature: sum of the numbers of A_j, (c,).
        quiet: how many reports have come since a step was long, ().
    """

    clients: Tensor
    linear: Tensor
    curvature: Tensor
    quiet: Tensor

    @classmethod
    def read(cls, memory: State, like: Tensor, size: int) -> Remembered:
        """What :meth:`state` has written; before the first round nothing. ``like`` is the mean (p,), ``size`` is c."""
        none = like.new_zeros(())
        if "counted.clients" not in memory:
            return cls(none, torch.zeros_like(like), like.new_zeros(size), none)
        return cls(*(memory[f"counted.{name}"] for name in COUNTED))

    def state(self) -> State:
        """All of it by name."""
        return {f"counted.{name}": getattr(self, name) for name in COUNTED}

    def after(self, total: State, curvature: Iterable[str]) -> Remembered:
        """Adds the changes of a round, summed over who has reported; ``curvature`` names fields as in :func:`sent`."""
        return replace(
            self,
            clients=self.clients + total["joined"],
            linear=self.linear + total["linear"],
            curvature=self.curvature + torch.cat([total[name] for name in curvature]),
        )

    def waited(self, reported: float, *, converged: bool) -> Remembered:
        """Counts the reports of a round in which the step was short; any other step sets the count to zero."""
        return replace(self, quiet=self.quiet + reported if converged else torch.zeros_like(self.quiet))

    def all_reported(self, clients: int) -> bool:
        """Whether short steps have been taken with what everyone says."""
        return float(self.clients) >= clients and float(self.quiet) >= OFTEN * clients
