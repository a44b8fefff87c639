"""Whose rows of a table are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.data.client_names import client_names
from hierfl.data.spellings import as_known
from hierfl.errors import UserError
from hierfl.inference.run.result import Run

if TYPE_CHECKING:
    import pandas as pd


def client_of_rows(run: Run, df: pd.DataFrame) -> Tensor:
    """Which client each row belongs to, (n,)."""
    reader = run.fitted.federation.about["reader"]
    column = reader.places.levels.client
    if column not in df.columns and len(run.fitted.federation.ids) == 1:
        return torch.zeros(len(df), dtype=torch.long)  # at a site the table is its own
    if column not in df.columns:
        raise UserError(
            f"the table lacks column {column!r}: whose model? (level='new' is of a client that is not known)"
        )
    index_of = {name: j for j, name in enumerate(run.fitted.federation.ids)}
    if not len(df):
        return torch.zeros(1, dtype=torch.long)
    names = client_names(df[column], f"column {column!r}")
    names = as_known(names, index_of, reader.spellings[column], f"column {column!r}")
    if strange := sorted(set(names) - index_of.keys()):
        raise UserError(
            f"client {str(strange[0])!r} is not among those fitted: level='new' predicts for one that is not known"
        )
    return torch.tensor([index_of[name] for name in names])
