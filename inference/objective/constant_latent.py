"""Guides whose distribution is the same at every step: they are asked once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from hierfl.data.batch import numbers_up_to
from hierfl.ppl.guide_draws import draw_with
from hierfl.ppl.restrict import Restrict, Site
from hierfl.rng import ClientNoise

from .joint_model import JointModel


class DataAccessed(Exception):
    """A guide has looked at data."""


class DatalessBatch:
    """A batch without its data: what a guide of the client plate alone needs to know.

    Args:
        n: (S,), how many training examples each row has.
    """

    def __init__(self, n: Tensor) -> None:
        self.num_clients, self.row_numbers, self.n = len(n), numbers_up_to(len(n), n.device), n

    def __getattr__(self, name: str) -> Any:
        raise DataAccessed(name)


def constant_latent(
    method: JointModel, n: Tensor, values: Mapping[str, Tensor], noise: ClientNoise, moving: Collection[str]
) -> Site | None:
    """The guide's only latent, if its distribution is the same at every step: it need not be asked again for it.

    It is where the guide asks for no value that moves, looks at no data, and has no other latent on which this one
    might depend. None otherwise.
    """
    with Restrict(values, draw=draw_with(noise)) as restricted:
        try:
            method.guide(DatalessBatch(n))  # type: ignore[arg-type]
        except DataAccessed:
            return None
    if len(restricted.sites) != 1 or not restricted.asked.isdisjoint(moving):
        return None
    (site,) = restricted.sites.values()
    return site if site.kind == "latent" and site.per_client else None
