"""`hierfl sbc`: do the intervals of a model cover what its own prior draws?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.data import tables
from hierfl.data.column_table import outline
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError

from ..methods import Loaded, load

if TYPE_CHECKING:
    from hierfl.models.any_model.model_file import ModelMethod
    from hierfl.models.any_model.sbc.study import Calibration
    from hierfl.models.any_model.sbc.table import Rows

#: draws among which a truth is ranked, and how many independent ones the points of a fit shall be worth: 400 ranks are
#: twenty times the twenty parts that 90 % intervals cut
USUAL = {"draws": "399", "worth": "400"}
#: clients, and rows of each, where columns are made
SITES, ROWS = 20, 30
#: the picture
PICTURE = "sbc.png"


def sbc(
    reference: str, model: str | None, *, data: str | None, group: str | None, values: Sequence[str], sites: int | None,
    rows: int | None, replicates: int, settings: Mapping[str, str], seed: int, folder: Path, overwrite: bool,
    progress: bool, reading: Mapping[str, Any] | None = None,
) -> Calibration:  # fmt: skip
    """Runs a calibration, or what is left of it, and writes its files.

    Args:
        reference: the model file.
        model: of a file with several models.
        data, group: a table whose covariates are taken, and its clients' column; None makes covariates.
        values: of made columns, NAME=V,V,...
        sites, rows: clients, and rows of each, at most; None for all of a table, or for 20 and 30.
        replicates: data sets that are simulated and fitted.
        settings: of the fits.
        seed: of all draws.
        folder: for its files; what is there of the same calibration is not computed again.
        overwrite: whether another calibration that is there may be replaced.
        progress: whether to show it.
        reading: how the table is read.

    Raises:
        UserError: for a model, table or number that cannot be used.
    """
    for name, number in (("--replicates", replicates), ("--sites", sites), ("--rows", rows)):
        if number is not None and number < 1:
            raise UserError(f"{name} must be at least 1, not {number}")
    loaded = load(reference, model)
    function = model_of(loaded)
    from hierfl.models.any_model.sbc.blocks import Blocks
    from hierfl.models.any_model.sbc.study import RANKS, calibrate

    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --out is a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RANKS).is_file():
        raise UserError(f"{folder} is not the folder of a calibration; choose another --out")
    rows_of_model = _rows(function, data, group, values, sites, rows, seed, Reading.from_table(reading))
    blocks = Blocks(function, rows_of_model, seed, {**USUAL, **settings})
    question = {"method": loaded.name, "digest": loaded.digest, "settings": {**USUAL, **settings}, "seed": seed}
    if overwrite:
        (folder / RANKS).unlink(missing_ok=True)
    made = calibrate(loaded.name, blocks, rows_of_model.words, replicates, folder, question, progress)
    _draw(made, folder)
    return made


def model_of(loaded: Loaded) -> Any:
    """The function of a model file.

    Raises:
        UserError: for a method that is no model file's.
    """
    function = getattr(loaded.cls, "model_function", None)
    if function is None:
        raise UserError(f"{loaded.name} is a method: this takes a model file, a plain Pyro function of a batch")
    return cast("type[ModelMethod]", loaded.cls).model_function


def _rows(
    model: Any, data: str | None, group: str | None, values: Sequence[str], sites: int | None, rows: int | None,
    seed: int, reading: Reading,
) -> Rows:  # fmt: skip
    from hierfl.models.any_model.columns import columns_read
    from hierfl.models.any_model.sbc.table import made_rows, rows_of_table

    if data is None:
        if group is not None:
            raise UserError("--group names a column of --data FILE.csv")
        return made_rows(model, sites or SITES, rows or ROWS, _listed(values), seed)
    if values:
        raise UserError("--values is for columns that are made: with --data they are the table's")
    named = tables.TABLES.get(data)
    group = group or (named.client if named else None)
    if group is None:
        raise UserError(f"say which column of {data} names the clients: --group COLUMN")
    columns = columns_read(model, outline(tables.read(data, text={group}, reading=reading), group))
    df = tables.read(data, set(columns), {group}, reading=reading)
    return rows_of_table(df, group, model, sites, rows)


def _listed(values: Sequence[str]) -> dict[str, list[str]]:
    levels: dict[str, list[str]] = {}
    for text in values:
        name, equals, listed = text.partition("=")
        if not equals or not all(listed.split(",")):
            raise UserError(f"--values takes NAME=V,V,..., as in treated=0,1; not {text!r}")
        if name in levels:
            raise UserError(f"--values says column {name!r} twice")
        levels[name] = listed.split(",")
    return levels


def _draw(made: Calibration, folder: Path) -> None:
    from hierfl.models.any_model.sbc.ranks import band
    from hierfl.plots.ecdf import ecdf_differences

    ranked = made.ranked
    count = len(made.replicates) - len(made.failed)
    if count < 2 or not ranked:
        (folder / PICTURE).unlink(missing_ok=True)
        return
    ecdfs = np.stack([ranks.ecdf for ranks in ranked])
    ecdf_differences(
        folder / PICTURE, [ranks.name for ranks in ranked], ranked[0].points, ecdfs, band(count, made.draws),
        [row["off"] for row in made.rows()],
        f"{made.name}: ranks of {count} replicates; grey: where 95 % of uniform ranks are",
    )  # fmt: skip
