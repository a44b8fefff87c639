"""Runs of models that read a table's columns by name: what is usual for them, and their data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from hierfl.data import tables
from hierfl.data.column_federation import column_federation
from hierfl.data.column_table import outline
from hierfl.data.federation import Federation
from hierfl.data.formula.missing import whole_rows
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.method.capabilities import ReadsColumns
from hierfl.nn.architecture import Architecture

from .config import RunConfig, flag

if TYPE_CHECKING:
    from hierfl.models.any_model.model_file import ModelMethod

    from .methods import Loaded

log = logging.getLogger("hierfl")
#: what a configuration calls the network of such a model
NETWORK = "columns"
#: options that say nothing of such a model, and where to say it instead
INAPPLICABLE_OPTIONS = {
    "formula": "the model is the file's",
    "family": "the model says how what is observed is distributed",
    "known_se": "the model reads columns itself, as in batch['se']",
    "event": "the model reads columns itself, as in batch['event']",
    "weights": "the model weights rows itself, with poutine.scale",
    "precision_weights": "the model says how what is observed is distributed",
    "dispersion": "the model says how what is observed is distributed",
    "zero_inflation": "the model says how what is observed is distributed",
    "correlation": "the model says how what is observed is distributed",
    "patient": "it has no noise that hides patients",
    "test_fraction": "nothing is held out: leave-one-out is in the report",
    "validation_fraction": "nothing is held out: leave-one-out is in the report",
    "evaluate_every": "nothing is held out, so that no round is evaluated",
    "draws": "say --set draws=N for the draws of its posterior",
    "final": "its draws are of the joint posterior already",
}


def check_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuses options that would say nothing.

    Raises:
        UserError: for such an option.
    """
    for option, why in INAPPLICABLE_OPTIONS.items():
        if option in given:
            raise UserError(f"{flag(option)} is not for a model such as {name}: {why}")


def usual_of_columns(cls: type[Method], data: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is usual for a model on a table; rounds end a fit that has not ended by itself.

    Raises:
        UserError: where nothing says which column names the clients.
    """
    named = tables.TABLES.get(data)
    group = given.get("group", named.client if named else None)
    if group is None:
        raise UserError(f"say which column of {data} names the clients: --group COLUMN")
    rounds = cast("ReadsColumns", cls).usual_rounds
    return {
        "clients": 0, "split": "natural", "network": NETWORK, "validation_fraction": 0.0, "group": group,
        "rounds": rounds, "chunk": 1000, "evaluate_every": rounds, "na": "refuse", "spellings": "refuse",
    }  # fmt: skip


def from_columns(run: RunConfig, loaded: Loaded) -> tuple[Federation, Architecture]:
    """The data of a run: the columns that its model reads."""
    from hierfl.models.any_model.columns import checked, columns_read

    group, reading = cast(str, run.group), Reading.from_table(run.reading)
    model = cast("type[ModelMethod]", loaded.cls).model_function
    guide = getattr(loaded.cls, "guide_function", None)
    columns = columns_read(model, outline(tables.read(run.data, text={group}, reading=reading), group), guide)
    df = tables.read(run.data, set(columns), {group}, reading=reading)
    left_out = None
    if run.na == "drop":
        kept = whole_rows(df, columns)
        if not kept.any():
            raise UserError("every row lacks a value of a column that the model reads: none would be left")
        lost = df.loc[~kept, group].astype(str).value_counts()
        left_out = {str(name): int(count) for name, count in sorted(lost.items())}
        df = df[kept].reset_index(drop=True)
    federation, design = column_federation(df, group, columns, run.spellings or "refuse", tables.stem(run.data))
    facts = {**federation.about, "split": f"by {group}"} | ({} if left_out is None else {"left_out": left_out})
    return replace(federation, about=facts), checked(model, federation, design)
