"""Randomness that belongs to a client: keyed by (seed, round, client, ...), never by who else is in the plate.

What client j draws must not depend on the chunk it is computed in, on the order of the clients or on the engine
(plate independence). So nothing here touches torch's global generator: a key is hashed into the seed of a generator
of its own, and long local phases draw from it in blocks whose size depends on the site alone.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: normals drawn from one client's generator at a time; part of the definition of the stream, so not an option. On a
#: CPU what a small client does not use is drawn for nothing; elsewhere every draw is a launch.
NORMALS_PER_BLOCK = {"cpu": 16384}
NORMALS_PER_BLOCK_ELSEWHERE = 65536


def key(*parts: object) -> int:
    """A 63-bit integer from any sequence of strings and integers.

    Torch's generator on the CPU reads 32 bits of a seed: of a million streams some hundred pairs coincide.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for this key, on ``device``."""
    return torch.Generator(device=device).manual_seed(key(*parts))


def uniform(*parts: object) -> float:
    """One number in [0, 1), a function of the key alone."""
    return key(*parts) / 2.0**63


def permutation(n: int, *parts: object) -> Tensor:
    """A random order of 0..n-1, a function of the key alone; int64, on the CPU."""
    return torch.randperm(n, generator=generator(*parts))


class ClientNoise:
    """Standard normals for the guide's sites, one stream for each (client, site).

    Args:
        keys: for each row of the plate what identifies it, for example ``(seed, round, phase, client_id)``.
        particles: K, the number of draws at every site.
        counts: examples of each row now, for sites inside the data plate; None where rows are full.
    """

    def __init__(
        self,
        keys: Sequence[tuple[object, ...]],
        particles: int,
        *,
        counts: Sequence[int] | Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.keys, self.particles, self.counts = list(keys), particles, counts
        self.device, self.dtype = torch.device(device), dtype
        self.step, self.active = 0, len(self.keys)
        self.steps: int | None = None
        self._generators: dict[str, list[torch.Generator]] = {}
        self._blocks: dict[str, tuple[int, Tensor]] = {}

    def at(self, step: int, active: int | None = None) -> ClientNoise:
        """Moves to optimisation step ``step``, at which the first ``active`` rows take part."""
        self.step = step
        self.active = self.active if active is None else active
        return self

    def reading(self, steps: int) -> ClientNoise:
        """The same streams from their beginning, of which so many steps are read: the rest is not drawn."""
        found = copy.copy(self)
        found.steps, found.step, found._generators, found._blocks = steps, 0, {}, {}
        return found

    def narrow(self) -> ClientNoise:
        """The same streams, for rows of one example each."""
        found = copy.copy(self)
        found.counts = None
        return found

    def normal(self, site: str, width: int | None, event_shape: torch.Size) -> Tensor:
        """Noise for one site: (K, S, 1, *event), or (K, S, width, *event) inside the data plate."""
        if site not in self._generators:
            self._generators[site] = [generator(*k, site, device=self.device) for k in self.keys]
        if width is None:
            return self._client_noise(site, event_shape)
        return self._data_noise(site, width, event_shape)

    def _client_noise(self, site: str, event_shape: torch.Size) -> Tensor:
        per_step = max(1, self.particles * math.prod(event_shape))
        length = max(
            1, NORMALS_PER_BLOCK.get(self.device.type, NORMALS_PER_BLOCK_ELSEWHERE) // per_step
        )  # steps in a block: a function of the site, not of the plate
        number, offset = divmod(self.step, length)
        drawn, block = self._blocks.get(site, (-1, torch.empty(0)))
        if number < drawn:
            raise ValueError(f"the noise of {site!r} is read forwards: step {self.step} is past")
        if drawn != number:
            # a new tensor each time: what was handed out are views
            shape = (self.active, length, self.particles, *event_shape)
            block = torch.empty(shape, device=self.device, dtype=self.dtype)
            for n in range(drawn + 1, number + 1):  # a stream is read in order, whatever is used of it
                numbers = self._wanted(n, length, per_step)
                for row in range(self.active):
                    block[row].view(-1)[:numbers].normal_(generator=self._generators[site][row])
            self._blocks[site] = (number, block)
        return block[: self.active, offset].transpose(0, 1).unsqueeze(2)

    def _wanted(self, block: int, length: int, per_step: int) -> int:
        """How many numbers of a block are drawn: all, or those of the steps that are read.

        On a CPU torch makes normals in sixteens, one after the other: a part of a block is what the whole would begin
        with (but for its last sixteen, where its length is no multiple).
        """
        whole = length * per_step
        if self.steps is None or self.device.type != "cpu":
            return whole
        if self.step >= self.steps:
            raise ValueError(f"step {self.step} of {self.steps} that are read")
        read = -(-min(length, self.steps - block * length) * per_step // 16) * 16
        return whole if read + 16 > whole else read

    def _data_noise(self, site: str, width: int, event_shape: torch.Size) -> Tensor:
        counts = self.counts if self.counts is not None else [width] * self.active
        noise = torch.zeros((self.particles, self.active, width, *event_shape), device=self.device, dtype=self.dtype)
        for row in range(self.active):
            present = int(counts[row])
            shape = (self.particles, present, *event_shape)
            noise[:, row, :present] = torch.randn(
                shape, generator=self._generators[site][row], device=self.device, dtype=self.dtype
            )
        return noise
