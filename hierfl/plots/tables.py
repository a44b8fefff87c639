"""What the figures of a run are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .style import MAX_NAMED_CLIENTS, main_metric

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunTables:
    """The tables of a run.

    Attributes:
        metrics: a row for each evaluation.
        clients: a row for each client.
        bins: counts of the reliability diagrams, (J, 15, 3); None for a regression.
        entropies: own and strange inputs' predictive entropies of each client.
        averaged: ``bins`` of predictions averaged over draws.
        history: columns round, client and what a method has of clients.
        participation: a row for each round, a column for each client.
        estimates: a mixed-effects model's, columns client, n, effect, local, population, pooled, hierarchical.
        effects: of the population, columns effect, estimate and upper.
        tempered: ``bins`` of what is predicted at the temperature that was found.
        trace: of a plain model's fit, columns round, phase, bound, moved, worth.
    """

    metrics: pd.DataFrame
    clients: pd.DataFrame
    bins: np.ndarray | None = None
    entropies: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    averaged: np.ndarray | None = None
    history: pd.DataFrame | None = None
    participation: pd.DataFrame | None = None
    estimates: pd.DataFrame | None = None
    effects: pd.DataFrame | None = None
    trace: pd.DataFrame | None = None
    tempered: np.ndarray | None = None

    @property
    def tested(self) -> int:
        """How many evaluations there are on test data."""
        return int((self.metrics["split"] == "test").sum()) if len(self.metrics) else 0

    @property
    def measured(self) -> bool:
        """Whether any client has test data."""
        metric = main_metric(self.clients)[0]
        return metric in self.clients and bool(self.clients[metric].notna().any())

    @property
    def several(self) -> bool:
        """Whether there are clients to compare: a site's own report has one."""
        return len(self.clients) > 1

    @property
    def alike(self) -> bool:
        """Whether the clients are few, and of about one size."""
        n = self.clients["n"]
        return bool(n.max() <= 1.05 * n.min() and 1 < len(self.clients) <= MAX_NAMED_CLIENTS)
