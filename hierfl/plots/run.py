"""The figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import registry
from .tables import RunTables

if TYPE_CHECKING:
    import pandas as pd


def panels(
    metrics: pd.DataFrame,
    clients: pd.DataFrame,
    bins: np.ndarray | None,
    entropies: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    averaged: np.ndarray | None = None,
    history: pd.DataFrame | None = None,
    participation: pd.DataFrame | None = None,
    estimates: pd.DataFrame | None = None,
    effects: pd.DataFrame | None = None,
    trace: pd.DataFrame | None = None,
    tempered: np.ndarray | None = None,
) -> dict[str, Callable[[Any], Any]]:
    """The figures of a run by name, each a function of an axis; those that its data do not allow are left out."""
    tables = RunTables(
        metrics, clients, bins, entropies, averaged, history, participation, estimates, effects, trace, tempered
    )
    return registry.panels("run", tables)
