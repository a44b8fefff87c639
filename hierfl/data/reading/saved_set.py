"""Data sets that Hugging Face's ``datasets`` has saved (``save_to_disk``): Arrow files, and json that lists them.

FOLDER/state.json           {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...]}
FOLDER/dataset_info.json    {"features": {"label": {"_type": "ClassLabel", "names": [...]}, ...}}
FOLDER/dataset_dict.json    {"splits": ["train", "test"]}: each is such a folder
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UserError
from ...files import shown
from ...schema import AnyOf, Number, Schema, read_json
from ..readers.limits import check_size
from .arrow import OF_TEXT, arrow_table, cells_of_columns
from .cells import Cells
from .decoded import contents
from .options import Reading

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
ANYTHING = AnyOf(Number(), str, bool, None, list, dict)
STATE_SCHEMA: Schema = {"_data_files": [{"filename": str, "*": ANYTHING}], "*": ANYTHING}
SPLITS_SCHEMA: Schema = {"splits": [str], "*": ANYTHING}


def is_saved(path: Path | str) -> bool:
    """Whether a path is the folder of such a data set."""
    try:
        return any((Path(path) / name).is_file() for name in (STATE, SPLITS))
    except (OSError, ValueError):  # no path at all
        return False


def saved_cells(path: Path | str, options: Reading) -> Cells:
    """The cells of a data set, file after file. Classes are called as the data set calls them.

    Args:
        path: of its folder.
        options: how tables are read; of these files nothing is said of their text.

    Raises:
        UserError: for a folder of several splits, without pyarrow, and for damaged files.
    """
    folder, data = Path(path), shown(path)
    if flags := [name for name in OF_TEXT if getattr(options, name)]:
        raise UserError(f"{data} is no text: {flags[0]} says nothing of it")
    if not (folder / STATE).is_file():
        splits = read_json(folder / SPLITS, SPLITS_SCHEMA)["splits"]
        raise UserError(f"{data} holds the splits {', '.join(splits)}: name one, such as {data}/{splits[0]}")
    columns: dict[str, list[Any]] = {}
    total = 0
    for number, entry in enumerate(read_json(folder / STATE, STATE_SCHEMA)["_data_files"]):
        name = entry["filename"]
        if name != Path(name).name or name in ("", ".", ".."):
            raise UserError(f"{data}/{STATE} names {name!r}, which is no file of that folder")
        table = arrow_table(shown(folder / name), contents(folder / name))
        total += table.nbytes
        check_size(folder, total, "its files together")
        if number and list(columns) != list(map(str, table.column_names)):
            raise UserError(f"{shown(folder / name)} has other columns than the files before")
        for column, values in zip(map(str, table.column_names), table.columns, strict=True):
            columns.setdefault(column, []).extend(values.to_pylist())
    for column, names in _classes(folder).items():
        if column in columns:
            columns[column] = [_called(value, names, column, data) for value in columns[column]]
    return cells_of_columns(data, columns)


def _classes(folder: Path) -> dict[str, list[str]]:
    """Names of the classes of each column that has some."""
    if not (folder / INFO).is_file():
        return {}
    features = read_json(folder / INFO).get("features")
    items = features.items() if isinstance(features, dict) else ()
    return {
        str(name): list(map(str, feature["names"]))
        for name, feature in items
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
    }


def _called(value: Any, names: list[str], column: str, data: str) -> str | None:
    """A class's name; None for one that is not known, which ``datasets`` writes as -1."""
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise UserError(f"{data}: column {column!r} holds {value!r}, and has {len(names)} classes")
    return names[value]
