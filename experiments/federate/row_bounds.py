"""How many rows a study's sites may declare, at the preparation and in their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from hierfl.inference.engines.remote.row_counts import RowBounds, training_rows

from .study_rows import most_rows

if TYPE_CHECKING:
    from .study import Study


def row_bounds(study: Study) -> RowBounds | None:
    """What sites may declare at the preparation; None where no site's own number is seen, or it has noise."""
    options = study.options("cpu")
    if options.masked or options.dp != "none":
        return None
    most = most_rows(study.table["privacy"])
    return RowBounds(study.data.declared_rows, study.least_rows, most, study.data.summed_columns)


def declared_rows(study: Study, bounds: RowBounds | None) -> Tensor | None:
    """What they may declare in messages, by what they have declared; see :func:`.training_rows`."""
    if bounds is None:
        return None
    agreed = study.table["data"]
    held_out = agreed.get("validation_fraction", 0.0)
    if agreed["kind"] == "formula":  # sums are of all rows, of other kinds of training rows
        held_out += agreed["test_fraction"]
    return training_rows({study.clients[j]: n for j, n in bounds.rows_by_client.items()}, study.clients, held_out)
