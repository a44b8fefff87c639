"""A folder as a pool: which kind it is, its training and its test rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files import shown
from ..given_arrays import given_pool
from ..input_scales import Standardise
from ..pool import PooledDataset
from ..readers.npz import read_npz
from ..readers.pictures import ENDINGS
from ..readers.safe_files import located
from .clients import ClientArrays, joined_clients
from .images import Size, has_pictures, read_pictures
from .leaf import has_json, read_leaf, read_new_leaf

#: what a folder may hold
KINDS = "client/label/*.png, an .npz with x and y for each client, or LEAF's json files"
#: of each client's rows, where a folder has no test part
TEST = 0.2


def folder_pool(
    path: Path | str,
    *,
    size: Size | None = None,
    test: float = TEST,
    seed: int = 0,
    standardise: Standardise = "auto",
) -> tuple[PooledDataset, dict[str, Any]]:
    """A folder as a pool whose rows have clients, and what is remembered of it: the classes' names.

    A folder with the two folders ``train`` and ``test`` holds both parts. A client that ``test`` lacks has no test
    rows.

    Args:
        path: of the folder.
        size: of pictures; see :func:`.images.read_pictures`.
        test: the fraction of each client's rows that is held out where there is no test part.
        seed: of what is held out.
        standardise: as of :meth:`hierfl.data.federation.Federation.from_arrays`.

    Raises:
        UserError: for a folder of none of these kinds, and files that cannot be read.
    """
    root = located(path)
    parts = sorted(child.name for child in root.iterdir() if child.is_dir()) if root.is_dir() else []
    split = parts == ["test", "train"]
    rows = _read(root / "train" if split else root, size)
    x_test, y_test, client_test = _read(root / "test", size) if split else (None, None, None)
    return given_pool(
        rows.x, rows.y, rows.client, x_test, y_test, client_test, test, seed, None, root.name, standardise, None
    )  # fmt: skip


def new_client_rows(root: Path) -> tuple[np.ndarray, np.ndarray | None, np.ndarray] | None:
    """Rows to predict for, of a folder with a file for each client or with LEAF's json files.

    Args:
        root: the folder.

    Returns:
        Inputs (N, *event), targets (N,) or None without, and the client of each row, (N,). None for a folder without
        such files.

    Raises:
        UserError: for files of both kinds, files that cannot be read, and targets in some files alone.
    """
    npz, leaf = _has_npz(root), has_json(root)
    if npz and leaf:
        raise UserError(f"{shown(root)} holds files of several kinds: {KINDS}")
    if leaf:
        rows, has_targets = read_new_leaf(root)
        return rows.x, rows.y if has_targets else None, rows.client
    if not npz:
        return None
    arrays = {path.stem: read_npz(path, ("x",), ("y",)) for path in sorted(root.glob("*.npz"))}
    labelled = [name for name, of_client in arrays.items() if "y" in of_client]
    if labelled and len(labelled) < len(arrays):
        lacking = next(name for name in arrays if name not in labelled)
        raise UserError(f"{shown(root)}: {labelled[0]}.npz has y, and {lacking}.npz has none")
    given = ((name, a["x"], a["y"] if labelled else np.zeros(len(a["x"]))) for name, a in arrays.items())
    rows = joined_clients(given, shown(root))
    return rows.x, rows.y if labelled else None, rows.client


def is_folder(path: str) -> bool:
    """Whether it is the path of a folder."""
    try:
        return located(path).is_dir()
    except UserError:
        return False


def _read(root: Path, size: Size | None) -> ClientArrays:
    """The rows of one part."""
    readers: dict[Callable[[Path], bool], Callable[[], ClientArrays]] = {
        has_pictures: lambda: read_pictures(root, size),
        _has_npz: lambda: _read_npz(root),
        has_json: lambda: read_leaf(root),
    }
    kinds = [read for holds, read in readers.items() if root.is_dir() and holds(root)]
    if len(kinds) != 1:
        what = "holds files of several kinds" if kinds else "is no folder of data"
        raise UserError(f"{shown(root)} {what}: {KINDS} ({', '.join(sorted(ENDINGS))})")
    return kinds[0]()


def _has_npz(root: Path) -> bool:
    return any(root.glob("*.npz"))


def _read_npz(root: Path) -> ClientArrays:
    """A client for each file, called by it."""
    files = sorted(root.glob("*.npz"))
    arrays = ((path.stem, read_npz(path, ("x", "y"))) for path in files)
    return joined_clients(
        ((name, arrays_of_client["x"], arrays_of_client["y"]) for name, arrays_of_client in arrays), shown(root)
    )
