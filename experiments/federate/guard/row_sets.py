"""Row sets of the account's ledger, as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from hierfl.errors import UserError
from hierfl.files import shown

#: hashes of each row's value in each column
RowHashes = Mapping[str, NDArray[np.integer]]
SUFFIX = ".safetensors"


class RowSetFiles(Mapping[str, RowHashes]):
    """{name: hashes}, each read when it is looked at: a ledger of years does not fit into memory.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, name: str) -> Path:
        """The file of a row set."""
        return self.folder / f"{name}{SUFFIX}"

    def __getitem__(self, name: str) -> RowHashes:
        """Raises UserError for a damaged file, and KeyError for none."""
        path = self.path_of(name)
        if not path.is_file():
            raise KeyError(name)
        try:
            hashes: RowHashes = load_file(path)
        except Exception as error:  # whatever the parser raises of a damaged file
            raise UserError(f"{shown(path)} is damaged: take it from a backup") from error
        return hashes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.stem for path in self.folder.glob(f"*{SUFFIX}")))

    def __len__(self) -> int:
        return len(list(self.folder.glob(f"*{SUFFIX}")))
