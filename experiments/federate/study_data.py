"""What the files of a study's sites are, as study.toml says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import torch

from hierfl.data.column_design import ColumnDesign
from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Dictionary
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.model_data import ModelData, design_of_dictionary
from hierfl.data.federated.study_data import SiteData, StudyData
from hierfl.data.formula.missing import Missing
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.data.spellings import Spellings
from hierfl.errors import UserError, unknown
from hierfl.inference.method.capabilities import is_tabular, reads_columns

from .study_rows import most_rows
from .study_weights import agreed_weights

if TYPE_CHECKING:
    from hierfl.inference import Method
    from hierfl.models.any_model.model_file import ModelMethod

    from ..methods import Loaded

#: the kind of data of a plain Pyro model
MODEL = "model"
#: rows by which latents of rows show
PROBE_ROWS = 2


def check_kind(loaded: Loaded, kind: str, path: Path) -> None:
    """Whether a method is for such data.

    Raises:
        UserError: where it is not.
    """
    if reads_columns(loaded.cls) != (kind == MODEL):
        words = f"is a plain model: data.kind is {MODEL!r}" if reads_columns(loaded.cls) else "is no plain model"
        raise UserError(f"{path}: {loaded.name} {words}, not {kind!r}")
    if kind != MODEL and is_tabular(loaded.cls) != (kind == "formula"):
        raise UserError(f"{path}: {loaded.name} is {'' if is_tabular(loaded.cls) else 'not '}for data of a formula")


def data_of(table: Mapping[str, Any], path: Path, loaded: Loaded) -> StudyData:
    """What the sites' files are.

    Args:
        table: of study.toml.
        path: of the file.
        loaded: the study's method: a plain model says which columns it reads.

    Raises:
        UserError: for what is no such description.
    """
    entries, seed, name = table["data"], table["run"]["seed"], table["name"]
    common = {"validation": entries.get("validation_fraction", 0.0), "seed": seed, "name": name}
    if "network" in entries:
        common |= {"head": entries.get("head", "linear"), "weights": agreed_weights(entries, path)}
    if entries["kind"] == "arrays":
        common |= {name: entries[name] for name in ("network", "response_sd")}
        common["learn_sd"] = entries.get("learn_sd", "no")
        return ArrayData(tuple(entries["inputs"]), entries["images"], entries["classes"], **common)
    spellings = Spellings.from_choice(
        entries.get("spellings", "keep")
    )  # studies from before this entry kept them apart
    dictionary = Dictionary.from_table(table.get("columns", {}), path, spellings)
    if entries["kind"] == MODEL:
        return _model_data(dictionary, loaded, table, path)
    common |= {
        "test": entries["test_fraction"],
        **{k: v for k, v in table["privacy"].items() if k.startswith("patient")},
    }
    if entries["kind"] == "formula":
        roles = ("event", "weights", "precision_weights", "correlation")
        more = RowColumns(entries["known_se"], *(entries.get(role, "") for role in roles))
        formula = StudyFormula(entries["formula"], dictionary, entries["family"], more)
        return FormulaData(formula, na=_missing(entries, path), **common)
    return ColumnData(
        dictionary, tuple(entries["x"]), entries["y"], network=entries["network"], response_sd=entries["response_sd"],
        learn_sd=entries.get("learn_sd", "no"), **common,
    )  # fmt: skip


def model_columns(cls: type[Method], dictionary: Dictionary) -> tuple[str, ...]:
    """Columns of a dictionary that a plain model reads, in the dictionary's order.

    Raises:
        UserError: for a model that reads none, or reads another one; and for a model that does not run.
    """
    from hierfl.models.any_model.columns import columns_read

    usable = [name for name, column in dictionary.columns.items() if column.kind != "name"]
    return columns_read(cast("type[ModelMethod]", cls).model_function, design_of_dictionary(dictionary, usable))


def _model_data(dictionary: Dictionary, loaded: Loaded, table: Mapping[str, Any], path: Path) -> ModelData:
    """The data of a plain model; its latents of rows are for as many rows as a site has at most."""
    if table["privacy"]["new_clients"]:
        raise UserError(f"{path}: a new client of a plain model begins at its prior: new_clients = false")
    try:
        design = design_of_dictionary(dictionary, model_columns(loaded.cls, dictionary))
        design = _with_rows(loaded.cls, design, most_rows(table["privacy"]))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    na = _missing(table["data"], path)
    return ModelData(dictionary, design, table["name"], na=na, seed=table["run"]["seed"])


def has_latents_of_rows(cls: type[Method], design: ColumnDesign) -> bool:
    """Whether the number of a plain model's latents depends on how many rows a site has."""
    from hierfl.models.any_model.sites import read_model

    return bool(read_model(cast("type[ModelMethod]", cls).model_function, replace(design, rows=PROBE_ROWS)).rows)


def _with_rows(cls: type[Method], design: ColumnDesign, most: int) -> ColumnDesign:
    """The design of a model that may have latents of every row.

    Raises:
        UserError: where it has, and nothing says how many rows there are.
    """
    by_rows = has_latents_of_rows(cls, design)
    if by_rows and not most:
        raise UserError(
            "the model has latents for each row of a site: all sites agree on how many rows one has at most, "
            "most_rows in the part privacy"
        )
    return replace(design, rows=most) if by_rows else design


def check_rows(cls: type[Method], design: ColumnDesign, site_data: SiteData, path: Path) -> None:
    """Whether a plain model can be fitted to a site's rows.

    Raises:
        UserError: one line that names the model's site; see :func:`~hierfl.models.any_model.checking.check_model`.
    """
    from hierfl.models.any_model.checking import check_model

    federation = site_data.federation([]).to(dtype=torch.float64)
    try:
        check_model(cast("type[ModelMethod]", cls).model_function, design, federation.batch([0]))
    except UserError as error:
        raise UserError(f"{path}: the model does not fit these rows: {error}") from error


def _missing(entries: Mapping[str, Any], path: Path) -> Missing:
    """What becomes of rows that lack a value."""
    na = entries.get("na", "refuse")
    if na not in get_args(Missing):
        raise unknown(f"value of data.na in {path}:", na, get_args(Missing))
    return cast("Missing", na)
