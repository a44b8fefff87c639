"""What a client's features say of each class: sums over its training data, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hierfl.data.padding import buckets

from .chunk import ClientChunk


@dataclass(frozen=True)
class ClassFeatures:
    """Sums over a client's training examples, whose features are z (D,), of C classes.

    Attributes:
        sums: of z, by class, (S, C, D).
        counts: of examples, by class, (S, C).
        squares: of |z|^2, over all classes, (S,).
    """

    sums: Tensor
    counts: Tensor
    squares: Tensor


def class_features(chunk: ClientChunk, base: Literal["trained", "received"] = "trained") -> ClassFeatures:
    """The sums over all of the rows' training examples, by the network as it predicts; padded examples do not count.

    Args:
        chunk: the rows.
        base: whose features: of each row's own base as it is now, or of the one that was broadcast.
    """
    net, parts = chunk.method.network, []
    for first, last in buckets(chunk.sizes):
        part = chunk.part(first, last)
        batch = part.batch()
        values = part.view if base == "trained" else part.shared
        z = net.base.apply(net.base.parameters_from(values), batch.x)  # (S, n, D)
        member = torch.nn.functional.one_hot(batch.y, net.head.outputs).to(z)
        if batch.mask is not None:
            member = member * batch.mask[..., None]
        squares = (z.square().sum(-1) * member.sum(-1)).sum(-1)
        parts.append(ClassFeatures(member.mT @ z, member.sum(1), squares))
    return ClassFeatures(*(torch.cat([getattr(f, k) for f in parts]) for k in ("sums", "counts", "squares")))
