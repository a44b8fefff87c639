"""Runs on a user's folder: pictures, an .npz for each client, or LEAF's json."""

from __future__ import annotations

from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.data.folders.load import is_folder
from hierfl.data.tables import is_table
from hierfl.errors import UserError

from .config import RunConfig


def is_own_folder(data: str) -> bool:
    """Whether ``--data`` names a folder; a data set's name comes first."""
    return data not in registry.DATASETS and not is_table(data) and is_folder(data)


def check_image_size(data: str, size: int | None) -> None:
    """Refuses a size of pictures where there are none.

    Raises:
        UserError: for a size that is none, or of other data.
    """
    if size is None:
        return
    if not is_own_folder(data):
        raise UserError(f"--image-size is for a folder of pictures, and {data} is none")
    if size < 1:
        raise UserError(f"--image-size is a whole number of at least 1, not {size}")


def from_own_folder(run: RunConfig) -> Federation:
    """The data of a run on a folder.

    Raises:
        UserError: for a folder that cannot be used.
    """
    return Federation.from_folder(
        run.data, size=run.image_size, clients=run.clients, split=run.split, validation=run.validation_fraction,
        seed=run.seed, standardise={"yes": True, "no": False}.get(run.standardise, "auto"),
        validation_of=run.validation_of,
    )  # fmt: skip
