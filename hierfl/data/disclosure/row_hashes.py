"""Which rows a study selects, as keyed hashes of every cell: two studies' rows can be compared, and are not kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ..arrays import test_rows
from ..federated.array_data import ArraySite
from ..federated.column_data import ColumnSite
from ..federated.design import MEAN_AND_SD
from ..federated.formula_data import FormulaSite
from ..federated.model_data import ModelSite
from ..federated.study_data import SiteData
from ..federated.sums import NamedSums
from .check import MIN_DESIGN_ROWS, own_rows
from .column_hashes import COLUMN, column_hashes, least_column_difference
from .own_rows import OwnRows

if TYPE_CHECKING:
    pass

#: hashes of a column's cells, {column: (n,) int64}; beside them :data:`PART`, conditions behind :data:`SELECTED`, and
#: columns of the design behind :data:`.column_hashes.COLUMN`
RowHashes: TypeAlias = Mapping[str, NDArray[np.integer]]
#: no column: the part that each row is of, a number of :data:`PARTS`
PART, PARTS = ":part", {"train": 0, "validation": 1, "test": 2}
#: no column: begins the name of a condition, 1 where it selects a row and 0 where it leaves one
SELECTED = ":selected "
#: in a condition that depends on sums over all sites
CENTRED = re.compile(rf"(?<![\w.`])({'|'.join(MEAN_AND_SD)})\s*\(")
#: columns tell rows apart where at least so many of their combinations differ; the second beside columns that disagree
IDENTIFYING, BESIDE_OTHERS = 0.5, 0.9
#: share of the smaller set in which all other columns must agree to be taken for the same rows
NEARLY_ALL = 0.95
_MIX = np.uint64(0x9E3779B97F4A7C15)


def row_hashes(site: SiteData, secret: bytes, totals: Sequence[NamedSums] = ()) -> dict[str, NDArray[np.integer]]:
    """Hashes of a site's rows.

    Args:
        site: its rows, read for a study. Of a table all columns of the file count, whichever the study uses.
        secret: the key, up to 64 bytes.
        totals: the sums over all sites that are known: conditions of centred columns select rows by them.

    Returns:
        Of a table {column: (n,)}, of arrays those of inputs and targets; the parts of the rows; and which of them the
        formula's conditions select, and hashes of the columns that it makes.
    """
    columns: Mapping[str, np.ndarray] = {}
    selections: Mapping[str, np.ndarray] = {}
    if isinstance(site, ArraySite):
        pool = site.pool
        inputs = np.concatenate([pool.x_train, pool.x_test])
        columns_hashed = {
            "inputs": _hashed([row.tobytes() for row in np.ascontiguousarray(inputs)], b"inputs", secret),
            "targets": _column("targets", np.concatenate([pool.y_train, pool.y_test]), secret),
        }
        own, n, out = own_rows(site), len(inputs), np.arange(len(inputs)) >= len(pool.x_train)
    else:
        assert isinstance(site, FormulaSite | ColumnSite | ModelSite)
        columns_hashed = {str(name): _column(str(name), site.file[name].to_numpy(), secret) for name in site.file}
        n, out = len(site.file), test_rows(np.full(len(site.file), site.client), site.study.test, site.study.seed)
        own = own_rows(site) if site.study.validation else OwnRows(n, {}, {}, {})
        if isinstance(site, FormulaSite) and n >= MIN_DESIGN_ROWS:
            selections, columns = _made(site, secret, totals)
    part = np.where(out, PARTS["test"], PARTS["train"])
    if "validation" in own.held_out:
        in_validation = own.held_out["validation"]
        part[np.flatnonzero(~out)[in_validation] if len(in_validation) < n else in_validation] = PARTS["validation"]
    chosen = {f"{SELECTED}{condition}": rows.astype(np.int64) for condition, rows in selections.items()}
    return {**columns_hashed, PART: part.astype(np.int64), **chosen, **columns}


def _made(
    site: FormulaSite, secret: bytes, totals: Sequence[NamedSums]
) -> tuple[dict[str, np.ndarray], dict[str, NDArray[np.int8]]]:
    """Conditions, and values of what calls make of numbers, with their rows, (n,) of bool each; hashes of columns.

    Args:
        site: its rows.
        secret: the key.
        totals: sums over all sites; without them what depends on them is left out.
    """
    try:
        own = own_rows(site, totals)
    except UserError:  # a study whose columns cannot be made is not approved
        return {}, {}
    selected = dict(own.selections)
    for name, values in own.categories.items():
        if "(" in name:
            selected |= {f"{name} is {value}": values == value for value in np.unique(values)}
    columns = column_hashes(own, secret)
    names = [name for name in (*selected, *columns) if totals or not CENTRED.search(name)]
    return {k: v for k, v in selected.items() if k in names}, {k: v for k, v in columns.items() if k in names}


def _column(name: str, values: np.ndarray, secret: bytes) -> NDArray[np.int64]:
    """Hashes of a column's cells: numbers are the same as text, whichever type a column was read as."""
    if values.dtype.kind not in "biuf":
        words = np.array(["" if _is_missing(value) else str(value).strip() for value in values.tolist()], dtype=object)
        texts, position = np.unique(words, return_inverse=True)
        return _hashed([_canonical(text) for text in texts.tolist()], name.encode(), secret)[position.reshape(-1)]
    numbers, position = np.unique(values.astype(float) + 0.0, return_inverse=True)
    raw, n = numbers.tobytes(), len(numbers)
    cells = [raw[8 * k : 8 * k + 8] for k in range(n)]
    if n and np.isnan(numbers[-1]):
        cells[-1] = b"missing"
    return _hashed(cells, name.encode(), secret)[position.reshape(-1)]


