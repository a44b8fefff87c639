"""Which studies can have noise for differential privacy, and what they need beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.model_data import ModelData
from hierfl.data.federated.study_data import StudyData
from hierfl.errors import UserError
from hierfl.inference.options import Options


def refuse_noiseless(table: Mapping[str, Any], data: StudyData, options: Options, path: Path) -> None:
    """Refuses a study with noise that something would leave without any.

    Args:
        table: of study.toml.
        data: what its sites' files are.
        options: the study's.
        path: of the file.

    Raises:
        UserError: in one line, with the remedy.
    """
    privacy = table["privacy"]
    patient = privacy.get("patient", "")
    if options.dp == "none":
        if patient or options.patient_rows > 1:
            raise UserError(f'{path}: patient and patient_rows say whom noise hides: dp = "site" as well')
        return
    if isinstance(data, ModelData):
        raise UserError(
            f"{path}: messages of a plain model have no bound, and so no noise: dp is for formulas and networks; "
            "masked = true hides one site's part of a sum"
        )
    if options.dp == "client" and not options.masked:
        raise UserError(f'{path}: dp = "client" is noise on sums over sites: masked = true as well')
    if privacy["new_clients"]:
        raise UserError(f"{path}: what a new client begins with has no share of epsilon: new_clients = false with dp")
    entries = table["data"]
    for name in ("test_fraction", "validation_fraction"):
        if entries.get(name):
            raise UserError(
                f"{path}: rows that are held out depend on how many there are, and nothing is scored on them with dp: "
                f"{name} = 0"
            )
    if patient and not isinstance(data, FormulaData | ColumnData):
        raise UserError(
            f"{path}: patient names a column of a table, and the sites have arrays: an example is a patient"
        )
    if options.patient_rows > 1 and not patient and not isinstance(data, ArrayData):
        raise UserError(
            f"{path}: patient_rows = {options.patient_rows} rows of whom? patient = the column that says it"
        )
    if isinstance(data, ArrayData) and data.learns:
        raise UserError(f"{path}: arrays' responses are standardised by sums, which have no share: learn_sd = no")
    if lacking := _without_range(data):
        raise UserError(
            f"{path}: with dp the dictionary alone says where rows lie: it lacks least and most of {', '.join(lacking)}"
        )


def _without_range(data: StudyData) -> list[str]:
    """Columns of numbers that are used and have no range."""
    if isinstance(data, FormulaData):
        used, columns = set(data.formula.used), data.formula.columns
    elif isinstance(data, ColumnData):
        used, columns = {*data.x, data.y}, data.dictionary.columns
    else:
        return []
    numbers = [name for name in sorted(used) if columns[name].kind in ("number", "whole")]
    return [name for name in numbers if columns[name].least is None or columns[name].most is None]
