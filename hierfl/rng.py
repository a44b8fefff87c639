"""Randomness that belongs to a client: keyed by (seed, round, client, ...), never by who else is in the plate.

What client j draws must not depend on the chunk it is computed in, on the order of the clients, on the engine or on the
device (plate independence). So nothing here has a state: a number is a function (:mod:`hierfl.philox`) of the client's
key, of the stream (seed, round, phase, site) and of its position there, and a plate's numbers are made together.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from . import philox
from .devices import send

#: normals that are made ahead, for all rows of a plate and as many steps as fit; what they are does not depend on it
MADE_AHEAD = {"cpu": 2**19}
MADE_AHEAD_ELSEWHERE = 2**26


def key(*parts: object) -> int:
    """A 63-bit integer from any sequence of strings and integers."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def client_keys(names: Iterable[object], device: torch.device | str = "cpu") -> Tensor:
    """A key for each client, (S,); int64."""
    return send([key("client", name) for name in names], device, torch.long)


def generator(*parts: object) -> torch.Generator:
    """A generator of torch's for this key, on the CPU: where something asks for one, as initial weights do.

    It reads 32 bits of a seed: of a million of them some hundred pairs coincide.
    """
    return torch.Generator().manual_seed(key(*parts))


def uniform(*parts: object) -> float:
    """One number in [0, 1), a function of the key alone."""
    return key(*parts) / 2.0**63


def uniforms(keys: Tensor, *stream: object) -> Tensor:
    """One number in (0, 1) for each client, (S,); float64."""
    return philox.unit(philox.rows_of_words(keys, key(*stream), 0, 1)[0][:, 0], torch.float64)


