"""How many training examples of each class a client has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.devices import send

from ..clients.chunk import ClientChunk
from .closed_form import SetValue


@dataclass(frozen=True)
class ClassCounts(SetValue):
    """A personal value that is set to how many training examples of each class the client has; never sent.

    They are of all its training data, so that no minibatch, and no last one that is short, changes them.

    Args:
        name: the value, (C,).
    """

    def new_value(self, chunk: ClientChunk, old: Tensor) -> Tensor:
        """The rows' counts."""
        counts = torch.from_numpy(chunk.federation.by_class.counts[chunk.clients])
        return send(counts, old.device, old.dtype).view_as(old)
