"""Pictures in a folder: PNG and JPEG files, in folders that are called as their clients or all of one client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files import shown
from .limits import check_size
from .safe_files import regular_file

#: endings of the files that are read
ENDINGS = (".png", ".jpg", ".jpeg")
#: the largest picture that is decoded, in bytes as a file
MODES = {1: "GRAY", 3: "RGB"}


def picture_files(folder: Path) -> tuple[list[Path], list[str] | None]:
    """The pictures of a folder, in order, and whose each is: the name of its folder; None where there are no folders.

    Raises:
        UserError: for a folder without pictures, or with pictures both beside folders of pictures and in them.
    """
    inside = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
    below = sorted(
        path for part in folder.iterdir() if part.is_dir() for path in part.iterdir() if path.suffix.lower() in ENDINGS
    )
    if inside and below:
        raise UserError(f"{shown(folder)} has pictures beside its folders and in them: whose are these?")
    if not inside and not below:
        raise UserError(f"{shown(folder)} has no pictures ({', '.join(ENDINGS)}), nor have its folders")
    return inside or below, None if inside else [path.parent.name for path in below]


def read_pictures(paths: list[Path], shape: tuple[int, ...]) -> np.ndarray:
    """Pictures of one shape, (n, channels, height, width) in uint8.

    Args:
        paths: of the files.
        shape: channels, height and width.

    Raises:
        UserError: for a file that is damaged, or a picture of another size.
    """
    from torchvision.io import ImageReadMode, decode_image

    mode = MODES.get(shape[0])
    if mode is None:
        raise UserError(f"pictures in files have 1 or 3 channels, and the run's have {shape[0]}: give an .npz with x")
    found = []
    for path in paths:
        regular_file(path, "a picture")
        check_size(path, path.stat().st_size)
        try:
            picture = decode_image(str(path), mode=getattr(ImageReadMode, mode))
        except RuntimeError as error:
            raise UserError(f"{shown(path)} is damaged, or no picture: {str(error).splitlines()[0]}") from error
        if tuple(picture.shape) != tuple(shape):
            size, wanted = ("x".join(map(str, s[1:])) for s in (picture.shape, shape))
            raise UserError(f"{shown(path)} is {size} pixels high and wide, and the run's pictures are {wanted}")
        found.append(picture.numpy())
    return np.stack(found)
