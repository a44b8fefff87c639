"""Arrays, checked, as a pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import UserError
from .array_checks import check_inputs, check_subclasses, check_targets, distinct_subclasses
from .client_names import client_names, rows_of
from .federation_checks import check_fraction, check_seed
from .input_scales import Standardise, standardised
from .pool import PooledDataset, Task

log = logging.getLogger("hierfl")


def channel_constants(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel of (N, C, H, W) images, over all entries of anything else."""
    axes = (0, 2, 3) if x.ndim == 4 else None
    scale = 255 if x.dtype == np.uint8 else 1
    mean, std = x.mean(axes, dtype=np.float64) / scale, x.std(axes, dtype=np.float64) / scale
    shape = (-1, 1, 1) if x.ndim == 4 else ()
    return mean.astype(np.float32).reshape(shape), np.maximum(std, 1e-8).astype(np.float32).reshape(shape)


def make_pool(
    name: str,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    fine_train: np.ndarray | None = None,
    fine_test: np.ndarray | None = None,
    client_train: np.ndarray | None = None,
    client_test: np.ndarray | None = None,
    task: Task | None = None,
    classes: int = 0,
) -> PooledDataset:
    """Checks arrays and makes a pool of them.

    Args:
        name: what to call it.
        x_train, y_train, x_test, y_test, fine_train, fine_test, client_train, client_test: see
            :class:`~hierfl.data.pool.PooledDataset`.
        task: by default from the type of ``y_train``.
        classes: number of labels, where some may be missing here; 0 for all those in ``y_train``.

    Raises:
        UserError: where they cannot be one data set.
    """
    x_train, x_test = check_inputs(name, "x_train", x_train), check_inputs(name, "x_test", x_test)
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise UserError(
            f"{name}: x_train {x_train.dtype}{x_train.shape} and x_test {x_test.dtype}{x_test.shape} "
            "do not fit together"
        )
    if 0 in x_train.shape[1:]:
        raise UserError(f"{name}: x_train has shape {x_train.shape}: an input without a number")
    for part, x, others in (
        ("train", x_train, {"y": y_train, "fine": fine_train, "client": client_train}),
        ("test", x_test, {"y": y_test, "fine": fine_test, "client": client_test}),
    ):
        for what, a in others.items():
            if a is not None and np.shape(a) != (len(x),):
                raise UserError(f"{name}: {what}_{part} has shape {np.shape(a)}, not ({len(x)},) as x_{part} asks")
            if a is not None and what == "fine":
                check_subclasses(f"{name}: fine_{part}", np.asarray(a))
            if a is not None and what == "client":
                client_names(a, f"{name}: client_{part}")
    if not len(x_train):
        raise UserError(f"{name}: x_train is empty")
    if (fine_train is None) != (fine_test is None) or (client_train is None) != (client_test is None):
        raise UserError(f"{name}: fine and client arrays come in pairs, one for train and one for test")
    if task is None:
        task = "classification" if y_train.dtype.kind in "iub" else "regression"
    y_train, y_test, classes = check_targets(name, y_train, y_test, task, classes)
    if fine_train is not None and fine_test is not None:
        fine_train, fine_test = distinct_subclasses(y_train, fine_train, y_test, fine_test)
    images = x_train.dtype == np.uint8
    if images and x_train.ndim == 3:
        x_train, x_test = x_train[:, None], x_test[:, None]
    if images and x_train.ndim == 4 and x_train.shape[-1] in (1, 3) and x_train.shape[1] not in (1, 3):
        x_train, x_test = (np.ascontiguousarray(np.moveaxis(x, -1, 1)) for x in (x_train, x_test))
    if not images and x_train.ndim == 4 and x_train.shape[-1] in (1, 3) and x_train.shape[1] not in (1, 3):
        channels, high, wide = x_train.shape[1:]
        log.warning(
            "%s: inputs of shape %s are %d channels of %d x %d numbers: for pictures move the channels first, or save "
            "uint8",
            name, x_train.shape[1:], channels, high, wide,
        )  # fmt: skip
    mean, std = channel_constants(x_train) if images else (None, None)
    return PooledDataset(
        name, x_train, y_train, x_test, y_test, task, classes, mean, std, fine_train, fine_test,
        client_train, client_test,
    )  # fmt: skip


def test_rows(client: np.ndarray, test: float, seed: int) -> np.ndarray:
    """Which rows are held out for testing, (N,) of bool.

    Args:
        client: of each row, (N,).
        test: the fraction of every client's rows.
        seed: of the draw; each client has its own.
    """
    out = np.zeros(len(client), dtype=bool)
    for c, rows in rows_of(client).items() if test else ():
        rng = np.random.default_rng([seed, *b"test", *c.encode()])
        out[rng.choice(rows, int(test * len(rows)), replace=False)] = True
    return out


def natural_pool(
    x: np.ndarray,
    y: np.ndarray,
    client: Sequence[Any] | np.ndarray,
    x_test: np.ndarray | None,
    y_test: np.ndarray | None,
    client_test: Sequence[Any] | np.ndarray | None,
    test: float,
    seed: int,
    task: Task | None,
    name: str,
    standardise: Standardise,
    classes: int = 0,
    numbers: bool = False,
    weights: np.ndarray | None = None,
) -> PooledDataset:
    """A pool whose rows say whose they are; a fraction of each client's rows becomes its test set if none is given."""
    who = client_names(client, f"{name}: client")
    if who.shape != (len(x),) or y.shape != (len(x),):
        raise UserError(f"{name}: x has {len(x)} rows, y has shape {y.shape}, client has shape {who.shape}")
    given = [a is not None for a in (x_test, y_test, client_test)]
    if any(given) != all(given):
        raise UserError(f"{name}: x_test, y_test and client_test come together")
    if x_test is None or y_test is None or client_test is None:
        check_fraction(f"{name}: test", test)
        check_seed(seed)
        out = test_rows(who, test, seed)
        weights = None if weights is None else weights[~out]
        x, x_test, y, y_test, who, client_test = (
            x[~out],
            x[out],
            y[~out],
            y[out],
            who[~out],
            who[out],
        )
    pool = make_pool(
        name, x, y, np.asarray(x_test), np.asarray(y_test), task=task,
        client_train=who, client_test=client_names(client_test, f"{name}: client_test"), classes=classes,
    )  # fmt: skip
    if weights is not None:
        pool = replace(pool, weights=np.concatenate([weights, np.ones(len(pool.y_test))]))
    return standardised(pool, standardise, numbers=numbers)