def _is_missing(value: object) -> bool:
    return value is None or value != value or str(value) == "<NA>"


def _canonical(cell: str) -> bytes:
    """A number's bytes, or those of a text."""
    if not cell:
        return b"missing"
    try:
        return np.float64(cell.replace(",", ".")).tobytes()
    except ValueError:
        return b"text " + cell.encode()


def _hashed(cells: list[bytes], name: bytes, secret: bytes) -> NDArray[np.int64]:
    """Keyed hashes of 64 bits."""
    key = hashlib.blake2b(name, key=secret[:64], digest_size=32).digest()
    made = b"".join([hashlib.blake2b(cell, key=key, digest_size=8).digest() for cell in cells])
    return np.frombuffer(made, dtype="<i8").astype(np.int64)


def differing(first: RowHashes, other: RowHashes) -> int | None:
    """How many rows are in one set and not in the other, of both.

    Columns count that both have, and in which at least half of the smaller set's cells agree: a column in another unit
    says nothing. Sets whose columns do not tell rows apart are compared where nearly all of them agree.

    Args:
        one, other: hashes with one secret.

    Returns:
        The size of the symmetric difference of the multisets; None for other data.
    """
    keys = _keys(first, other)
    return None if keys is None else _apart(*keys)


def same_data(first: RowHashes, other: RowHashes) -> bool:
    """Whether two sets share at least half of the rows of the smaller one: then they have one budget."""
    apart = differing(first, other)
    if apart is None:
        return False
    sizes = len(first[PART]), len(other[PART])
    return sum(sizes) - apart >= min(sizes)


def least_difference(first: RowHashes, other: RowHashes) -> int | None:
    """The smallest number of rows by which what two studies sum over differs: all rows, those trained on, those of
    each part, and those that a condition selects or leaves, of one beside those of the other. None where they are
    other data, or the same rows.
    """
    keys = _keys(first, other)
    if keys is None:
        return None
    _, position = np.unique(np.concatenate(keys), return_inverse=True)
    places = np.split(position.reshape(-1), [len(keys[0])])
    size = int(position.max()) + 1
    counts = [
        np.stack([np.bincount(at[rows], minlength=size) for rows in _sets(hashes)])
        for at, hashes in zip(places, (first, other), strict=True)
    ]
    differences = [np.abs(counts[1] - row).sum(1) for row in counts[0]]
    apart = np.concatenate(differences)
    return int(apart[apart > 0].min()) if apart.any() else None


def columns_apart(first: RowHashes, other: RowHashes) -> int | None:
    """The smallest number of rows in which a column of one study and a column of another differ. None where they are
    other data, or have no other columns.
    """
    keys = _keys(first, other)
    return None if keys is None else least_column_difference((first, other), keys, (first[PART], other[PART]))


def _sets(hashes: RowHashes) -> Iterator[np.ndarray]:
    """Rows that sums are over, (n,) of bool each; no empty set."""
    part = hashes[PART]
    parts = [np.ones(len(part), dtype=bool), *(part == number for number in PARTS.values())]
    chosen = [rows == value for name, rows in hashes.items() if name.startswith(SELECTED) for value in (0, 1)]
    yield from (rows for rows in [*parts, *(a & b for a, b in product(parts, chosen))] if rows.any())


def _keys(first: RowHashes, other: RowHashes) -> tuple[np.ndarray, np.ndarray] | None:
    """A key of each row of both, of the columns that can be compared; None for other data."""
    common = sorted(name for name in first.keys() & other.keys() if not name.startswith((PART, SELECTED, COLUMN)))
    n, smaller = len(first[PART]) + len(other[PART]), min(len(first[PART]), len(other[PART]))
    kept = [name for name in common if n - _apart(first[name], other[name]) >= smaller]
    if not kept or not smaller:
        return None
    keys = _combined(first, kept), _combined(other, kept)
    telling = min(len(np.unique(key)) / len(key) for key in keys)
    if telling >= (IDENTIFYING if kept == common else BESIDE_OTHERS):
        return keys
    return keys if kept == common and _apart(*keys) <= 2 * (1 - NEARLY_ALL) * smaller else None


def _combined(hashes: RowHashes, names: list[str]) -> np.ndarray:
    """One key of each row."""
    key = np.zeros(len(hashes[PART]), dtype=np.uint64)
    for name in names:
        key = (key ^ hashes[name].view(np.uint64)) * _MIX
        key ^= key >> np.uint64(29)
    return key


def _apart(first: np.ndarray, other: np.ndarray) -> int:
    """Size of the symmetric difference of two multisets."""
    (values, counts), (others, more) = (np.unique(part, return_counts=True) for part in (first, other))
    if not len(values) or not len(others):
        return len(first) + len(other)
    position = np.minimum(np.searchsorted(others, values), len(others) - 1)
    shared = np.minimum(counts, more[position])[others[position] == values].sum()
    return len(first) + len(other) - 2 * int(shared)
