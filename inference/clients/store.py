"""The clients' own values, as dense rows on the device or in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from hierfl.devices import Receiving, Sending, send

from ..options import Home
from ..state import State
from .chunk import ClientChunk

#: among the values of a plate: which of its clients are healthy
_HEALTHY = " healthy"


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
        #: a plate's clients, whose values are on their way to the host: the last one's, while the next one computes
        self._arriving: tuple[Tensor, Receiving] | None = None

    def _of_all(self, value: Tensor) -> Tensor:
        """One client's value, for all of them."""
        value = value.cpu() if self.home == "host" else value
        return self._copy(value.expand(self.clients, *value.shape))

    def _copy(self, value: Tensor) -> Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=value.device, pin_memory=self._pinned).copy_(value)

    def settle(self, used: Tensor | None, replies: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Says whose messages of the last round were used: the others' personal values go back.

        Args:
            used: (J,); None where nothing is left to say.
            replies: personal values as the server has made them, {name: (J, *shape)}; of the used alone.
        """
        if used is None:
            return
        if self._before is not None:
            self.personal = {k: _where(used.to(v.device), v, self._before[k]) for k, v in self.personal.items()}
            self._before = None
        for name, value in replies.items():
            stored = self.personal[name]
            stored.copy_(_where(used.to(stored.device), value.to(stored), stored))

    def open(self, everyone: bool) -> None:
        """Begins a round.

        Args:
            everyone: whether every client's values will be written.
        """

        def fresh(value: Tensor) -> Tensor:
            return torch.empty_like(value, pin_memory=self._pinned) if everyone else self._copy(value)

        self._new = {k: fresh(v) for k, v in self.personal.items()}, {k: fresh(v) for k, v in self.copies.items()}
        self._arriving = None

    def rows(self, clients: Sequence[int], device: torch.device, copies: bool = False) -> Sending:
        """Some clients' personal values as a round begins, {name: (S, 1, *shape)}, on their way to a device.

        Args:
            clients: their positions.
            device: where they are wanted.
            copies: whether their own copies of shared values are wanted, too.
        """
        stored = {**self.copies, **self.personal} if copies else self.personal
        index = send(clients, "cpu" if self.home == "host" else device)
        return Sending({k: self._rows(v, index).unsqueeze(1) for k, v in stored.items()}, device)

    def _rows(self, value: Tensor, index: Tensor) -> Tensor:
        """(S, *shape) of (J, *shape)."""
        rows = torch.empty(
            (len(index), *value.shape[1:]), dtype=value.dtype, device=value.device, pin_memory=self._pinned
        )
        return torch.index_select(value, 0, index, out=rows)

    def put(self, clients: Sequence[int], chunk: ClientChunk, healthy: Tensor) -> None:
        """Takes over what a round has made of some clients' values; who is not healthy (S,) keeps the old ones.

        The host does not wait for them: it writes the values of the plate before, which have arrived.
        """
        made = {name: chunk.values[name].squeeze(1) for new in self._new for name in new if name in chunk.values}
        if self.home == "device":
            self._write(send(clients, healthy.device), made, healthy)
            return
        coming = Receiving({**made, _HEALTHY: healthy})
        self._write_arriving()
        self._arriving = torch.as_tensor(clients), coming

    def _write_arriving(self) -> None:
        if self._arriving is not None:
            index, coming = self._arriving
            values = coming.wait()
            self._write(index, values, values.pop(_HEALTHY))
            self._arriving = None

    def _write(self, index: Tensor, values: State, healthy: Tensor) -> None:
        for new, old in zip(self._new, (self.personal, self.copies), strict=True):
            for name in new:
                _put(new[name], index, values.get(name), old[name], healthy)

    def close(self) -> None:
        """Ends a round."""
        self._write_arriving()
        if self.tentative:
            self._before = self.personal
        self.personal, self.copies = self._new
        self._new = {}, {}

    def state(self) -> State:
        """The values for a checkpoint."""
        return {
            **{f"personal/{k}": v for k, v in self.personal.items()},
            **{f"copies/{k}": v for k, v in self.copies.items()},
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what :meth:`state` gave."""
        self.personal = {k: self._copy(state[f"personal/{k}"]) for k in self.personal}
        self.copies = {k: self._copy(state[f"copies/{k}"]) for k in self.copies}
        self._before = None


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (new.dim() - 1)), new, old)


def _put(all_new: Tensor, index: Tensor, values: Tensor | None, old: Tensor, healthy: Tensor) -> None:
    """Writes (S, *shape) to their clients' places; what is not there, or not healthy, stays as it was."""
    if values is None:
        all_new[index] = old[index]
    elif healthy.device.type == "cpu" and bool(healthy.all()):  # asking a GPU would stall it
        all_new.index_copy_(0, index, values)
    else:
        all_new[index] = _where(healthy, values, old[index])
