"""New rows: a table, an .npz, or a folder of pictures or clients' arrays; read as the run's own data were."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.data import tables
from hierfl.data.client_names import client_names
from hierfl.data.far_numbers import sure_decimals
from hierfl.data.federation import Federation
from hierfl.data.folders.images import read_as
from hierfl.data.folders.load import new_client_rows
from hierfl.data.frames import is_table
from hierfl.data.readers.npz import read_npz
from hierfl.data.readers.pictures import is_picture, picture_files
from hierfl.data.reading.dates import DATES
from hierfl.data.reading.options import OF_FILES, Reading
from hierfl.data.reading.read import is_text, unused_options
from hierfl.data.reading.remedies import option_flags
from hierfl.data.reading.saved_set import is_saved
from hierfl.errors import UserError
from hierfl.files import shown

from .codes import refuse_codes, spread_of_inputs, warn_of_codes

if TYPE_CHECKING:
    import pandas as pd

    from ..config import RunConfig


@dataclass(frozen=True)
class NewRows:
    """Rows of a file.

    Attributes:
        x: raw inputs, (n, *event), or a table.
        owner: the client of each, (n,); None where the file does not say.
        y: responses or labels; None where the file has none.
        files: names of pictures; empty of other rows.
    """

    x: Any
    owner: np.ndarray | None
    y: Any = None
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the rows in messages."""
        return "the request"

    def for_client(self, client: str) -> NewRows:
        """A client's; all where the file does not say whose they are."""
        if self.owner is None:
            return self
        mine = self.owner == client
        x = self.x[mine]
        return NewRows(x, self.owner[mine], None if self.y is None else self.y[mine])


