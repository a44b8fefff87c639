"""What each part of PFedHB gains on rows that nothing was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hierfl.data.held_fold import held_fold
from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.objective.sites import guide_latents
from hierfl.ppl.restrict import Restrict

#: draws of a client's posteriors of heads and of features over which a predictive density is averaged
DRAWS = 16
#: numbers of outputs at all draws that are held at a time
HELD = 4_000_000
#: parts in the order in which they are named, and in words
PARTS = {"shares": "label shares", "heads": "heads", "features": "features"}
#: draws are of these latents; of shares it is the mean
DRAWN = {"heads": "w_j", "features": "v_j"}


def held_gains(chunk: ClientChunk, parts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """How much each part adds to a client's log density of its held fold, given what has entered.

    The values are those that the server would predict with, and the clients' posteriors given their other rows. Of
    shares it is the density at their mean, of heads and features that averaged over draws.

    Args:
        chunk: the rows.
        parts: that may enter.

    Returns:
        Nats (S, K), zero for those that have entered, and on how many rows, (S,).
    """
    method: Any = chunk.method
    shared = method.prediction_params(chunk.shared)
    fold = held_fold(chunk.federation).rows
    sizes = [fold.sizes[j] for j in chunk.clients]
    own = {k: v for k, v in chunk.values.items() if k not in shared}
    found = chunk.n.new_zeros((len(sizes), len(parts)), dtype=torch.float64)
    outputs = method.network.head.outputs
    with torch.no_grad():
        for first, last in buckets(sizes, max(1, HELD // (DRAWS * outputs))):
            if sizes[first]:
                rows = chunk.part(first, last)
                values = {**shared, **{k: v[first:last] for k, v in own.items()}}
                found[first:last] = _gains(rows, values, fold.padded(rows.clients), parts)
    return found, torch.tensor(sizes, dtype=torch.float64, device=found.device)


def _gains(
    chunk: ClientChunk, values: dict[str, Tensor], at: tuple[Tensor, Tensor | None], parts: tuple[str, ...]
) -> Tensor:
    """Of some rows, (S, K)."""
    method: Any = chunk.method
    index, mask = at
    batch = chunk.federation.gather(index, mask, chunk.clients)
    centre = {k: site.value for k, site in guide_latents(method, batch, values, None).items()}

    def density(switched: str = "") -> Tensor:
        """(S,), this part switched on, each part that is in by its mean but for the one that is asked."""
        on = {f"parts.{switched}": chunk.n.new_ones(1)} if switched else {}
        latents = dict(centre)
        if switched in DRAWN:
            name = DRAWN[switched]
            drawn = values[f"{name}_draws"]  # (S, 1, 1, K, d)
            latents[name] = drawn.squeeze(2).movedim(2, 0)
        with Restrict({**values, **on}, latents=latents) as seen:
            method.model(batch)
        each = seen.sites["y"].fn.log_prob(batch.y).double()  # (K, S, n) or (S, n)
        each = each.logsumexp(0) - math.log(len(each)) if each.dim() == 3 else each
        return (each if mask is None else torch.where(mask, each, 0.0)).sum(-1)

    before = density()
    entered = {part: values[f"parts.{part}"] > 0 for part in parts}
    gains = [torch.where(entered[part], 0.0, density(part) - before) for part in parts]
    return torch.stack(gains, -1)


def gain_numbers(shared: Mapping[str, Tensor], parts: tuple[str, ...]) -> dict[str, float]:
    """What is known of each part, {gain_PART: nats, gain_PART_error: nats, entered_PART: 0 or 1}, and of how many rows.

    Args:
        shared: after the last round.
        parts: that may enter.
    """
    found: dict[str, float] = {}
    for k, part in enumerate(parts):
        found[f"gain_{part}"] = float(shared["parts.gain"][k])
        found[f"gain_{part}_error"] = float(shared["parts.error"][k])
        found[f"entered_{part}"] = float(shared[f"parts.{part}"])
    return {**found, "gain_rows": float(shared["parts.rows"])} if parts else {}
