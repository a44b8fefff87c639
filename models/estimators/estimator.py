"""Base of the scikit-learn classifier and regressor: clients of rows, a method by its name, a fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from hierfl.data.category_columns import category_levels, encoded_columns, input_names
from hierfl.data.client_names import client_names
from hierfl.data.federation import Federation
from hierfl.data.frames import is_table
from hierfl.data.labels import one_column
from hierfl.data.pool import Task
from hierfl.data.raw_values import number_array, plain_array
from hierfl.data.reading.frames import note_quantities, refuse_text
from hierfl.data.spellings import as_known
from hierfl.errors import UserError, unknown
from hierfl.inference.checks import check_whole
from hierfl.inference.method.base import Method
from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.run.fit import fit
from hierfl.inference.run.result import Run
from hierfl.nn.networks.build import architecture
from hierfl.plurals import counted

from .. import METHODS, class_of

#: the client of a fit without groups
ONLY_CLIENT = "all"
#: what may be answered of a client that was not fitted
UNSEEN = ("error", "population")
#: types of inputs
FLOATS = (np.float64, np.float32)


class HierarchicalEstimator(BaseEstimator):
    """See :class:`.classifier.HierarchicalClassifier` and :class:`.regressor.HierarchicalRegressor`."""

    _task: Task

    def __init__(
        self, method: Any = "pfedvem", *, group: Any = None, network: str = "mlp:32", rounds: int = 30,
        settings: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None, unseen: str = "error",
        draws: int = 0, random_state: Any = 0, head: str = "linear", weights: Any = None,
    ) -> None:  # fmt: skip
        self.method = method
        self.group = group
        self.network = network
        self.rounds = rounds
        self.settings = settings
        self.options = options
        self.unseen = unseen
        self.draws = draws
        self.random_state = random_state
        self.head = head
        self.weights = weights

    @property
    def run_(self) -> Run:
        """The fit: its posterior, clients and metrics."""
        check_is_fitted(self, "_run")
        run: Run = self._run
        return run

    def _fit(self, x: np.ndarray, y: np.ndarray, client: np.ndarray, weights: np.ndarray | None) -> None:
        """Fits the method to checked rows, with their weights."""
        if len(x) < 2:
            raise UserError(f"a fit needs at least two rows, and has n_samples={len(x)}")
        cls, whole = method_class(self.method), isinstance(self.random_state, int | np.integer)
        seed = int(self.random_state) if whole else int(check_random_state(self.random_state).randint(2**31 - 1))
        federation = Federation.from_arrays(
            x, y, client, test=0.0, validation=0.0, seed=seed, task=self._task, standardise=True, inputs="numbers",
            spellings="keep", weights=weights,
        )  # fmt: skip
        network = architecture(self.network, federation, latent=cls.latent, head=self.head, weights=self.weights)
        for name in ("settings", "options"):
            if not isinstance(getattr(self, name) or {}, Mapping):
                raise UserError(f"{name} is a dictionary, {{name: value}}, not {getattr(self, name)!r}")
        made = cls(network, **dict(self.settings or {}))
        check_whole("rounds", self.rounds, 0)
        usual = {"dtype": torch.float64, "splits": (), "evaluate_every": max(1, self.rounds)}
        options = {**usual, **dict(self.options or {})}
        self._run = fit(made, federation, self.rounds, seed=seed, progress=False, **options)
        self.clients_ = np.array(list(federation.ids))

    def _answers(self, X: Any, groups: Any, new_draws: int = 100) -> np.ndarray:
        """Predictions of rows as :meth:`~hierfl.inference.run.result.Run.predict` has them of arrays, (n, k)."""
        run = self.run_
        if self.unseen not in UNSEEN:
            raise unknown("value of unseen", self.unseen, UNSEEN)
        x, client = self._rows_to_predict(X, groups)
        if client is None:
            client = np.full(len(x), ONLY_CLIENT)
            if self.clients_.tolist() != [ONLY_CLIENT]:
                if self.unseen == "error":
                    raise UserError(
                        f"whose rows are they? Say groups=, or unseen='population'; it was fitted to "
                        f"{counted(len(self.clients_), 'client')}"
                    )
                client = np.full(len(x), "")
        # A name that is spelled like a fitted client's is no client that was not seen.
        as_known(client.astype(object), self.clients_.tolist(), "refuse", "groups")
        answers: dict[str, Any] = {}
        for name in dict.fromkeys(client.tolist()):
            places = np.flatnonzero(client == name)
            if name in self.clients_:
                part = run.predict(x[places], str(name), draws=self.draws)
            elif self.unseen == "population":
                part = run.predict_new_client(x[places], draws=new_draws)
            else:
                raise UserError(f"client {name!r} is not among those fitted: unseen='population' answers for one")
            answers[name] = (places, part.double().cpu().numpy())
        shape = next(iter(answers.values()))[1].shape[1:]
        table = np.empty((len(x), *shape))
        for places, part in answers.values():
            table[places] = part
        return table

    def _rows_to_fit(
        self, X: Any, y: Any, groups: Any, sample_weight: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Inputs (n, k), targets (n,), clients (n,) and weights (n,) of the rows whose weight is above zero, checked.

        Weights are None where each row counts once, so that methods that take no weights are fitted to equal ones.
        """
        rows = self._checked_rows(X, y, groups)
        if sample_weight is None:
            return *rows, None
        weights = checked_weights(sample_weight, len(rows[0]))
        if not (weights > 0).all():
            kept = np.flatnonzero(weights)
            X, y, groups = (None if part is None else _safe_indexing(part, kept) for part in (X, y, groups))
            rows, weights = self._checked_rows(X, y, groups), weights[kept]
        return *rows, None if (weights == 1).all() else weights

    def _checked_rows(self, X: Any, y: Any, groups: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs (n, k), targets (n,) and clients (n,), checked; what a prediction needs of the columns is kept."""
        X, groups = self._without_group(X, groups)
        _check_given(X, y)
        self._columns, self._levels = (
            (list(X.columns), category_levels(X, list(X.columns))) if is_table(X) else ([], {})
        )
        if getattr(getattr(y, "dtype", None), "kind", "O") in "mM":
            raise UserError("y holds dates or time spans, and a response is a number: count days or hours from a date")
        if self._task == "regression":
            _refuse_words(y)
        x, y = validate_data(self, self._encoded(X), y, y_numeric=self._task == "regression", dtype=FLOATS)
        client = _clients(groups, len(x))
        return x, y, np.full(len(x), ONLY_CLIENT) if client is None else client

    def _rows_to_predict(self, X: Any, groups: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Inputs (n, k), and clients (n,) where these are given."""
        X, groups = self._without_group(X, groups)
        x: np.ndarray = validate_data(self, self._encoded(X), reset=False, dtype=FLOATS)
        return x, _clients(groups, len(x))

    def _encoded(self, X: Any) -> Any:
        """A table whose categories are columns of 0 and 1; anything without categories as it is."""
        if not is_table(X) or not self._levels:
            return X
        import pandas as pd

        values = encoded_columns(X, self._columns, self._levels, "X")
        return pd.DataFrame(values, columns=input_names(self._columns, self._levels))

    def _without_group(self, X: Any, groups: Any) -> tuple[Any, Any]:
        """Inputs without the column ``group``, and that column."""
        if self.group is None:
            return X, groups
        if groups is not None:
            raise UserError(f"groups= and group={self.group!r} both say whose rows are: say one of them")
        if is_table(X):
            if not isinstance(self.group, str | int | np.integer):
                raise UserError(f"group is the name of one column of X, not {self.group!r}")
            if self.group not in X.columns:
                raise UserError(f"X lacks the column of clients, {self.group!r}")
            return X.drop(columns=[self.group]), X[self.group]
        values = np.asarray(X)
        if not isinstance(self.group, int | np.integer) or values.ndim != 2 or not -1 <= self.group < values.shape[1]:
            raise UserError(f"group={self.group!r} is a column's name, and X is an array: give its place, such as 0")
        column = values[:, self.group]
        if column.dtype.kind == "f" and (column == np.round(column)).all():
            column = column.astype(np.int64)  # an array has one type for all of its columns
        return np.delete(values, self.group, axis=1), column


def _check_given(X: Any, y: Any) -> None:
    """Refuses what scikit-learn would read as something else.

    Raises:
        UserError: for masked entries, dates, and columns of text that may be numbers.
    """
    for name, values in (("X", X), ("y", y)):
        if isinstance(values, np.ma.MaskedArray):
            plain_array(values, name)
    if is_table(X) and X.columns.is_unique:
        for name in X.columns:
            if X[name].dtype.kind in "mM":
                raise UserError(f"column {name!r} of X holds dates or time spans: count days or hours from a date")
        refuse_text(X, list(X.columns))
        note_quantities(X, list(X.columns))


def _refuse_words(y: Any) -> None:
    """Refuses responses of a regression that are text, or of which some are missing among Python's objects.

    Raises:
        UserError: with the first word, or the number of missing ones.
    """
    import pandas as pd

    if y is None or getattr(getattr(y, "dtype", None), "kind", "O") in "biuf":
        return
    values = np.asarray(y, dtype=object).ravel()
    words = [value for value in values if isinstance(value, str | bytes)]
    if words and all(_is_number(word) for word in words):
        raise UserError(f"y holds numbers as text, such as {words[0]!r}: y.astype(float) makes numbers of them")
    if words:
        word = next(word for word in words if not _is_number(word))
        raise UserError(
            f"y holds words, such as {word!r}, and a response of HierarchicalRegressor is a number: "
            "HierarchicalClassifier fits words"
        )
    if missing := int(pd.isna(values).sum()):
        raise UserError(f"y contains NaN or missing values in {counted(missing, 'row')}: leave these rows out")


def _is_number(word: str | bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _clients(groups: Any, rows: int) -> np.ndarray | None:
    """Names of the rows' clients, (n,)."""
    if groups is None:
        return None
    names = client_names(groups, "groups")
    if len(names) != rows:
        raise UserError(f"groups names the clients of {counted(len(names), 'row')}, and X has {rows}")
    return names


def checked_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """Weights of rows as scikit-learn means them, (n,) in float64: zero leaves a row out.

    Args:
        sample_weight: (n,) or (n, 1).
        rows: n.

    Raises:
        UserError: for another length, a number below zero or not finite, and zeros alone.
    """
    weights = number_array(one_column(sample_weight, "sample_weight"), "sample_weight").astype(np.float64)
    if weights.shape != (rows,):
        raise UserError(f"sample_weight has {counted(len(weights), 'value')}, and X has {counted(rows, 'row')}")
    if bad := int((~(np.isfinite(weights) & (weights >= 0))).sum()):
        raise UserError(f"sample_weight has {counted(bad, 'value')} below zero or not finite")
    if not weights.any():
        raise UserError("every sample_weight is zero: no row is left to fit")
    return weights


def method_class(method: Any) -> type[Method]:
    """A method's class, by its name or given as a class.

    Raises:
        UserError: for an unknown name, and for a method of formulas or of models.
    """
    if isinstance(method, str):
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        cls: Any = class_of(method)
    else:
        cls = method
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(f"method is a name, such as 'pfedvem', or a class of methods, not {method!r}")
    if is_tabular(cls):
        raise UserError(f"{method} has no network: hierfl.mixed_model fits a formula, hierfl.fit_model a Pyro model")
    return cls
