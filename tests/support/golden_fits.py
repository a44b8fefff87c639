"""Golden fits by the call ``mixed_model``: every table that can be asked of one, as csv files."""

from __future__ import annotations

import argparse
import json
import logging
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

#: whose random effects are asked for, and whose model predicts
LEVELS, PREDICTIONS = ("client", "patient", "region"), ("client", "population", "new")


def fit(words: Sequence[str], df: pd.DataFrame, folder: Path) -> None:
    """Fits a model, and writes what it says of itself into a folder; a question's refusal is written instead.

    Args:
        words: formula and options of ``mixed_model``; ``--than FORMULA`` with ``--test`` and ``--replicates``
            compares it with another model of the same settings.
        df: the table.
        folder: where to.

    Raises:
        UserError: where the model is refused.
    """
    from hierfl import mixed_model

    parser = argparse.ArgumentParser(prog="fit")
    parser.add_argument("formula")
    for name in ("family", "client", "known-se", "event", "weights", "na"):
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--than")
    parser.add_argument("--test", default="auto")
    parser.add_argument("--replicates", type=int, default=2)
    given = vars(parser.parse_args(list(words)))
    formula, than, test, replicates = (given.pop(name) for name in ("formula", "than", "test", "replicates"))
    settings = {key: _value(text) for key, _, text in (setting.partition("=") for setting in given.pop("set"))}
    with logged(folder / "log.txt"):
        fitted = mixed_model(df, formula, **given, **settings)
        _asked(folder, fitted, df)
        if than:
            other = mixed_model(df, than, **given, **settings)
            _answer(lambda: fitted.compare(other, test=test, replicates=replicates), folder / "compare.csv")


def _asked(folder: Path, fitted: Any, df: pd.DataFrame) -> None:
    """Writes what a fit says of itself."""
    tensors = {"shared": fitted.run.shared, "personal": fitted.run.personal}
    arrays: dict[str, Any] = {f"{where}/{k}": v.numpy() for where, of in tensors.items() for k, v in of.items()}
    np.savez_compressed(folder / "fit.npz", **arrays)
    summary = fitted.summary()
    (folder / "summary.txt").write_text(repr(summary))
    numbers = {key: float(value) for key, value in summary.numbers.items() if isinstance(value, int | float)}
    (folder / "numbers.json").write_text(json.dumps(numbers, indent=1))
    questions: dict[str, Callable[[], pd.DataFrame]] = {
        "summary": lambda: summary.table,
        "summary-80": lambda: fitted.summary(level=0.8).table,
        "shrinkage": fitted.shrinkage,
        **{f"ranef-{level}": lambda level=level: fitted.ranef(level) for level in LEVELS},
        **{f"predict-{level}": lambda level=level: fitted.predict(df, level) for level in PREDICTIONS},
        "predict-means": lambda: fitted.predict(df[::3], interval=None),
    }
    for name, ask in questions.items():
        _answer(ask, folder / f"{name}.csv")


def _answer(ask: Callable[[], pd.DataFrame], path: Path) -> None:
    from hierfl.errors import UserError

    try:
        ask().to_csv(path)
    except UserError as error:
        path.with_suffix(".txt").write_text(f"{type(error).__name__}: {error}")


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Writes what hierfl warns of into a file, instead of where it usually goes."""
    log, handler = logging.getLogger("hierfl"), logging.FileHandler(path)
    log.addHandler(handler)
    try:
        with patch.object(log, "propagate", False):
            yield
    finally:
        log.removeHandler(handler)
        handler.close()


def _value(text: str) -> Any:
    """A setting as Python has it."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text
