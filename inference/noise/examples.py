"""Examples as rows of the plate: gradients of single examples, clipped and added up by client.

A client's row is replicated for each of its examples. The gradient of the sum then splits by example, for any model and
guide: the guide's draws are the client's, the same for all of its examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.devices import send
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.rng import ClientNoise

from ..clients.chunk import ClientChunk
from ..objective.elbo import elbo
from ..state import State

#: numbers of the rows that are computed together: on a CPU fewer, most of which its caches hold
NUMBERS_AT_ONCE = {"cpu": 4_000_000}
NUMBERS_AT_ONCE_ELSEWHERE = 20_000_000
#: clipped norms are shorter by this share, so that no rounding makes them longer than the bound
SLACK = 1e-6
#: odd numbers that mix the bits of values
MIX = (0x3F58476D1CE4E5B9, 0x14D049BB133111EB, 0x1E3779B97F4A7C15)


class ExampleRows(Mapping[str, Tensor]):
    """Values as rows of examples, made when they are asked for.

    Args:
        values: {name: (*shape) or (S, 1, *shape)}.
        rows: names of those of the second kind.
        owner: the client's row of each example, (R,).
        leaves: instead of values, {name: (R, 1, *shape)}.
    """

    def __init__(self, values: Mapping[str, Tensor], rows: frozenset[str], owner: Tensor, leaves: State) -> None:
        self.values_of, self.rows, self.owner, self.leaves = values, rows, owner, leaves

    def __getitem__(self, name: str) -> Tensor:
        """One of them."""
        if name in self.leaves:
            return self.leaves[name]
        value = self.values_of[name]
        return value.detach().index_select(0, self.owner) if name in self.rows else value

    def __iter__(self) -> Iterator[str]:
        """Iterates over their names."""
        return iter(self.values_of)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.values_of)


class ExampleNoise(ClientNoise):
    """Noise for rows of one example: a client's draws for all of its examples, and each example's own inside the data.

    An example's own, such as dropout's, follow from its values and nothing else. So whether another example is there
    changes none of them, and each example moves a sum by its own gradient alone.

    Args:
        source: of the clients, at its step.
        owner: the client's row of each example, (R,).
        batch: the examples, (R, 1).
    """

    def __init__(self, source: ClientNoise, owner: Tensor, batch: Batch) -> None:
        super().__init__(source.keys.index_select(0, owner), source.stream, source.particles, dtype=source.dtype)
        self.source, self.owner, self.batch, self.step = source, owner, batch, source.step
        self._own = False

    def normal(self, site: str, width: int | None, event_shape: torch.Size) -> Tensor:
        """See :class:`~hierfl.rng.ClientNoise`."""
        if width is None:
            return self.source.normal(site, None, event_shape).index_select(1, self.owner)
        if not self._own:
            self.keys, self._own = self.keys ^ content_keys(self.batch.x, self.batch.y), True
        return super().normal(site, width, event_shape)


def content_keys(x: Tensor, y: Tensor) -> Tensor:
    """A number of each example's values, whichever examples are beside it, (R,); int64.

    Args:
        x, y: (R, ...) each.
    """
    values = torch.cat([part.reshape(len(part), -1).double() for part in (x, y)], 1)
    bits = (values + 0.0).view(torch.int64)
    for shift, factor in zip((30, 27), MIX, strict=False):
        bits = (bits ^ (bits >> shift)) * factor
    places = torch.arange(1, bits.shape[1] + 1, device=bits.device) * MIX[2]
    return ((bits ^ (bits >> 31)) * (places | 1)).sum(1)


def clipped_sums(
    chunk: ClientChunk,
    chosen: Tensor,
    at: State,
    values: Mapping[str, Tensor],
    noise: ClientNoise,
    frozen: FrozenFeatures,
    rows: int,
    clip: float,
    observe: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Each client's sum of its chosen examples' gradients of the ELBO's data terms, each at most ``clip`` long.

    Args:
        chunk: the clients.
        chosen: which examples, (S, n); on the CPU.
        at: the values by which it is differentiated, {name: (S, 1, *shape)}.
        values: everything that the clients see.
        noise: of the clients, at its step.
        frozen: outputs of networks that do not move.
        rows: public number of rows of a client, which n_j is for the model.
        clip: bound on the norm over all values of ``at``; infinite for none.
        observe: is shown the norms before they are clipped, (R,).

    Returns:
        (S, entries) in float64, the values of ``at`` one after the other. A gradient that is not finite counts as 0.
    """
    entries = sum(v[0].numel() for v in at.values())
    device = chunk.federation.device
    total = torch.zeros((len(chunk.clients), entries), dtype=torch.float64, device=device)
    owners, places = (send(part, device) for part in chosen.nonzero(as_tuple=True))
    own = frozenset(k for k in values if k in chunk.values or k in at)
    numbers_of_example = (
        sum(values[k][0].numel() for k in own) * (1 + noise.particles) + chunk.federation.event_shape.numel()
    )
    most = max(1, NUMBERS_AT_ONCE.get(device.type, NUMBERS_AT_ONCE_ELSEWHERE) // numbers_of_example)
    for first in range(0, len(owners), most):
        owner, position = owners[first : first + most], places[first : first + most]
        gradients = _gradients(chunk, owner, position, at, ExampleRows(values, own, owner, {}), noise, frozen, rows)
        norm = gradients.square().sum(1, dtype=torch.float64).sqrt()
        if observe is not None:
            observe(norm)
        factor = (clip * (1 - SLACK) / norm.clamp_min(1e-300)).clamp_max(1)
        clipped, finite = gradients.double().mul_(factor[:, None]), norm.isfinite()
        if not bool(finite.all()):
            clipped.masked_fill_(~finite[:, None], 0.0)
        total.index_add_(0, owner, clipped)
    return total


def _gradients(
    chunk: ClientChunk, owner: Tensor, position: Tensor, at: State, values: ExampleRows, noise: ClientNoise,
    frozen: FrozenFeatures, rows: int,
) -> Tensor:  # fmt: skip
    """The gradients of each example, (R, entries)."""
    where = chunk.examples.first(chunk.clients)[owner] + position[:, None]
    x, y = chunk.examples.at(where)
    frozen.show(x, where)
    batch = Batch(x, y, None, x.new_full((len(owner),), rows, dtype=chunk.federation.dtype))
    leaves = {k: v.detach().index_select(0, owner).requires_grad_() for k, v in at.items()}
    values.leaves.update(leaves)
    own = ExampleNoise(noise, owner, batch)
    objective = elbo(chunk.method, batch, values, own, frozen=frozen, moving=True, terms="data")
    if not objective.requires_grad:
        return torch.cat([torch.zeros_like(v).flatten(1) for v in leaves.values()], 1)
    slopes = torch.autograd.grad(objective.sum(), list(leaves.values()), allow_unused=True)
    slopes_or_zeros = [torch.zeros_like(v) if g is None else g for v, g in zip(leaves.values(), slopes, strict=True)]
    return torch.cat([g.flatten(1) for g in slopes_or_zeros], 1)
