"""What a client sends: sums of products of its scaled rows with noise, made once.

    G_j = sum_i v_i v_i^T + E_j,    E_j symmetric, N(0, sd^2) on the diagonal and N(0, sd^2 / 2) beside it    (p8)

In coordinates in which entries beside the diagonal count sqrt 2 times, |v v^T| = |v|^2 <= B: a patient of r rows moves
them by r B at most, and the noise is the same along each of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.plurals import counted

if TYPE_CHECKING:
    from ..model.equations import MixedModel

log = logging.getLogger("hierfl")
#: of the plan of noise
STATISTICS = "statistics"


def weights(m: int) -> Tensor:
    """The weights of the entries of a triangle (m, m), row by row: 1 on the diagonal and sqrt 2 beside it."""
    up, across = torch.triu_indices(m, m)
    return torch.where(up == across, 1.0, math.sqrt(2)).double()


def packed_products(rows: Tensor) -> Tensor:
    """Sums of products of rows (S, n, m) in these coordinates, (S, m (m + 1) / 2)."""
    up, across = torch.triu_indices(rows.shape[-1], rows.shape[-1])
    return (rows.mT @ rows)[:, up, across] * weights(rows.shape[-1]).to(rows)


def unpacked_products(packed: Tensor, m: int) -> Tensor:
    """Undoes :func:`packed_products`, (S, m, m)."""
    up, across = torch.triu_indices(m, m)
    entries, matrix = packed / weights(m).to(packed), packed.new_zeros(len(packed), m, m)
    matrix[:, up, across] = entries
    matrix[:, across, up] = entries
    return matrix


@dataclass(frozen=True)
class Release:
    """A local step: the noisy sums, of clients that have not made them yet.

    Args:
        method: whose columns.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """What is sent, and whether it is made, with how many rows had a value outside of its range."""
        return ("released", "released_rows")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Once: what is made again would tell more."""
        if bool((chunk.values["released_rows"][..., 0] > 0).all()):
            return chunk
        private = self.method.private
        if private is None or chunk.privacy is None:
            raise UserError("dp='site': these clients have no noise, so nothing leaves them")
        parts, outside = [], []
        for first, last in buckets(chunk.sizes):
            batch = chunk.part(first, last).batch()
            parts.append(packed_products(private.columns.rows(batch)))
            outside.append(private.columns.outside(batch))
        clean, names = torch.cat(parts), chunk.ids
        noisy = [
            chunk.privacy.noisy(STATISTICS, own, private.sensitivity, name)
            for own, name in zip(clean, names, strict=True)
        ]
        beyond = torch.cat(outside).to(clean)
        if int(beyond.sum()):
            log.warning(
                "%s had a value outside of its declared range, which counts at its end",
                counted(int(beyond.sum()), "row"),
            )
        done = torch.stack([torch.ones_like(beyond), beyond], -1)
        return chunk.put({"released": torch.stack(noisy).unsqueeze(1), "released_rows": done.unsqueeze(1)})
