"""Pictures in folders: ROOT/client/label/*.png."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ...files import shown
from ..readers.contents import read_picture
from ..readers.limits import check_size
from ..readers.pictures import ENDINGS, is_picture
from .clients import ClientArrays

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger("hierfl")
#: of a list of files, so many are named
MAX_FILES_NAMED = 5
#: height and width
Size = tuple[int, int]


def has_pictures(root: Path) -> bool:
    """Whether a folder has pictures at ROOT/client/label."""
    return any(is_picture(path) for path in root.glob("*/*/*"))


def read_pictures(root: Path, size: Size | None) -> ClientArrays:
    """Pictures, (N, channels, height, width) uint8, in the order of their paths; one channel where all are grey.

    Args:
        root: the folder.
        size: to which all are resized; None where they are of one size.

    Raises:
        UserError: for pictures of several sizes without ``size``, and files that are no pictures.
    """
    paths = sorted(path for path in root.glob("*/*/*") if not path.name.startswith("."))
    if strange := [path for path in paths if path.suffix.lower() not in ENDINGS]:
        raise UserError(f"{shown(strange[0])} is no picture: {shown(root)}/client/label holds .png and .jpg alone")
    shape: tuple[int, ...] = ()
    x = np.empty(0, np.uint8)
    for position, picture in enumerate(_all(paths)):
        picture = resized(picture, size)
        if not shape:
            shape = picture.shape
            check_size(root, len(paths) * picture.size, "its pictures")
            x = np.empty((len(paths), *shape), np.uint8)
        if picture.shape != shape:
            side = min(shape[:2])
            raise UserError(
                f"{shown(root)} has pictures of several sizes, {_words(shape)} and {_words(picture.shape)} "
                f"({paths[position].name}): say --image-size {side} (size=({side}, {side}))"
            )
        x[position] = picture
    _note_empty(root, paths)
    grey = bool((x[..., :1] == x).all())
    labels = np.array([path.parent.name for path in paths])
    clients = np.array([path.parent.parent.name for path in paths])
    return ClientArrays(np.ascontiguousarray(np.moveaxis(x[..., :1] if grey else x, -1, 1)), whole(labels), clients)


def read_as(paths: list[Path], shape: tuple[int, ...], *, resize: bool) -> np.ndarray:
    """New pictures, read as those of a fit were, (n, *shape) in uint8.

    Args:
        paths: of the files.
        shape: channels, height and width of the fit's pictures.
        resize: whether the fit's were cut and resized; otherwise these have its size.

    Raises:
        UserError: for a file that is damaged, a picture of another size, and one in colour where ``shape`` is grey.
    """
    if shape[0] not in (1, 3):
        raise UserError(f"pictures in files have 1 or 3 channels, and the run's have {shape[0]}: give an .npz with x")
    x = np.empty((len(paths), *shape), np.uint8)
    for position, picture in enumerate(_all(paths)):
        if not resize and picture.shape[:2] != shape[1:]:
            raise UserError(
                f"{shown(paths[position])} is {_words(picture.shape)} pixels high and wide, "
                f"and the run's pictures are {_words(shape[1:])}"
            )
        picture = resized(picture, (shape[1], shape[2]))
        if shape[0] == 1 and bool((picture[..., :1] != picture).any()):
            raise UserError(f"the run's pictures are grey, and {shown(paths[position])} is in colour")
        x[position] = np.moveaxis(picture[..., : shape[0]], -1, 0)
    return x


def _all(paths: list[Path]) -> Iterator[np.ndarray]:
    """Pictures one after the other, turned as their cameras say.

    Raises:
        UserError: in the end, for all files that cannot be read; the message is one line, not one for each.
    """
    damaged: list[Path] = []
    why: UserError | None = None
    for path in paths:
        try:
            picture = read_picture(path, upright=True, opaque=True)
        except UserError as error:
            damaged, why = [*damaged, path], why or error
        if not damaged:
            yield picture
    if why is None:
        return
    if len(damaged) == 1:
        raise why
    others = ", ".join(shown(path) for path in damaged[1:MAX_FILES_NAMED]) + ", ..." * (len(damaged) > MAX_FILES_NAMED)
    raise UserError(f"{len(damaged)} of {len(paths)} pictures cannot be read: {why}; likewise {others}") from why


def _note_empty(root: Path, paths: list[Path]) -> None:
    """Says which folders of clients, and of labels, hold no picture, and which pictures lie beside them."""
    filled = {folder for path in paths for folder in (path.parent, path.parent.parent)}
    folders = [path for pattern in ("*", "*/*") for path in sorted(root.glob(pattern)) if path.is_dir()]
    outer = {root, *filled}  # of an empty client its labels need no words
    empty = [path for path in folders if path not in filled and path.parent in outer and path.name[0] != "."]
    if empty:
        names = ", ".join(shown(path.relative_to(root)) for path in empty[:MAX_FILES_NAMED]) + ", ..." * (
            len(empty) > MAX_FILES_NAMED
        )
        log.warning("%s: without pictures, and left out: %s", root.name, names)
    stray = sorted(
        path for pattern in ("*", "*/*") for path in root.glob(pattern) if path.is_file() and is_picture(path)
    )
    if stray:
        names = ", ".join(shown(path.relative_to(root)) for path in stray[:MAX_FILES_NAMED]) + ", ..." * (
            len(stray) > MAX_FILES_NAMED
        )
        log.warning("%s: pictures outside of client/label, and left out: %s", root.name, names)


def whole(labels: np.ndarray) -> np.ndarray:
    """Names of folders as whole numbers where all are written as these are."""
    numbers = all(label.isdecimal() and str(int(label)) == label for label in labels.tolist())
    return labels.astype(np.int64) if numbers else labels


def _words(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]}"


def resized(picture: np.ndarray, size: Size | None) -> np.ndarray:
    """The middle of a picture, in the shape of ``size``, resized to it."""
    if size is None or picture.shape[:2] == size:
        return picture
    from PIL import Image

    return np.asarray(_middle(Image.fromarray(picture), size).resize((size[1], size[0])))


def _middle(picture: Image.Image, size: Size) -> Image.Image:
    width, height = picture.size
    scale = min(height / size[0], width / size[1])
    high, wide = round(scale * size[0]), round(scale * size[1])
    left, top = (width - wide) // 2, (height - high) // 2
    return picture.crop((left, top, left + wide, top + high))
