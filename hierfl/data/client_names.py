"""Names of clients: text, exactly as it was given, so that no two clients become one."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np

from ..errors import UserError

#: characters of a name
MAX_NAME_LENGTH = 200
#: what spreadsheets call a last row that is no client
TOTALS = frozenset((
    "total", "totals", "grand total", "subtotal", "sub-total", "sum", "mean", "average", "avg", "median", "overall",
    "pooled", "all", "all sites", "gesamt", "insgesamt", "summe", "gesamtsumme", "mittelwert", "durchschnitt",
    "total g\u00e9n\u00e9ral", "somme", "moyenne", "ensemble", "totale", "somma", "media", "suma", "promedio",
    "totaal", "gemiddelde",
))  # fmt: skip


def client_names(values: Any, what: str) -> np.ndarray:
    """Every row's client as text, (N,).

    Text stays as it is; whole numbers, truth values and dates are written out. Floats are no names: 1 and 1.0, or two
    ids of nineteen digits, would become one.

    Args:
        values: an array, a column of a table or a list, (N,).
        what: what holds them, for messages.

    Raises:
        UserError: for decimals and other objects, values of two types that read alike, and names that are empty, too
            long, or hold control characters.
    """
    if values is None or np.ndim(values) == 0:
        raise UserError(f"{what} is {values!r}: it has a name for each row")
    # An array of a list's entries would have one type for all of them.
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        masked = int(np.ma.getmaskarray(values).sum())
        raise UserError(f"{what} has {masked} masked values: a row needs a client's name; fill or drop them first")
    given = np.array(values, dtype=object) if isinstance(values, list | tuple) else np.asarray(values)
    if given.dtype.kind == "O":
        values = given.tolist()
        if set(map(type, values)) == {str}:
            for name in sorted(set(values)):
                _check_name(name, what)
            return np.array(values, dtype=str)
        names = np.array([_name(value, what) for value in values], dtype=object)
        _check_distinct(given, names, what)
    elif given.dtype.kind == "S":
        try:
            names = np.char.decode(given, "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{what} holds bytes that are not text in UTF-8") from error
    elif given.dtype.kind in "biuUM":
        names = given
    else:
        raise _no_name(given.reshape(-1)[0] if given.size else given.dtype, what)
    for name in np.unique(names.astype(str)) if names.dtype.kind != "O" else sorted(set(names.tolist())):
        _check_name(str(name), what)
    return names.astype(str)


def refuse_totals(names: np.ndarray, what: str) -> None:
    """Refuses a table that ends with a row of totals or means, which is no client.

    Args:
        names: every row's client, (N,), in the table's order.
        what: what holds them, for messages.

    Raises:
        UserError: where the last row is the only one of a client that is called such as ``Total``.
    """
    last = str(names[-1]) if len(names) > 2 else ""
    if " ".join(last.casefold().split()).rstrip(" :.") in TOTALS and int((names == last).sum()) == 1:
        raise UserError(
            f"{what} names {last!r} in the last row alone: leave the row out if it sums up the others, or give the "
            "client another name"
        )


def _name(value: object, what: str) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | np.integer | np.bool_):
        return str(value)
    raise _no_name(value, what)


def _no_name(value: object, what: str) -> UserError:
    shown = value.item() if isinstance(value, np.generic) else value
    whole = isinstance(shown, float) and shown.is_integer()
    way = ", as .astype('int64') makes them" if whole else " (.astype(str), .astype(int))"
    return UserError(f"{what} holds {shown!r}: clients are named by text or whole numbers{way}")


def _check_distinct(given: np.ndarray, names: np.ndarray, what: str) -> None:
    """Refuses objects of two types that read alike, such as 1 and "1"."""
    types: dict[str, type] = {}
    for value, name in zip(given.tolist(), names.tolist(), strict=True):
        if types.setdefault(name, type(value)) is not type(value):
            raise UserError(f"{what} holds {name!r} as {types[name].__name__} and as {type(value).__name__}")


def _check_name(name: str, what: str) -> None:
    if not name:
        raise UserError(f"{what} holds an empty name")
    if len(name) > MAX_NAME_LENGTH:
        raise UserError(f"{what} holds a name of {len(name)} characters, more than {MAX_NAME_LENGTH}: {name[:40]!r}...")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise UserError(
            f"{what} holds {name!r}: names have no control characters: strip them, or of a table say --spellings join"
        )


def in_words(*names: str) -> str:
    """Clients as a sentence names them: a name that is a number reads as one with "client" before it."""
    joined = " + ".join(names)
    if any(any(map(str.isalpha, name)) for name in names):
        return joined
    return f"client{'s' * (len(names) > 1)} {joined}"


def rows_of(names: np.ndarray) -> dict[str, np.ndarray]:
    """The indices of each name in an array of names, (N,): ascending, the names in their own order."""
    if not len(names):
        return {}
    distinct, which = np.unique(names, return_inverse=True)
    order = np.argsort(which, kind="stable")
    return dict(zip(distinct.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=True))
