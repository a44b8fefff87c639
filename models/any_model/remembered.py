"""Sums in which a client that is absent counts as it was last counted.

A client's bound f_j of the globals is the quadratic around the mean m of the round in which it was counted,

    f_j(x)  ~  eta_j^T x - x^T A_j x / 2,        eta_j = b_j + A_j m

The client sends by how much eta_j and A_j have changed since then, so that the server's sums are those of all clients
that were ever counted. It keeps what was counted (``own.sent``), and a message that is lost is not: its personal values
go back (``commit="if-used"``). The gradient at any mean is eta - A m. With a message of everyone it is the plain sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from .guide import LONGEST, Climb, target_sd
from .local import Message, kept_definite
from .names import OWN_SENT

#: values of a plate that are gone when the round ends: what is sent
CHANGE, BOUND_NOW, SPREAD_NOW = "own.change", "own.bound", "own.spread"
#: how much of a step is taken where nobody knows whether the bound rises
DAMPED = 0.5
#: a guide has arrived where steps were short while every client has reported so often
OFTEN = 4.0
#: the largest spread that is sent: what is larger says no more
MOST = 1e12
#: numbers so many times as large as those that were counted are not counted: they would leave few digits in sums of
#: differences when they are gone again. The bound of such a step is so low that the server takes it back
WILD = 1e8


def packed_size(p: int) -> int:
    """Numbers of what is remembered of a client: whether it was counted, eta_j, the lower triangle of A_j."""
    return 1 + p + p * (p + 1) // 2


def noted(chunk: ClientChunk, mean: Tensor, found: Message) -> State:
    """What a round leaves with its clients: what counts from now on, if the message is used; and what is sent.

    Args:
        chunk: the clients, with what was counted before.
        mean: of the globals, (p,), or of each client's, (S, p).
        found: bounds and their derivatives at that mean.
    """
    row, column = torch.tril_indices(*found.precision.shape[1:], device=mean.device)
    along = found.precision @ mean if mean.dim() == 1 else torch.einsum("spr,sr->sp", found.precision, mean)
    linear = found.gradient + along
    now = torch.cat([linear.new_ones(len(linear), 1), linear, found.precision[:, row, column]], 1)
    before = chunk.values[OWN_SENT].squeeze(1)
    largest = before.abs().amax(1)
    wild = (before[:, 0] > 0) & (now.abs().amax(1) > WILD * largest)
    now = torch.where(wild[:, None], before, now)
    values = {OWN_SENT: now, CHANGE: now - before, BOUND_NOW: found.bound, SPREAD_NOW: found.spread.clamp_max(MOST)}
    return {name: value.unsqueeze(1) for name, value in values.items()}


def sent(chunk: ClientChunk, p: int) -> State:
    """The fields of a message of a round of the climb, (S, ...) each."""
    joined, linear, precision = chunk.values[CHANGE].squeeze(1).split([1, p, p * (p + 1) // 2], -1)
    return {
        "joined": joined.squeeze(-1), "linear": linear, "precision": precision,
        "bound": chunk.values[BOUND_NOW].squeeze(1), "spread": chunk.values[SPREAD_NOW].squeeze(1),
    }  # fmt: skip


@dataclass(frozen=True)
class Remembered:
    """The server's sums over all clients as they were last counted.

    Attributes:
        clients: how many were counted so far, ().
        linear: sum of eta_j, (p,).
        triangle: sum of the lower triangles of A_j, (p (p + 1) / 2,).
        quiet: how many reports have come since a step was long, ().
    """

    clients: Tensor
    linear: Tensor
    triangle: Tensor
    quiet: Tensor

    @classmethod
    def read(cls, memory: State, like: Tensor) -> Remembered:
        """What :meth:`state` has written; before the first round nothing. ``like`` is the mean (p,)."""
        p, none = len(like), like.new_zeros(())
        if "counted.clients" not in memory:
            return cls(none, torch.zeros_like(like), like.new_zeros(p * (p + 1) // 2), none)
        return cls(*(memory[f"counted.{name}"] for name in ("clients", "linear", "triangle", "quiet")))

    def state(self) -> State:
        """All of it by name."""
        return {f"counted.{name}": getattr(self, name) for name in ("clients", "linear", "triangle", "quiet")}

    def after(self, total: State) -> Remembered:
        """With the changes of a round, summed over who has reported."""
        return replace(
            self,
            clients=self.clients + total["joined"],
            linear=self.linear + total["linear"],
            triangle=self.triangle + total["precision"],
        )

    def waited(self, reported: float, *, short: bool) -> Remembered:
        """After a step in a round of so many reports."""
        return replace(self, quiet=self.quiet + reported if short else torch.zeros_like(self.quiet))

    def settled(self, clients: int) -> bool:
        """Whether short steps have been taken with what everyone says."""
        return float(self.clients) >= clients and float(self.quiet) >= OFTEN * clients


def damped(climb: Climb, gradient: Tensor, precision: Tensor) -> Climb:
    """A round in which someone is missing: no bound is known, and half of the step is taken from where the guide is.

    Args:
        climb: so far.
        gradient, precision: b and A of :mod:`.guide` at its guide.
    """
    mean, old = climb.guide()
    target = kept_definite(old, precision)
    step = torch.linalg.solve(target, gradient)
    length = float((step / target_sd(target)).abs().max()) if len(step) else 0.0
    step = step * min(1.0, LONGEST / max(length, LONGEST))
    return replace(Climb.begin(mean, old, float(climb.within)), step=step, target=target, share=mean.new_tensor(DAMPED))
