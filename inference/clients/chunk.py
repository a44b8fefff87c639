"""Some clients in the middle of a round: the rows of one plate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.chunk_data import ChunkData
from hierfl.data.federation import Federation
from hierfl.devices import send
from hierfl.recorder import Recorder
from hierfl.rng import ClientNoise

from ..noise.privacy import Privacy
from ..objective.joint_model import JointModel
from ..state import MAX_COPIED_NUMBERS, State, client_view


@dataclass(frozen=True)
class ClientChunk:
    """Some clients in the middle of a round: the rows of one plate.

    Attributes:
        method, federation: whose model, whose data.
        clients: which clients of the federation the rows are, largest first.
        round, seed: what noise is keyed by, beside the client.
        shared: as broadcast, {name: (*shape)}.
        values: personal state and the rows' own copies of shared values, {name: (S, 1, *shape)}; a copy hides the
            broadcast value.
        examples: training data of (at least) these clients, gathered once.
        recorder: records steps and issues them again; None where each operation is issued by itself.
        privacy: of a fit with noise; None without.
    """

    method: JointModel
    federation: Federation
    clients: list[int]
    round: int
    seed: int
    shared: State
    values: State
    examples: ChunkData = field(default=None, repr=False)  # type: ignore[assignment]
    recorder: Recorder | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if self.examples is None:
            object.__setattr__(self, "examples", ChunkData(self.federation, self.clients))

    @property
    def ids(self) -> list[str]:
        """The rows' names."""
        return [str(self.federation.ids[j]) for j in self.clients]

    @property
    def view(self) -> State:
        """What the rows see: {name: (*shape) or (S, 1, *shape)}."""
        return client_view(self.shared, self.values)

    def healthy(self) -> Tensor:
        """(S,): whether all of a client's values are finite (a sum, read once, is not finite where a term is not)."""
        finite = torch.ones(len(self.clients), dtype=torch.bool, device=self.federation.device)
        small = list[Tensor]()
        for value in self.values.values():
            if value.numel() > MAX_COPIED_NUMBERS:
                finite = finite & value.flatten(1).sum(1).isfinite()
            else:
                small.append(value.flatten(1).sum(1))
        return finite & torch.stack(small).isfinite().all(0) if small else finite

    def moved(self) -> dict[str, float]:
        """How far the rows' own copies of shared values are from the broadcast ones, in root mean squares."""
        copies = {k: v for k, v in self.values.items() if k in self.shared and v.is_floating_point() and v.numel()}
        return {k: float((v - self.shared[k]).double().square().mean().sqrt()) for k, v in copies.items()}

    @cached_property
    def drawn(self) -> dict[str, Tensor]:
        """What was drawn for the messages of these rows, (S,) each, by name: once for all groups."""
        return {}

    @cached_property
    def sizes(self) -> list[int]:
        """n_j of the rows."""
        sizes = self.federation.sizes()
        return [sizes[j] for j in self.clients]

    @cached_property
    def n(self) -> Tensor:
        """n_j of the rows, (S,): how many examples they have, or the sum of these examples' weights."""
        amounts = self.federation.amounts
        return send([amounts[j] for j in self.clients], self.federation.device, self.federation.dtype)

    @cached_property
    def keys(self) -> Tensor:
        """The rows' of :attr:`~hierfl.data.federation.Federation.keys`, (S,)."""
        return self.federation.keys[torch.tensor(self.clients, dtype=torch.long)]

    def stream(self, phase: object) -> tuple[object, ...]:
        """What identifies randomness in this phase of this round, beside whose it is."""
        return (self.seed, self.round, phase)

    def batch(self) -> Batch:
        """All examples of the rows, padded to the longest."""
        return self.examples.batch(self.clients)

    def noise(self, phase: object, particles: int, counts: Sequence[int] | None = None) -> ClientNoise:
        """Client-keyed noise for the rows."""
        return ClientNoise(
            send(self.keys, self.federation.device),
            self.stream(phase),
            particles,
            counts=counts,
            dtype=self.federation.dtype,
        )

    def take(self, rows: Sequence[int]) -> ClientChunk:
        """Only these rows."""
        index = send(rows, self.federation.device, torch.long)
        return dataclasses.replace(
            self, clients=[self.clients[r] for r in rows], values={k: v[index] for k, v in self.values.items()}
        )

    def part(self, first: int, last: int) -> ClientChunk:
        """Rows first..last-1, as views: what is changed in place there is changed here."""
        return dataclasses.replace(
            self, clients=self.clients[first:last], values={k: v[first:last] for k, v in self.values.items()}
        )

    def put(self, values: Mapping[str, Tensor]) -> ClientChunk:
        """The chunk with the values of some names replaced."""
        return dataclasses.replace(self, values={**self.values, **values})

    def own(self, names: Iterable[str]) -> ClientChunk:
        """The chunk with a copy of these values for every row, which can be trained in place."""
        copies = {}
        for name in names:
            if name in self.values:
                copies[name] = self.values[name].clone()
            else:
                value = self.shared[name]
                copies[name] = value.expand(len(self.clients), 1, *value.shape).clone()
        return self.put(copies)
