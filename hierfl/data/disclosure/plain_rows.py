"""A site's rows of a network's table or arrays, or of a plain model's table, as the rules look at them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..federated.array_data import ArraySite
from ..federated.column_data import ColumnSite
from ..federated.model_data import ModelSite
from ..partition.hold_out import hold_out
from ..pool import PooledDataset
from .own_rows import OwnRows, codes, few_values


def column_rows(site: ColumnSite) -> OwnRows:
    """The training rows of a table, with those that are held out for validation."""
    study, pool = site.study, site.pool
    columns, reader = study.dictionary.columns, study.reader
    inputs = dict(zip(reader.names, pool.x_train.T, strict=True))
    numbers = {name: inputs[name] for name in study.x if columns[name].kind in ("number", "whole")}
    categories = {name: codes(inputs[name]) for name in study.x if columns[name].kind == "flag"}
    for name in study.x:
        if levels := columns[name].levels:
            categories[name] = np.stack([inputs[f"{name}={level}"] for level in levels], 1).argmax(1)
    categories |= _labels(pool, study.y)
    numbers |= {study.y: pool.y_train} if study.learns else {}
    categories |= few_values(numbers)
    return OwnRows(len(pool.x_train), _held_out(pool, study.validation, study.seed), categories, numbers)


def array_rows(site: ArraySite) -> OwnRows:
    """The rows of the training examples."""
    study, pool = site.study, site.pool
    numbers = {"the response": pool.y_train} if study.learns else {}
    held_out = _held_out(pool, study.validation, study.seed)
    return OwnRows(len(pool.x_train), held_out, _labels(pool, "the labels") | few_values(numbers), numbers)


def model_rows(site: ModelSite) -> OwnRows:
    """All rows: every column that the model reads, whatever it makes of them."""
    columns, table = site.study.dictionary.columns, site.df
    kinds = {name: columns[name].kind for name in site.study.columns}
    categories = {name: codes(table[name].to_numpy()) for name, kind in kinds.items() if kind in ("category", "flag")}
    numbers = {name: table[name].to_numpy(dtype=float) for name, kind in kinds.items() if kind in ("number", "whole")}
    return OwnRows(site.rows, {}, categories | few_values(numbers), numbers)


def _labels(pool: PooledDataset, name: str) -> dict[str, np.ndarray]:
    """Classes of a classification."""
    return {name: codes(pool.y_train)} if pool.task == "classification" else {}


def _held_out(pool: PooledDataset, validation: float, seed: int) -> Mapping[str, np.ndarray]:
    """Examples that are held out for validation, among the training ones; and those for testing beside these."""
    n, client = len(pool.x_train), str(pool.client_train[0]) if pool.client_train is not None else ""
    y = np.concatenate([pool.y_train, pool.y_test])
    _, (in_validation,) = hold_out([np.arange(n)], [client], y, validation, seed, pool.task)
    rows = np.zeros(n, dtype=bool)
    rows[in_validation] = True
    parts = {"validation": rows} if len(in_validation) else {}
    return parts | ({"test": np.ones(len(pool.x_test), dtype=bool)} if len(pool.x_test) else {})
