"""How far a client's responses are from what its model expects of them, under its posterior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyro
import torch
from torch import Tensor

from hierfl.data.batch import Batch, Given
from hierfl.data.padding import buckets
from hierfl.nn.likelihoods import RESPONSE_SD
from hierfl.ppl.frozen_features import FrozenFeatures

from ..evaluation.response import over_draws, response
from ..evaluation.trace import is_point
from ..objective.sites import guide_latents, model_sites
from .chunk import ClientChunk

#: draws of the guide, where it is no point
DRAWS = 8
#: numbers (draws x clients x examples x an input's) that a pass holds
MAX_NUMBERS_PER_PASS = 4_000_000


def mean_squared_residuals(chunk: ClientChunk) -> Tensor:
    """E_q of (y - E[y | x, w])^2 under each row's guide, a mean over its training examples, (S,).

    The maximiser of the rows' ELBO in a Gaussian response's variance, everything else held: the M-step of EM. It is of
    the values that a client predicts with: a copy of a shared value that it has trained only to send it plays no part.
    A model that is conditioned on the client's data says nothing of w; what the conditional mean leaves unknown is
    added.
    """
    method: Any = chunk.method
    own = {k for group in method.local_copies for k in method.expand(group, chunk.shared)}
    chunk = replace(chunk, values={k: v for k, v in chunk.values.items() if k not in chunk.shared or k in own})
    parts = []
    with pyro.validation_enabled(False), torch.no_grad():
        for first, last in buckets(chunk.sizes):
            parts.append(_of_rows(chunk.part(first, last)))
    return torch.cat(parts)


def _of_rows(chunk: ClientChunk) -> Tensor:
    batch, values = chunk.batch(), chunk.view
    if chunk.method.conditions:  # type: ignore[attr-defined]
        keys = chunk.keys.to(batch.x.device)
        batch = replace(batch, given=Given(batch, keys, (chunk.seed, "given")))
    latents = guide_latents(chunk.method, batch, values, None)
    if not all(is_point(site.fn) for site in latents.values()):
        latents = guide_latents(chunk.method, batch, values, chunk.noise(RESPONSE_SD, DRAWS, chunk.sizes))
    whole = batch.given is not None or any(site.per_example for site in latents.values())
    total, sd = torch.zeros_like(batch.n), values[RESPONSE_SD]
    for part in [batch] if whole else _pieces(batch):
        site = response(
            model_sites(chunk.method, part, values, latents, FrozenFeatures.from_inputs(part.x, frozenset(), values))
        )
        unknown = (over_draws(site.fn.variance) - sd.square()).clamp_min(0) if part.given is not None else 0.0
        squares = ((part.y - over_draws(site.fn.mean)).square() + unknown).mean(0)
        squares = squares if part.scale is None else squares * part.scale
        total = total + (squares if part.mask is None else squares * part.mask).sum(-1)
    return total / chunk.n


def _pieces(batch: Batch) -> Iterator[Batch]:
    """The examples, as many at a time as there is room for."""
    size = max(1, MAX_NUMBERS_PER_PASS // (DRAWS * batch.num_clients * max(1, batch.x[0, 0].numel())))
    for first in range(0, batch.width, size):
        part = slice(first, first + size)
        mask = None if batch.mask is None else batch.mask[:, part]
        scale = None if batch.scale is None else batch.scale[:, part]
        yield Batch(batch.x[:, part], batch.y[:, part], mask, batch.n, scale)