def normals(shape: torch.Size, *parts: object, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Standard normals of no client, a function of the key alone."""
    keys = client_keys([None], device)
    return philox.normals(keys, key(*parts), 0, shape.numel(), dtype).reshape(shape)


def permutations(keys: Tensor, sizes: Sequence[int], passes: Sequence[int], *stream: object) -> Tensor:
    """Random orders of each client's places, one for each pass: a place's rank is that of its word.

    Args:
        keys: (S,), on the CPU.
        sizes: n of each client.
        passes: how many orders each client needs; the first ones are the same however many there are.
        stream: which.

    Returns:
        Orders of 0..n-1 one after the other, client by client; int64.
    """
    n, times = torch.tensor(sizes), torch.tensor(passes)
    wanted = n * times
    groups = -(-wanted // 4)
    group = _ranges(groups)
    owner = torch.repeat_interleave(keys, groups)
    upper = philox.upper_half(key(*stream), keys.device)
    four = philox.words((*philox.halves(group), *upper), philox.halves(owner))
    # A client's last counter may have more words than it needs.
    word = torch.stack(four, 1).flatten()[_ranges(groups * 4) < torch.repeat_interleave(wanted, groups * 4)]
    position = _ranges(torch.repeat_interleave(n, times))
    segment = torch.repeat_interleave(torch.arange(int(times.sum())), torch.repeat_interleave(n, times))
    # sorted as one number each, the order first, the place last: places whose words coincide keep their order
    for_place = int(position.max()).bit_length() if len(position) else 0
    number, most = ((word << for_place) | position).numpy(), 1 << (31 - for_place)
    cuts = [int(c) for c in torch.searchsorted(segment, torch.arange(0, int(times.sum()), most))] + [len(number)]
    for first, last in itertools.pairwise(cuts):
        within = (segment[first:last] - segment[first]).numpy() << (32 + for_place)
        number[first:last] = np.sort(number[first:last] | within)
    return torch.from_numpy(number) & ((1 << for_place) - 1)


def permutation(n: int, client: object, *stream: object, number: int = 0) -> Tensor:
    """One client's order of 0..n-1: of :func:`permutations`, the one with this number."""
    return permutations(client_keys([client]), [n], [number + 1], *stream)[n * number :]


def _ranges(lengths: Tensor) -> Tensor:
    """0..n-1 for each n, one after the other."""
    ends = lengths.cumsum(0)
    return torch.arange(int(ends[-1]) if len(ends) else 0) - torch.repeat_interleave(ends - lengths, lengths)


class ClientNoise:
    """Standard normals for the guide's sites, one stream for each (client, site).

    Args:
        keys: for each row of the plate whose it is, (S,); see :func:`client_keys`.
        stream: what identifies the occasion, for example ``(seed, round, phase)``.
        particles: K, the number of draws at every site.
        counts: examples of each row now, for sites inside the data plate; None where rows are full.
        dtype: of the numbers.
    """

    def __init__(
        self,
        keys: Tensor,
        stream: tuple[object, ...],
        particles: int,
        *,
        counts: Sequence[int] | Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.keys, self.stream, self.particles, self.counts, self.dtype = keys, stream, particles, counts, dtype
        self.step, self.active, self.steps = 0, len(keys), 1
        self._blocks: dict[str, tuple[int, Tensor]] = {}
        self._read: dict[str, int] = {}

    def at(self, step: int, active: int | None = None) -> ClientNoise:
        """Moves to optimisation step ``step``, at which the first ``active`` rows take part."""
        self.step = step
        self.active = self.active if active is None else active
        self._read = {}
        return self

    def reading(self, steps: int) -> ClientNoise:
        """The same streams from their beginning, made ahead for so many steps."""
        again = copy.copy(self)
        again.steps, again.step, again._blocks, again._read = steps, 0, {}, {}
        return again

    def narrow(self) -> ClientNoise:
        """The same streams, for rows of one example each."""
        narrow = copy.copy(self)
        narrow.counts = None
        return narrow

    def normal(self, site: str, width: int | None, event_shape: torch.Size) -> Tensor:
        """Noise for one site: (K, S, 1, *event), or (K, S, width, *event) inside the data plate.

        Inside the data plate those of the next examples, where the site was asked before at this step.
        """
        if width is None:
            return self._client_noise(site, event_shape)
        return self._data_noise(site, width, event_shape)

    def uniform(self, site: str, width: int, event_shape: torch.Size) -> Tensor:
        """Uniform numbers in (0, 1), as :meth:`normal` inside the data plate."""
        return torch.special.ndtr(self.normal(site, width, event_shape))

    def _client_noise(self, site: str, event_shape: torch.Size) -> Tensor:
        first, block = self._blocks.get(site, (0, None))
        if block is None or not first <= self.step < first + block.shape[1] or len(block) < self.active:
            first, block = self.step, self._block(site, event_shape)
            self._blocks[site] = first, block
        return block[: self.active, self.step - first].transpose(0, 1).unsqueeze(2)

    def _block(self, site: str, event_shape: torch.Size) -> Tensor:
        """Noise from this step on, (active, steps, K, *event)."""
        numbers_of_step = max(1, self.particles * math.prod(event_shape))
        most = MADE_AHEAD.get(self.keys.device.type, MADE_AHEAD_ELSEWHERE)
        ahead = max(1, min(self.steps - self.step, most // (numbers_of_step * self.active)))
        made = philox.normals(
            self.keys[: self.active],
            key(*self.stream, site),
            self.step * numbers_of_step,
            ahead * numbers_of_step,
            self.dtype,
        )
        return made.reshape(self.active, ahead, self.particles, *event_shape)

    def _data_noise(self, site: str, width: int, event_shape: torch.Size) -> Tensor:
        numbers_of_example, past = self.particles * math.prod(event_shape), self._read.get(site, 0)
        self._read[site] = past + width
        stream = key(*self.stream, site, "examples", self.step)
        made = philox.normals(
            self.keys[: self.active], stream, past * numbers_of_example, width * numbers_of_example, self.dtype
        )
        noise = made.reshape(self.active, width, self.particles, *event_shape).movedim(2, 0)
        if self.counts is None:
            return noise
        counts = send(self.counts[: self.active], self.keys.device)
        present = torch.arange(width, device=self.keys.device) < counts[:, None]
        return noise * present[(..., *[None] * len(event_shape))]
