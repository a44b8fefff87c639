"""Image sets in the layout of torchvision: read here, downloaded by torchvision where they are not there.

The only file that imports torchvision, and only when something is to be downloaded: its build must match torch's, and
a user who never needs it is not stopped by that. Its own readers are not used: they unpickle, and take what a file
says of its size for granted. A download is compared with the published check sums (by torchvision); files that the user
put there are read as they are, since nothing in them is executed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tarfile import TarError
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ...errors import UserError
from ...files import shown
from ..arrays import make_pool
from ..pool import PooledDataset
from ..readers.limits import DAMAGED
from .registry import DATASETS, DataSet, paper_settings

log = logging.getLogger("hierfl")
#: the environment variable that forbids downloads, unless it is empty or 0
OFFLINE = "HIERFL_OFFLINE"


@contextmanager
def offline() -> Iterator[None]:
    """Nothing is downloaded, neither by this process nor by those that it starts: sets ``HIERFL_OFFLINE`` meanwhile."""
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = before


@dataclass(frozen=True)
class Images:
    """What was read: uint8 images (N, channels, height, width), labels (N,), subclasses (N,) where there are any."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    fine_train: np.ndarray | None = None
    fine_test: np.ndarray | None = None


@dataclass(frozen=True)
class Layout:
    """Files of a torchvision data set: how they are read and downloaded.

    Attributes:
        read: root -> images.
        fetch: torchvision.datasets, root: downloads it.
        urls: torchvision.datasets -> where from; the first that answers.
        folder: under the root.
        files: which files it must hold, in words.
        size: of the download, in words.
        beside: a file that is needed and cannot be downloaded.
        subclasses: whether its examples have them.
    """

    read: Callable[[Path], Images]
    fetch: Callable[[Any, Path], None]
    urls: Callable[[Any], list[str]]
    folder: str
    files: str
    size: str
    beside: str | None = None
    subclasses: bool = False


#: of the sets that come in torchvision's layout
LAYOUTS: dict[str, Layout] = {}


def image_set(
    name: str, description: str, layout: Layout, constants: Any = None, *, network: str, split: str = "label-skew:5",
    clients: int = 100,
) -> None:  # fmt: skip
    """Registers a set in torchvision's layout, with the settings of a paper's run.

    Args:
        name: of the set.
        description: what it is, in a line.
        layout: its files.
        constants: the usual ones, see :class:`~hierfl.data.datasets.registry.DataSet`.
        network, split, clients: what a run on it takes where nothing is said.
    """

    def read(root: Path) -> PooledDataset:
        images = load_images(name, root)
        return make_pool(
            name, images.x_train, images.y_train, images.x_test, images.y_test,
            fine_train=images.fine_train, fine_test=images.fine_test,
        )  # fmt: skip

    LAYOUTS[name] = layout
    DATASETS[name] = DataSet(description, read, **paper_settings(network, split, clients), constants=constants)


def load_images(name: str, root: Path) -> Images:
    """Reads a set of :data:`LAYOUTS` from ``root``, after downloading it where it is not there.

    Nothing is downloaded where the environment says ``HIERFL_OFFLINE=1`` (see :func:`offline`).

    Raises:
        UserError: if it is neither there nor to be had, or damaged; says which files go where.
    """
    layout = LAYOUTS[name]
    subclasses = ", fine_train, fine_test" * layout.subclasses
    advice = f"put {name}.npz (x_train, y_train, x_test, y_test{subclasses}) or {layout.files} into {shown(root)}"
    if layout.beside is not None and not (root / layout.beside).exists():
        raise UserError(
            f"{name} also needs {shown(root / layout.beside)}, which torchvision does not download; {advice}"
        )
    folder = root / layout.folder
    if not is_begun(folder):
        if os.environ.get(OFFLINE, "") not in ("", "0"):
            raise UserError(
                f"{name} is not in {shown(root)}, and --offline ({OFFLINE}) forbids to download it; {advice}"
            )
        _download(name, layout, root, advice)
    try:
        return layout.read(root)
    except UserError as error:
        raise UserError(
            f"{name} in {shown(folder)} is incomplete or damaged: {error}; {advice}; or move that folder "
            "away to have it downloaded again"
        ) from error


def is_begun(folder: Path) -> bool:
    """Whether anything is in a set's folder, over which nothing is downloaded."""
    return any(not path.is_dir() for path in folder.rglob("*"))


def _download(name: str, layout: Layout, root: Path, advice: str) -> None:
    """Says what is downloaded from where, and has torchvision do it."""
    try:
        import torchvision.datasets as sets
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"{name} is not in {shown(root)}, and torchvision, which could download it, cannot be imported ({error}): "
            f"it and torch must come from the same build; or {advice}"
        ) from error
    hosts = {urlsplit(url).hostname: urlsplit(url).scheme for url in layout.urls(sets)}
    places = " or ".join(f"{host}{' (http, not encrypted)' * (how == 'http')}" for host, how in hosts.items())
    log.warning("%s is not in %s: downloading %s from %s", name, shown(root), layout.size, places)
    try:
        layout.fetch(sets, root)
    except (*DAMAGED, HTTPException, TarError) as error:
        detail = " ".join(str(error).split())
        for folder in sorted([*(root / layout.folder).rglob("*"), root / layout.folder, root], reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()  # made before there was anything to put there
        raise UserError(f"{name} is not in {shown(root)}, and its download failed ({detail}); {advice}") from error
