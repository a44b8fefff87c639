"""A classifier of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets

from hierfl.errors import UserError

from .estimator import HierarchicalEstimator


class HierarchicalClassifier(ClassifierMixin, HierarchicalEstimator):
    """Any method of networks as a classifier: a model of each client, of one hierarchical model.

    Inputs are standardised. Words in a table's columns are categories. A fit in double precision starts from
    ``random_state``, so that it can be repeated.

    Args:
        method: a name of ``hierfl methods``, or a class of methods.
        group: the column of X that names the clients: its name in a table, its position in an array. None where ``fit``
            and ``predict`` are given ``groups``; without both all rows are one client's.
        network: before the last layer, such as "linear", "mlp:32"; see :doc:`/data`.
        rounds: T.
        settings: the method's, {name: value}.
        options: of the fit, {name: value}; see :class:`hierfl.inference.options.Options`.
        unseen: of rows of a client that was not fitted, or of none: "error", or "population", which averages over the
            clients that there may be.
        draws: of the posterior, that predictions are averaged over; 0 predicts at its mean.
        random_state: seed of the fit; None for a new one each time.
        head, weights: what a client has for itself, and the file of first weights; see
            :func:`hierfl.nn.networks.build.architecture`.

    Attributes:
        classes_: the labels, sorted.
        clients_: names of the clients.
        run_: the fit.
    """

    _task = "classification"

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> HierarchicalClassifier:
        """Fits a model to each client.

        Args:
            X: inputs, (n, k): an array, or a table.
            y: labels, (n,).
            groups: the client of each row, (n,).
            sample_weight: for how many rows each row counts, (n,). It multiplies the row's log likelihood, and weights
                the row in the scales of inputs and responses. Zero leaves a row out. None, or ones, counts each once.

        Raises:
            ValueError: for rows that cannot be used, and weights for a method that takes none.
        """
        x, y, client, weights = self._rows_to_fit(X, y, groups, sample_weight)
        if y.dtype.kind == "O" and len(kinds := {str if isinstance(value, str) else type(value) for value in y}) > 1:
            names = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise UserError(f"y holds labels of several types, {names}: make them one type")
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"y has one class, {self.classes_[:1].tolist()[0]!r}: there is nothing to tell apart")
        self._fit(x, numbers, client, weights)
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> np.ndarray:
        """Probabilities of the classes, (n, C), in the order of ``classes_``.

        Args:
            X: inputs, as of :meth:`fit`.
            groups: the client of each row, (n,).

        Raises:
            ValueError: for rows of no client, unless ``unseen="population"``.
        """
        return self._answers(X, groups)

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The likeliest class of each row, (n,); see :meth:`predict_proba`."""
        likeliest: np.ndarray = self.predict_proba(X, groups).argmax(1)
        labels: np.ndarray = self.classes_[likeliest]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Accuracy."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))
