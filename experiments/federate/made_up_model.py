"""What a plain model observes at made-up rows: drawn from the model, its globals at the means of their priors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import torch

from hierfl.data.column_table import coded
from hierfl.data.federated.dictionary import Column
from hierfl.data.federated.model_data import ModelData
from hierfl.errors import UserError
from hierfl.models.any_model.evaluating import Clients, constrained
from hierfl.models.any_model.simulated import Simulator
from hierfl.models.any_model.values import Draws, at_draws

from .study import Study

if TYPE_CHECKING:
    from hierfl.models.any_model.method import AnyModel


def simulated(study: Study, table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """A made-up table whose observed columns are drawn from the study's model, as far as their ranges allow.

    Args:
        study: of a plain model.
        table: columns that it reads, of values that the dictionary allows.
        seed: keys what is drawn.

    Returns:
        The same columns. A column that no observed site has as it is stays made up.
    """
    assert isinstance(study.data, ModelData)
    data, method = study.data, cast("AnyModel", study.method(study.data.design))
    columns = torch.from_numpy(coded(table, data.design).to_numpy(dtype=np.float64).T.copy())
    start, own = method.sites.start[None], method.sites.client_start[None, None]
    plate = Clients(method.program, method.sites, data.design, columns[None], None, torch.ones_like(own[0]))
    rows = at_draws(
        plate,
        Draws(start, own),
        lambda seen_site: seen_site.value if seen_site.observed and seen_site.level == "data" else None,
    )
    try:
        drawn = Simulator(method.program, method.sites, data.design)(
            columns, 1, seed, constrained(method.sites, start), levels=("data",)
        )
    except UserError:  # of a prior that cannot be drawn from the columns stay as they are
        return table
    observed_columns = dict[str, Any]()
    for site, value in rows.items():
        for k, name in enumerate(data.columns):
            if site in drawn and torch.equal(value.flatten(), columns[k]):
                observed_columns[name] = _allowed(drawn[site].flatten().numpy(), data.dictionary.columns[name])
    return table.assign(**observed_columns)


def _allowed(values: np.ndarray, column: Column) -> np.ndarray:
    """Values (n,) as a column may have them."""
    if column.kind == "category":
        return np.array(column.levels, dtype=object)[values.astype(int).clip(0, len(column.levels) - 1)]
    least = -np.inf if column.least is None else column.least
    most = np.inf if column.most is None else column.most
    inside = np.nan_to_num(values, nan=0.0, posinf=1e6, neginf=-1e6).clip(least, most)
    return inside if column.kind == "number" else np.round(inside).astype(int)
