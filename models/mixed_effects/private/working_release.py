"""What a client of another response sends in each round: clipped scores and information with noise, once a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk

from .release import packed_products, unpacked_products
from .working import COUNTED, next_point

if TYPE_CHECKING:
    from ..model.equations import MixedModel


def part_name(number: int) -> str:
    """The name of a round's release in the plan of noise."""
    return f"round {number}"


def message_parts(packed: Tensor, c: int) -> tuple[Tensor, Tensor, Tensor]:
    """Information (S, c, c), scores (S, c) and counts (S,) of messages (S, c (c + 3) / 2 + 1)."""
    products, scores, counts = packed.split([c * (c + 1) // 2, c, 1], -1)
    return unpacked_products(products, c), scores, counts[:, 0] / COUNTED


@dataclass(frozen=True)
class WorkingRelease:
    """A local step: one noisy message for each round that is asked.

    Args:
        method: whose columns.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """What is sent, of which round it is, and at which point."""
        return ("released", "released_rows", "point")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Makes a round's release once: a second one with new noise would disclose more."""
        asked = int(chunk.shared["effects.asked"])
        if bool((chunk.values["released_rows"][..., 0] >= asked).all()):
            return chunk
        private = self.method.private
        if private is None or chunk.privacy is None:
            raise UserError("dp='site': these clients have no noise, so nothing leaves them")
        points = self._points(chunk, asked)
        parts = []
        for first, last in buckets(chunk.sizes):
            parts.append(self.clipped(chunk.part(first, last).batch(), points[first:last]))
        name = part_name(asked)
        noisy = [
            chunk.privacy.noisy(name, own, private.sensitivity, who)
            for own, who in zip(torch.cat(parts), chunk.ids, strict=True)
        ]
        done = torch.full((len(noisy), 1, 2), float(asked)).to(points)
        return chunk.put(
            {"released": torch.stack(noisy).unsqueeze(1), "released_rows": done, "point": points.unsqueeze(1)}
        )

    def _points(self, chunk: ClientChunk, asked: int) -> Tensor:
        """(S, c): by what has been sent, and what is broadcast."""
        private = self.method.private
        assert private is not None
        if asked == 1:
            return torch.zeros_like(chunk.values["point"].squeeze(1))
        return self.following(
            chunk.values["released"].squeeze(1), chunk.values["point"].squeeze(1), chunk.shared["effects.middle"],
            chunk.shared["effects.root" if "effects.root" in chunk.shared else "held.root"], asked - 1,
        )  # fmt: skip

    def following(self, packed: Tensor, points: Tensor, beta: Tensor, entries: Tensor, number: int) -> Tensor:
        """The points after a round: of messages (S, .) at points (S, c), and what that round says of beta and L."""
        private, network = self.method.private, self.method.network
        assert private is not None
        columns, c = private.columns, len(private.columns.names)
        information, scores, _ = message_parts(packed, c)
        root = columns.of_design(network.random, network.random_units).to(packed) @ self.method.covariance.matrix(
            entries
        )
        middle = columns.of_design(network.fixed, network.fixed_units).to(packed) @ beta
        noise = private.sds[number - 1] ** 2
        return next_point(information, scores, points, middle, root @ root.mT, noise)

    def clipped(self, batch: Batch, points: Tensor) -> Tensor:
        """Sums of rows' parts, each no longer than the bound, (S, .)."""
        private = self.method.private
        assert private is not None
        c, y = private.columns.scaled(batch), batch.y.clamp(0.0, 1.0)
        eta = torch.einsum("snc,sc->sn", c, points)
        slope, weight = self.method.response_family.slope_and_weight(eta, y, {}, self.method.network.split(batch.x))
        lengths = c.square().sum(-1)
        norm = ((weight * lengths).square() + slope.square() * lengths + COUNTED**2).sqrt()
        kept = (private.row / norm).clamp(max=1.0)
        kept = kept if batch.mask is None else torch.where(batch.mask, kept, 0.0)
        scores = torch.einsum("sn,snc->sc", slope * kept, c)
        products = packed_products(c * (weight * kept).sqrt()[..., None])
        return torch.cat([products, scores, COUNTED * kept.sum(-1, keepdim=True)], -1)
