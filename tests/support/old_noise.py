"""The noise of before, put in the place of today's: what else a change moved is then seen by golden runs.

Until November 2026 every client, site, phase and round had a generator of torch's own, seeded by a hash. Which numbers
a run draws changed once, when one counter-based generator for all clients took their place; nothing else was to change:

    python tests/support/golden.py write BEFORE           # in a checkout of d68f676
    python tests/support/golden.py write NEW --old-noise
    python tests/support/golden.py compare BEFORE NEW
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, MultivariateNormal, Normal, Poisson

import hierfl.inference.clients.minibatches as minibatches
import hierfl.inference.evaluation.fitted as fitted
import hierfl.inference.run.client_draws as client_draws
import hierfl.inference.server.participation as participation
import hierfl.inference.server.rules.base as rules
from hierfl import rng
from hierfl.nn.likelihoods import Softmax
from hierfl.rng import ClientNoise, generator, uniform

#: normals that were drawn from a generator at a time
BLOCK = 16384
#: distributions that were drawn row by row
OF_ROWS: dict[type, tuple[str, ...]] = {
    Normal: ("loc", "scale"), MultivariateNormal: ("loc", "scale_tril"), Bernoulli: ("logits",), Poisson: ("rate",),
    Softmax: ("logits",),
}  # fmt: skip
#: whose a key is
NAMES: dict[int, object] = {}


def install() -> None:
    """Replaces what draws."""
    key = rng.key

    def noted(*parts: object) -> int:
        found = key(*parts)
        if parts[0] == "client":
            NAMES[found] = parts[1]
        return found

    rng.key = noted
    ClientNoise._client_noise = _client_noise
    ClientNoise._data_noise = _data_noise
    minibatches.permutations = _permutations
    participation.uniforms = _uniforms
    rules.normals = _server_normals
    for module in (fitted, client_draws):
        module.sample_keyed = _sample_keyed


def _parts(noise: ClientNoise, row: int) -> tuple[object, ...]:
    return (*noise.stream[:2], NAMES[int(noise.keys[row])], *noise.stream[2:])


def _generators(noise: ClientNoise, site: str) -> list[torch.Generator]:
    held: dict[Any, Any] = noise._blocks
    if ("generators", site) not in held:
        held["generators", site] = [generator(*_parts(noise, row), site) for row in range(len(noise.keys))]
    return held["generators", site]


def _client_noise(self: ClientNoise, site: str, event_shape: torch.Size) -> Tensor:
    streams = _generators(self, site)
    length = max(1, BLOCK // max(1, self.particles * math.prod(event_shape)))
    number, offset = divmod(self.step, length)
    drawn, block = self._blocks.get(site, (-1, torch.empty(0)))
    if drawn != number:
        for _ in range(drawn + 1, number + 1):
            block = torch.empty((self.active, length, self.particles, *event_shape), dtype=self.dtype)
            for row in range(self.active):
                block[row].normal_(generator=streams[row])
        self._blocks[site] = (number, block)
    return block[: self.active, offset].transpose(0, 1).unsqueeze(2)


def _data_noise(self: ClientNoise, site: str, width: int, event_shape: torch.Size) -> Tensor:
    streams = _generators(self, site)
    counts = self.counts if self.counts is not None else [width] * self.active
    noise = torch.zeros((self.particles, self.active, width, *event_shape), dtype=self.dtype)
    for row in range(self.active):
        present = int(counts[row])
        shape = (self.particles, present, *event_shape)
        noise[:, row, :present] = torch.randn(shape, generator=streams[row], dtype=self.dtype)
    return noise


def _permutations(keys: Tensor, sizes: Sequence[int], passes: Sequence[int], *stream: object) -> Tensor:
    seed, round, phase, _ = stream
    orders = [
        torch.randperm(n, generator=generator(seed, round, NAMES[k], phase, "epoch", epoch))
        for k, n, times in zip(keys.tolist(), sizes, passes, strict=True)
        for epoch in range(times)
    ]
    return torch.cat(orders) if orders else torch.zeros(0, dtype=torch.long)


def _uniforms(keys: Tensor, seed: int, round: int, what: str, attempt: int) -> Tensor:
    return torch.tensor([uniform(seed, round, NAMES[k], what, attempt) for k in keys.tolist()], dtype=torch.float64)


def _server_normals(shape: torch.Size, *parts: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=generator(*parts), dtype=dtype)


def _sample_keyed(fn: Any, noise: ClientNoise, site: str) -> Tensor:
    """Of the populations of new clients all rows were drawn at once, of clients each by itself, piece by piece."""
    shape = torch.Size() if len(fn.batch_shape) > 2 else torch.Size((noise.particles,))
    seed, purpose = noise.stream
    if purpose == "population":
        keys: list[tuple[object, ...]] = [(seed, purpose, site)]
    else:
        place = noise._read[site] = noise._read.get(site, -1) + 1
        last = (place,) if place else ()
        name = (site,) if purpose == "prior" else ()
        keys = [(seed, purpose, NAMES[k], *name, *last) for k in noise.keys.tolist()]
    parts = []
    with torch.random.fork_rng(devices=[]):
        for row, one in enumerate(keys):
            torch.default_generator.manual_seed(rng.key(*one))
            if len(keys) == 1:
                return fn.sample(shape)
            width = fn.batch_shape[-1] if noise.counts is None else int(noise.counts[row])
            parts.append(_row(fn, row, width).sample(shape))
    found = parts[0].new_zeros((len(parts[0]), len(parts), *fn.batch_shape[-1:], *fn.event_shape))
    for row, part in enumerate(parts):
        found[:, row, : part.shape[2]] = part[:, 0]
    return found


def _row(fn: Any, row: int, width: int) -> Any:
    """The distribution of the first examples of one row of a plate, batch shape (..., 1, width)."""
    base, dims = (fn.base_dist, fn.reinterpreted_batch_ndims) if isinstance(fn, Independent) else (fn, 0)
    kind, parts = next(kind for kind in OF_ROWS if isinstance(base, kind)), {}
    for name in OF_ROWS[kind]:
        value, event = getattr(base, name), base.arg_constraints[name].event_dim
        value = value.expand(*base.batch_shape, *value.shape[value.dim() - event :])
        parts[name] = value[(..., slice(row, row + 1), slice(width), *[slice(None)] * (dims + event))]
    made = kind(**parts, validate_args=False)  # type: ignore[call-arg]
    return Independent(made, dims, validate_args=False) if dims else made
