"""A draft's parts "data" and "columns" for a plain Pyro model: the columns that it reads, as a sample has them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hierfl.data import tables
from hierfl.data.column_design import ColumnDesign
from hierfl.data.column_names import one_column
from hierfl.data.column_table import levels_of
from hierfl.data.federated.dictionary import Dictionary
from hierfl.data.reading.options import Reading
from hierfl.data.spellings import Spellings
from hierfl.errors import UserError

from ..columns import INAPPLICABLE_OPTIONS
from ..config import flag
from ..methods import blame
from .study_data import MODEL, has_latents_of_rows

if TYPE_CHECKING:
    from hierfl.models.any_model.model_file import ModelMethod

    from ..methods import Loaded

log = logging.getLogger("hierfl")
#: rows that a site is taken to have at most, where a model has latents for each
MOST_ROWS = 50
#: options of ``hierfl federate study`` that say nothing of such a model, beside those of a run, and why
OF_OTHERS = {
    "group": "the rows of a site are one client, and no column names it",
    "network": "it has none",
    "head": "it has no network",
    "network_weights": "it has no network",
    "response_sd": "the model says how what is observed is distributed",
    "learn_sd": "the model says how what is observed is distributed",
}


def check_options(name: str, options: dict[str, Any], inputs: Sequence[str]) -> None:
    """Refuses options that would say nothing.

    Args:
        name: of the model.
        options: options of a run.
        inputs: what --x and --y have named.

    Raises:
        UserError: for such an option.
    """
    if any(inputs):
        raise UserError(f"--x and --y are not for a model such as {name}: it reads columns itself, as in batch['y']")
    for option, why in {**INAPPLICABLE_OPTIONS, **OF_OTHERS}.items():
        if option in options:
            raise UserError(f"{flag(option)} is not for a model such as {name}: {why}")


def model_parts(loaded: Loaded, sample: Path, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables "data" and "columns"; what is taken is removed from ``said``, which gets the bound of a site's rows.

    Args:
        loaded: the model.
        sample: a table that has the columns that the model reads; others of it are left alone.
        options: options of a run.

    Raises:
        UserError: for a sample that is no table, or lacks a column; for a model that cannot be read.
    """
    from hierfl.models.any_model.columns import columns_read

    if not sample.is_file():
        raise UserError(f"no file {sample}: a sample has the columns of a site's file, and no real rows")
    if not tables.is_table_file(str(sample)):
        raise UserError(f"{loaded.name} reads columns of a table: a sample is FILE.csv, not {sample}")
    reading = Reading.from_table(options.pop("reading", None))
    spelling_choice = options.pop("spellings", None) or "refuse"
    df = tables.read(str(sample), reading=reading)
    names = list(dict.fromkeys(map(str, df.columns)))
    levels = {name: text_levels for name in names if (text_levels := levels_of(one_column(df, name))) is not None}
    model = cast("type[ModelMethod]", loaded.cls).model_function
    try:
        columns = columns_read(model, ColumnDesign.from_columns(names, levels))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{loaded.source} does not run: {blame(loaded.source, error)}") from error
    if has_latents_of_rows(
        loaded.cls, ColumnDesign.from_columns(columns, {k: v for k, v in levels.items() if k in columns})
    ):
        options["most_rows"] = MOST_ROWS
        log.warning(
            "the model has latents for each row of a site, and sites are taken to have at most %d rows: edit most_rows "
            "in study.toml", MOST_ROWS,
        )  # fmt: skip
    df = tables.read(str(sample), set(columns), reading=reading)
    dictionary = Dictionary.from_sample(df, columns, spellings=Spellings.from_choice(spelling_choice))
    entries = {"kind": MODEL, "na": options.pop("na", None) or "refuse", "spellings": spelling_choice}
    return entries, dictionary.as_table()
