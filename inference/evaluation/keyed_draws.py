"""Draws from any distribution, as a function of keys alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, MultivariateNormal, Normal, Poisson

from hierfl.nn.likelihoods import Softmax
from hierfl.rng import key

#: distributions of which a row of a plate is one of the same kind, by what they are made from; of others a plate has
#: one row
OF_ROWS: dict[type, tuple[str, ...]] = {
    Normal: ("loc", "scale"), MultivariateNormal: ("loc", "scale_tril"), Bernoulli: ("logits",), Poisson: ("rate",),
    Softmax: ("logits",),
}  # fmt: skip


def _kind(fn: Any) -> type | None:
    """Which of those a distribution is (Pyro's are torch's, with a mixin)."""
    return next((kind for kind in type(fn).__mro__[:2] if kind in OF_ROWS), None)


def has_rows(fn: Any) -> bool:
    """Whether :func:`sample_keyed` draws each row of this distribution by itself."""
    return _kind(fn.base_dist if isinstance(fn, Independent) else fn) is not None


def _row(fn: Any, row: int, width: int) -> Any:
    """The distribution of the first examples of one row of a plate, batch shape (..., 1, width)."""
    base, dims = (fn.base_dist, fn.reinterpreted_batch_ndims) if isinstance(fn, Independent) else (fn, 0)
    kind, parts = _kind(base), {}
    assert kind is not None
    for name in OF_ROWS[kind]:
        value, event = getattr(base, name), base.arg_constraints[name].event_dim
        value = value.expand(*base.batch_shape, *value.shape[value.dim() - event :])
        parts[name] = value[(..., slice(row, row + 1), slice(width), *[slice(None)] * (dims + event))]
    made = kind(**parts, validate_args=False)
    return Independent(made, dims, validate_args=False) if dims else made


def sample_keyed(
    fn: Any,
    draws: int,
    device: torch.device,
    keys: Sequence[tuple[object, ...]],
    counts: Sequence[int] | Tensor | None = None,
) -> Tensor:
    """Draws (K, S, n, *event) from any distribution that can sample, as a function of the keys alone.

    A distribution whose parameters carry K draws already gives one for each of them. Torch's distributions read the
    global generator: it is borrowed, seeded by the key, and given back.

    Args:
        fn: what to draw from, batch shape ([K,] S, n).
        draws: K.
        device: of ``fn``.
        keys: one for each row, where it :func:`has_rows`; or one for all of them.
        counts: examples of each row; what is padded is zero. None where all rows are full.
    """
    shape = torch.Size() if len(fn.batch_shape) > 2 else torch.Size((draws,))
    parts = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for row, one in enumerate(keys):
            # (torch.manual_seed tells every accelerator, whether it is there or not: a millisecond each time)
            torch.default_generator.manual_seed(key(*one))
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(key(*one))
            if len(keys) == 1:
                return fn.sample(shape)
            parts.append(_row(fn, row, fn.batch_shape[-1] if counts is None else int(counts[row])).sample(shape))
    found = parts[0].new_zeros((len(parts[0]), len(parts), *fn.batch_shape[-1:], *fn.event_shape))
    for row, part in enumerate(parts):
        found[:, row, : part.shape[2]] = part[:, 0]
    return found
