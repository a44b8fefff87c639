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
        UserError: for files of another form, without targets, and rows of text.
    """
    users = list(_users(root))
    if lacking := next((name for name, _, y in users if y is None), None):
        raise UserError(f"{shown(root)}: user {lacking!r} has no y, the targets of its rows")
    return _joined(users, root)


def read_new_leaf(root: Path) -> tuple[ClientArrays, bool]:
    """Rows to predict for of all users in a folder's files, and whether they have targets.

    Raises:
        UserError: for files of another form, targets of some users alone, and rows of text.
    """
    users = list(_users(root))
    with_targets, without = ([name for name, _, y in users if (y is None) == none] for none in (False, True))
    if with_targets and without:
        raise UserError(f"{shown(root)}: user {with_targets[0]!r} has y, and user {without[0]!r} has none")
    rows = [(name, x, np.zeros(len(x)) if y is None else y) for name, x, y in users]
    return _joined(rows, root), not without


def _joined(users: list[tuple[str, Any, Any]], root: Path) -> ClientArrays:
    arrays = joined_clients(users, shown(root))
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
            if (user := next((name for name in names if "x" not in data[name]), None)) is not None:
                raise ValueError(f"user {user!r} has no x")
            users = [(name, data[name]["x"], data[name].get("y")) for name in names]
            declared = table.get("num_samples", counted := [len(x if y is None else y) for _, x, y in users])
            if declared != counted:  # a file that was cut and mended has fewer rows than it says
                raise ValueError(_unlike(names, declared, counted))
        for name, x, y in users:
            if x and isinstance(x[0], str):
                raise UserError(f"{shown(path)} holds text: make token ids of it, an .npz or arrays with inputs='ids'")
            try:
                yield name, np.array(x, dtype=np.float32), None if y is None else np.array(y)
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
