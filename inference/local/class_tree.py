"""A client's own tree of classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hierfl.ppl.class_tree import class_tree

from ..clients.chunk import ClientChunk
from ..clients.class_features import class_features
from .closed_form import SetValue


@dataclass(frozen=True)
class ClassTree(SetValue):
    """A personal value that is set to a tree of the client's classes, by the means of their features; never sent.

    See :func:`hierfl.ppl.class_tree.class_tree`. Features are those of the base network as the client has it.

    Args:
        name: the value, (C, C - 1).
    """

    def new_value(self, chunk: ClientChunk, old: Tensor) -> Tensor:
        """The rows' trees."""
        features = class_features(chunk)
        return class_tree(features.sums / features.counts.clamp_min(1)[..., None], features.counts > 0).view_as(old)
