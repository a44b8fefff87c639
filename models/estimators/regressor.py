"""A regressor of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from .estimator import HierarchicalEstimator


class HierarchicalRegressor(RegressorMixin, HierarchicalEstimator):
    """Any method of networks as a regressor: a model of each client, of one hierarchical model.

    Arguments are those of :class:`.classifier.HierarchicalClassifier`. Responses are standardised, their standard
    deviation is learned, and predictions are in the unit of ``y``.

    Attributes:
        clients_: names of the clients.
        run_: the fit.
    """

    _task = "regression"

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> HierarchicalRegressor:
        """Fits a model to each client.

        Args:
            X: inputs, (n, k): an array, or a table.
            y: responses, (n,).
            groups: the client of each row, (n,).
            sample_weight: for how many rows each row counts, (n,). It multiplies the row's log likelihood, and weights
                the row in the scales of inputs and responses. Zero leaves a row out. None, or ones, counts each once.

        Raises:
            ValueError: for rows that cannot be used, and weights for a method that takes none.
        """
        x, y, client, weights = self._rows_to_fit(X, y, groups, sample_weight)
        self._fit(x, np.asarray(y, dtype=np.float64), client, weights)
        return self

    def predict(self, X: Any, groups: Any = None, return_std: bool = False) -> Any:
        """Means of the responses, (n,).

        Args:
            X: inputs, as of :meth:`fit`.
            groups: the client of each row, (n,).
            return_std: whether their standard deviations come, too: the residual's, and with ``draws`` the model's own.

        Raises:
            ValueError: for rows of no client, unless ``unseen="population"``.
        """
        both = self._answers(X, groups)
        return (both[:, 0], both[:, 1]) if return_std else both[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """The coefficient of determination."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))
