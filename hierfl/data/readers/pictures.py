"""PNG and JPEG files: one of them, those of a folder, or those in folders that are called as their clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files import shown
from .limits import check_size
from .safe_files import regular_file

#: endings of the files that are read
ENDINGS = (".png", ".jpg", ".jpeg")
#: pictures of one client, of clients' folders, and of folders of labels in these
DEPTHS = ("*", "*/*", "*/*/*")
#: how pictures of so many channels are decoded
MODES = {1: "GRAY", 3: "RGB"}


def is_picture(path: Path) -> bool:
    """Whether a file's ending is that of a picture."""
    return path.suffix.lower() in ENDINGS


def picture_files(path: Path) -> tuple[list[Path], list[str] | None]:
    """Pictures in order, and the client of each; None where the path does not say.

    Args:
        path: a picture; a folder of pictures; a folder of clients' folders, which hold their pictures, or as training
            data do a folder of pictures for each label.

    Raises:
        UserError: for a folder without pictures, or with pictures at several depths.
    """
    if not path.is_dir():
        return [path], None
    depths = [sorted(file for file in path.glob(pattern) if is_picture(file)) for pattern in DEPTHS]
    filled = [file for file in depths if file]
    if len(filled) > 1:
        raise UserError(f"{shown(path)} has pictures beside its folders and in them: whose are these?")
    if not filled:
        raise UserError(f"{shown(path)} has no pictures ({', '.join(ENDINGS)}), nor have its folders")
    alone = bool(depths[0])
    return filled[0], None if alone else [file.relative_to(path).parts[0] for file in filled[0]]


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
    pictures = []
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
        pictures.append(picture.numpy())
    return np.stack(pictures)