def table_rows(
    path: Path | NewRows, run: RunConfig, text: Collection[str], reading: Reading | None,
    used: Collection[str] = (), spread: Mapping[str, Sequence[float]] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A table, read as the run's own was where nothing is said.

    Args:
        path: of the table; or its rows, whose values have types.
        run: whose reading and columns of names are meant.
        text: columns of names, such as the clients'.
        reading: options given for this file; None for none. What they leave open is as for the run's own.
        used: columns whose values are used, as far as they are there.
        spread: mean and standard deviation of the fitted rows' columns, as far as they are known.

    Raises:
        UserError: for a file that is no table, or cannot be read.
    """
    if isinstance(path, NewRows):
        df = _named(path, text)
        types = Reading.from_table(run.reading).types
        _refuse_written_dates(df, [name for name in used if types.get(name) in DATES])
        numbers = {name for name, kind in types.items() if kind == "number"}
        refuse_codes(df, set(used) - numbers)
        warn_of_codes(df, set(used) - numbers)
        return df
    if not tables.is_table_file(str(path)):
        raise UserError(f"{shown(path)} is no table: the run's data are rows of columns by name")
    unused = unused_options(str(path))
    of_run = {name: value for name, value in (run.reading or {}).items() if name not in unused}
    how = _reading_of_new_rows(Reading.from_table(of_run), reading)
    text = {name for name in text if name}
    plain = replace(how, types={}, order={}, reference={})
    unchecked = tables.read(str(path), text=text, reading=plain)
    header = set(unchecked.columns)
    declared: dict[str, Any] = {
        part: {name: value for name, value in getattr(how, part).items() if name in header}
        for part in ("types", "order", "reference")
    }
    names = [name for name in used if name in header]
    sure = sure_decimals(unchecked, spread or {})
    df = tables.read(str(path), names, text & header, reading=replace(how, **declared), notes=False, decimals=sure)
    warn_of_codes(df, set(names) - {name for name, kind in how.types.items() if kind == "number"})
    return df


def _refuse_written_dates(df: pd.DataFrame, names: Collection[str]) -> None:
    """Values of a request have types, and none is a date: the fit has counted the days of these columns."""
    for name in names:
        if name in df.columns and is_text(df[name]):
            raise UserError(
                f"column {name!r} is a date of the fit, and holds text such as {df[name].dropna().iloc[0]!r}: "
                "write days since 1970-01-01, such as 19754 for 2024-02-01"
            )


def _reading_of_new_rows(of_run: Reading, given: Reading | None) -> Reading:
    """The options of reading that new rows of a run have.

    Options of the file, such as its decimal mark, are the run's if none was given, since they describe one file
    together. Missing values and types are the run's for every column for which nothing was given. A reference is a
    level of the fit, which new rows may lack: its column is a category.
    """
    given = given or Reading()
    file = given if any(getattr(given, name) for name in OF_FILES) else of_run
    types = {**of_run.types, **dict.fromkeys(of_run.reference, "category"), **given.types}
    order = {name: levels for name, levels in of_run.order.items() if name not in given.types}
    return Reading(
        **{name: getattr(file, name) for name in OF_FILES},
        na=given.na or of_run.na, types=types, order=order,  # type: ignore[arg-type]
    )  # fmt: skip


def network_rows(
    path: Path | NewRows, federation: Federation, run: RunConfig, group: str | None, reading: Reading | None
) -> NewRows:
    """Rows for a network's run.

    Raises:
        UserError: for a file that does not hold what the run's inputs are.
    """
    facts = federation.about
    if isinstance(path, NewRows):
        if not is_table(path.x):
            return path
        if facts.get("columns") is None:
            raise UserError("the run is of arrays: say x, not rows")
        return _of_table(path, federation, run, group, reading)
    if not path.exists():
        raise UserError(f"no file {shown(path)}")
    if path.is_dir() and not is_saved(path) and (rows := new_client_rows(path)) is not None:
        _refuse(path, reading, "a folder of arrays", group)
        x, y, names_of_rows = rows
        return NewRows(x, client_names(names_of_rows, f"clients of {shown(path)}"), y)
    if (path.is_dir() and not is_saved(path)) or is_picture(path):
        what = "a folder of pictures" if path.is_dir() else "a picture"
        _refuse(path, reading, what, group)
        if len(federation.event_shape) != 3:
            raise UserError(f"{shown(path)} is {what}, and an input is {tuple(federation.event_shape)}")
        paths, names = picture_files(path)
        owner = None if names is None else np.array(names)
        x = read_as(paths, tuple(federation.event_shape), resize=run.image_size is not None)
        return NewRows(x, owner, _labels(path, paths), _names(path, paths))
    if path.suffix.lower() == ".npz":
        _refuse(path, reading, "arrays", group)
        arrays = read_npz(path, ("x",), ("client", "y"))
        owner = client_names(arrays["client"], f"client of {path.name}") if "client" in arrays else None
        for name in ("client", "y"):
            if name in arrays and len(arrays[name]) != len(arrays["x"]):
                raise UserError(f"{shown(path)} has {len(arrays['x'])} x, and {len(arrays[name])} {name}")
        return NewRows(arrays["x"], owner, arrays.get("y"))
    if facts.get("columns") is None:
        raise UserError(f"the run is of arrays: --data takes FILE.npz with x, a picture or a folder, not {shown(path)}")
    return _of_table(path, federation, run, group, reading)


def _of_table(
    path: Path | NewRows, federation: Federation, run: RunConfig, group: str | None, reading: Reading | None
) -> NewRows:
    facts = federation.about
    column, columns = group or facts.get("client") or run.group, list(facts["columns"])
    df = table_rows(path, run, {column or ""}, reading, columns, spread_of_inputs(federation))
    if group is not None and group not in df.columns:
        raise UserError(f"{path.name} has no column {group!r} that says whose rows are whose")
    owner = client_names(df[column], f"column {column!r}") if column in df.columns else None
    response = facts.get("response")
    return NewRows(df, owner, df[response].to_numpy() if response in df.columns else None)


def _named(rows: NewRows, text: Collection[str]) -> pd.DataFrame:
    """A table whose columns of names are text."""
    if not is_table(rows.x):
        raise UserError("the run's data are rows of columns by name: say rows, not x")
    df: pd.DataFrame = rows.x
    return df.assign(**{name: client_names(df[name], f"column {name!r}") for name in text if name in df.columns})


def _names(folder: Path, paths: list[Path]) -> tuple[str, ...]:
    """Names of pictures: with those of their labels' folders, where they lie in such."""
    if not folder.is_dir():
        return tuple(path.name for path in paths)
    return tuple("/".join(path.relative_to(folder).parts[1:]) or path.name for path in paths)


def _labels(folder: Path, paths: list[Path]) -> np.ndarray | None:
    """The labels of pictures in FOLDER/CLIENT/LABEL, as training data lie; None of others."""
    labelled = folder.is_dir() and len(paths[0].relative_to(folder).parts) == 3
    return np.array([path.parent.name for path in paths]) if labelled else None


def _refuse(path: Path, reading: Reading | None, what: str, group: str | None) -> None:
    """Arrays have types, and say themselves whose they are."""
    flags = option_flags(reading.as_table()) if reading is not None else []
    if flags or group is not None:
        raise UserError(f"{flags[0] if flags else '--group'} is for tables, and {shown(path)} is {what}")
