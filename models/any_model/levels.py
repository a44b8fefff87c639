"""Whose a site of a model is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hierfl.data.column_batch import ColumnBatch

#: names of the plates of a model
CLIENT, DATA = "client", "data"
#: dimensions of those
DIMS = {CLIENT: -2, DATA: -1}
#: whose a site is: of everyone, of a client, of a row
Level = Literal["global", "client", "data"]
#: an ordinary Pyro model of a batch
Model = Callable[[ColumnBatch], Any]
#: mark of a latent whose value is given
GIVEN_MARK = "_given"


def is_data(site: dict[str, Any]) -> bool:
    """Whether a site is observed by the model itself."""
    return site["is_observed"] and not site["infer"].get(GIVEN_MARK)


def level_of(site: dict[str, Any]) -> Level:
    """Whose a site is, by its plates."""
    plates = {frame.name for frame in site["cond_indep_stack"]}
    return "global" if CLIENT not in plates else "data" if DATA in plates else "client"
