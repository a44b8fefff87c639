"""The clients' own values, as dense rows on the device or in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..options import Home
from ..state import State
from .chunk import ClientChunk


class ClientStore:
    """Personal values and clients' own copies of shared ones, {name: (J, *shape)}.

    What a round has made of personal values may have to wait until it is known whether it counts
    (:attr:`~hierfl.inference.method.schedule.Schedule.commit`): then the store holds them as they were before, too.

    Args:
        clients: J.
        initial: what every client begins with, {name: (*shape)}.
        shared: values of which every client has its own copy, likewise.
        tentative: whether a round's personal values wait until :meth:`settle`.
        home: where they lie between rounds, "device" or "host": there, pinned where a GPU streams them, they are read
            and written a plate's rows at a time, and the device holds no others.
    """

    def __init__(self, clients: int, initial: State, shared: State, tentative: bool, home: Home = "device") -> None:
        self.clients, self.tentative, self.home = clients, tentative, home
        self._pinned = home == "host" and any(v.is_cuda for v in {**initial, **shared}.values())
        self.personal = {k: self._of_all(v) for k, v in initial.items()}
        self.copies = {k: self._of_all(v) for k, v in shared.items()}
        self._before: State | None = None
        self._new: tuple[State, State] = {}, {}

    def _of_all(self, value: Tensor) -> Tensor:
        """One client's value, for all of them."""
        value = value.cpu() if self.home == "host" else value
        return self._copy(value.expand(self.clients, *value.shape))

    def _copy(self, value: Tensor) -> Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=value.device, pin_memory=self._pinned).copy_(value)

    def settle(self, used: Tensor | None) -> None:
        """Says whose messages of the last round were used: the others' personal values go back.

        Args:
            used: (J,); None where nothing is left to say.
        """
        if self._before is None or used is None:
            return
        self.personal = {k: _where(used.to(v.device), v, self._before[k]) for k, v in self.personal.items()}
        self._before = None

    def open(self, everyone: bool) -> None:
        """Begins a round.

        Args:
            everyone: whether every client's values will be written.
        """

        def fresh(value: Tensor) -> Tensor:
            return torch.empty_like(value, pin_memory=self._pinned) if everyone else self._copy(value)

        self._new = {k: fresh(v) for k, v in self.personal.items()}, {k: fresh(v) for k, v in self.copies.items()}

    def rows(self, index: Tensor, copies: bool = False) -> State:
        """Some clients' personal values as a round begins, on the index's device, {name: (S, 1, *shape)}.

        Args:
            index: their places.
            copies: whether their own copies of shared values are wanted, too.
        """
        held = {**self.copies, **self.personal} if copies else self.personal
        return {k: rows_of(v, index).unsqueeze(1) for k, v in held.items()}

    def put(self, index: Tensor, chunk: ClientChunk, healthy: Tensor) -> None:
        """Takes over what a round has made of some clients' values; who is not healthy (S,) keeps the old ones."""
        if self.home == "host":
            index, healthy = index.cpu(), healthy.cpu()
        for new, old in zip(self._new, (self.personal, self.copies), strict=True):
            for name in new:
                _put(new[name], index, chunk.values.get(name), old[name], healthy)

    def close(self) -> None:
        """Ends a round."""
        if self.tentative:
            self._before = self.personal
        self.personal, self.copies = self._new
        self._new = {}, {}

    def state(self) -> State:
        """For a checkpoint."""
        return {
            **{f"personal/{k}": v for k, v in self.personal.items()},
            **{f"copies/{k}": v for k, v in self.copies.items()},
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what :meth:`state` gave."""
        self.personal = {k: self._copy(state[f"personal/{k}"]) for k in self.personal}
        self.copies = {k: self._copy(state[f"copies/{k}"]) for k in self.copies}
        self._before = None


def rows_of(value: Tensor, index: Tensor) -> Tensor:
    """Rows (S, *shape) of (J, *shape), wherever that lies, on the index's device."""
    if not value.is_pinned():
        return value[index.to(value.device)].to(index.device)
    rows = torch.empty((len(index), *value.shape[1:]), dtype=value.dtype, pin_memory=True)
    torch.index_select(value, 0, index.cpu(), out=rows)
    return rows.to(index.device, non_blocking=True)


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (new.dim() - 1)), new, old)


def _put(all_new: Tensor, index: Tensor, values: Tensor | None, old: Tensor, healthy: Tensor) -> None:
    """Writes (S, 1, *shape) to their clients' places; what is not there, or not healthy, stays as it was."""
    values = None if values is None else values.to(all_new.device)
    if values is None:
        all_new[index] = old[index]
    elif healthy.device.type == "cpu" and bool(healthy.all()):  # (asking a GPU would stall it)
        all_new.index_copy_(0, index, values.squeeze(1))
    else:
        all_new[index] = _where(healthy, values.squeeze(1), old[index])
