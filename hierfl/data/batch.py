"""Some clients' examples as one padded tensor: what a model is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..rng import ClientNoise


@dataclass(frozen=True)
class Batch:
    """Some rows of the client plate with (some of) their examples, padded on the right.

    Attributes:
        x: inputs, (S, n, *event).
        y: targets, (S, n); int64 labels or floats.
        mask: (S, n), False where a row is padded; None where no row is.
        n: (S,), how many training examples each of these clients has in all, or the sum of their weights.
        scale: the likelihood's weight: (S, 1), n_j / b_j in a minibatch; (S, n), times each row's weight where rows
            have weights; None where the whole set is here and no row has one.
        counts: how many examples each row has here, on the host; None where that is not known without the device.
        given: what is known of these clients beside it, where a method conditions on that; None for nothing.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None
    n: Tensor
    scale: Tensor | None = None
    counts: Sequence[int] | Tensor | None = None
    given: Given | None = None

    @property
    def num_clients(self) -> int:
        """S, the number of clients here."""
        return self.x.shape[0]

    @property
    def width(self) -> int:
        """n, the length to which the rows are padded."""
        return self.x.shape[1]

    def present(self) -> Sequence[int] | Tensor:
        """How many examples each row has here, on the host: read from the mask where it is not known."""
        if self.counts is not None:
            return self.counts
        return [self.width] * self.num_clients if self.mask is None else self.mask.sum(1).tolist()

    def narrow(self) -> Batch:
        """The same rows with one example each, for what does not depend on them (Pyro has no empty plates)."""
        mask = None if self.mask is None else self.mask[:, :1]
        scale = None if self.scale is None else self.scale[:, :1]
        return Batch(self.x[:, :1], self.y[:, :1], mask, self.n, scale)

    @property
    def row_numbers(self) -> Tensor:
        """0..S-1 (handed to the plate, which would otherwise make it again at each step)."""
        return numbers_up_to(self.num_clients, self.x.device)

    @property
    def column_numbers(self) -> Tensor:
        """0..n-1."""
        return numbers_up_to(self.width, self.x.device)


def masked_zeros(y: Tensor, event: torch.Size, dtype: torch.dtype, *, ids: bool = False) -> Batch:
    """A batch of inputs that are zero, whole numbers of ids, with targets (S, n), all of them masked."""
    x = torch.zeros((*y.shape, *event), dtype=torch.int64 if ids else dtype, device=y.device)
    return Batch(x, y, torch.zeros_like(y, dtype=torch.bool), torch.ones(len(y), dtype=dtype, device=y.device))


@dataclass(frozen=True)
class Given:
    """Other examples of the same clients, on which a model conditions what it says of a batch.

    Attributes:
        examples: theirs, row by row; a row may have none.
        keys: whose noise is whose, (S,); see :func:`hierfl.rng.client_keys`.
        stream: keys what has to be drawn to condition on them, beside the client.
    """

    examples: Batch
    keys: Tensor
    stream: tuple[object, ...]

    def noise(self, draws: int, dtype: torch.dtype) -> ClientNoise:
        """What is drawn with: the same numbers every time, whatever the batch is."""
        return ClientNoise(self.keys, self.stream, draws, dtype=dtype)


_COUNTS: dict[torch.device, Tensor] = {}


def numbers_up_to(n: int, device: torch.device) -> Tensor:
    """0..n-1, made once on each device; not to be changed."""
    if device not in _COUNTS or len(_COUNTS[device]) < n:
        _COUNTS[device] = torch.arange(max(n, 1024), device=device)
    return _COUNTS[device][:n]
