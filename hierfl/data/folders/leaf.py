"""LEAF's json files (Caldas et al., 2018), such as FEMNIST's: users, and their data."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files import shown
from ..readers.contents import read_bytes
from ..readers.limits import reading
from .clients import ClientArrays, joined_clients

log = logging.getLogger("hierfl")
#: length of FEMNIST's rows, 28 x 28 pictures
FEMNIST = 784


def has_json(root: Path) -> bool:
    """Whether a folder has json files."""
    return any(root.glob("*.json"))


def read_leaf(root: Path) -> ClientArrays:
    """Rows of all users in a folder's files.

    Raises:
        UserError: for files of another form, and rows of text.
    """
    arrays = joined_clients(_users(root), shown(root))
    if arrays.x.ndim == 2 and arrays.x.shape[1] == FEMNIST:
        log.warning("%s: rows of 784 numbers are read as pictures of 28 x 28", shown(root))
        arrays = arrays._replace(x=arrays.x.reshape(-1, 1, 28, 28))
    return arrays


def _users(root: Path) -> Iterator[tuple[str, Any, Any]]:
    for path in sorted(root.glob("*.json")):
        with reading(path, "json file of LEAF"):
            text = read_bytes(path, "a json file of LEAF").decode("utf-8-sig")
            table = json.loads(text, object_pairs_hook=_once)
            if not isinstance(table, dict) or not isinstance(data := table.get("user_data"), dict):
                raise ValueError("it has no user_data")
            names = [str(name) for name in table.get("users", data)]
            for present, absent, lacking in (
                ("users", "user_data", {*names} - {*data}),
                ("user_data", "users", {*data} - {*names}),
            ):
                if lacking:
                    raise ValueError(f"{present} has {min(lacking)!r}, and {absent} has not")
            users = [(name, data[name]["x"], data[name]["y"]) for name in names]
            declared = table.get("num_samples", counted := [len(y) for _, _, y in users])
            if declared != counted:  # a file that was cut and mended has fewer rows than it says
                raise ValueError(_unlike(names, declared, counted))
        for name, x, y in users:
            if x and isinstance(x[0], str):
                raise UserError(f"{shown(path)} holds text: make token ids of it, an .npz or arrays with inputs='ids'")
            try:
                yield name, np.array(x, dtype=np.float32), np.array(y)
            except (ValueError, TypeError) as error:
                what = f"{shown(path)}: the rows of user {name!r}"
                raise UserError(f"{what} are not all numbers, or of different lengths") from error


def _unlike(names: list[str], declared: Any, counted: list[int]) -> str:
    """What is wrong with the numbers of rows that a file says its users have."""
    if not isinstance(declared, list) or len(declared) != len(names):
        return "num_samples is not a list with a number for each of its users"
    rows = zip(names, declared, counted, strict=True)
    name, declared_rows, counted_rows = next(row for row in rows if row[1] != row[2])
    return f"num_samples says that user {name!r} has {declared_rows} rows, and there are {counted_rows}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a json file, none of whose names comes twice: of two the first would be lost."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r} comes twice in one object")
    return result
