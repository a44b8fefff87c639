"""Pictures in folders: ROOT/client/label/*.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ...files import shown
from ..readers.contents import read_picture
from ..readers.limits import check_size
from .clients import ClientArrays

if TYPE_CHECKING:
    from PIL import Image

#: endings of pictures
PICTURES = frozenset((".png", ".jpg", ".jpeg"))
#: height and width
Size = tuple[int, int]


def has_pictures(root: Path) -> bool:
    """Whether a folder has pictures at ROOT/client/label."""
    return any(path.suffix.lower() in PICTURES for path in root.glob("*/*/*"))


def read_pictures(root: Path, size: Size | None) -> ClientArrays:
    """Pictures, (N, channels, height, width) uint8, in the order of their paths; one channel where all are grey.

    Args:
        root: the folder.
        size: to which all are resized; None where they are of one size.

    Raises:
        UserError: for pictures of several sizes without ``size``, and files that are no pictures.
    """
    paths = sorted(path for path in root.glob("*/*/*") if not path.name.startswith("."))
    if strange := [path for path in paths if path.suffix.lower() not in PICTURES]:
        raise UserError(f"{shown(strange[0])} is no picture: {shown(root)}/client/label holds .png and .jpg alone")
    first = resized(read_picture(paths[0]), size)
    check_size(root, len(paths) * first.size, "its pictures")
    x = np.empty((len(paths), *first.shape), np.uint8)
    for place, path in enumerate(paths):
        picture = resized(read_picture(path), size)
        if picture.shape != first.shape:
            raise UserError(
                f"{shown(root)} has pictures of several sizes, {_words(first)} and {_words(picture)} ({path.name}): "
                f"say --image-size {min(first.shape[:2])} (size=({min(first.shape[:2])}, {min(first.shape[:2])}))"
            )
        x[place] = picture
    grey = bool((x[..., :1] == x).all())
    labels = np.array([path.parent.name for path in paths])
    clients = np.array([path.parent.parent.name for path in paths])
    return ClientArrays(np.ascontiguousarray(np.moveaxis(x[..., :1] if grey else x, -1, 1)), whole(labels), clients)


def read_resized(paths: list[Path], shape: tuple[int, ...]) -> np.ndarray:
    """Pictures of any size, cut and resized as those of a folder are, (n, *shape) in uint8.

    Args:
        paths: of the files.
        shape: channels, height and width.

    Raises:
        UserError: for a picture in colour where ``shape`` has one channel.
    """
    x = np.stack([resized(read_picture(path), (shape[1], shape[2])) for path in paths])
    if shape[0] == 1 and bool((x[..., :1] != x).any()):
        raise UserError("the run's pictures are grey, and these are in colour")
    return np.ascontiguousarray(np.moveaxis(x[..., : shape[0]], -1, 1))


def whole(labels: np.ndarray) -> np.ndarray:
    """Names of folders as whole numbers where all are written as these are."""
    numbers = all(label.isdecimal() and str(int(label)) == label for label in labels.tolist())
    return labels.astype(np.int64) if numbers else labels


def _words(picture: np.ndarray) -> str:
    return f"{picture.shape[0]}x{picture.shape[1]}"


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
