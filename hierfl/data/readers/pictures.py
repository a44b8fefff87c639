"""PNG and JPEG files: one of them, those of a folder, or those in folders that are called as their clients."""

from __future__ import annotations

from pathlib import Path

from ...errors import UserError
from ...files import shown

#: endings of the files that are read
ENDINGS = (".png", ".jpg", ".jpeg")
#: pictures of one client, of clients' folders, and of folders of labels in these
DEPTHS = ("*", "*/*", "*/*/*")


def is_picture(path: Path) -> bool:
    """Whether a file's ending is that of a picture, and it is not hidden (``._1.png`` of a Mac is none)."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")


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
