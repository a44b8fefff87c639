"""SUN397: pFedVEM's part of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files import shown
from ..readers.contents import read_picture, read_sheet
from ..readers.limits import reading
from .registry import DEEP_CNN
from .torchvision_layout import Images, Layout, image_set

SUN_HIERARCHY = "hierarchy_three_levels/three_levels.xlsx"
SUN_SUPERCLASSES = ("indoor", "outdoor, natural", "outdoor, man-made")
SUN_SUBCLASSES, SUN_IMAGES, SUN_TRAIN, SUN_SIDE = 50, 100, 80, 64


def _sun(root: Path) -> Images:
    """pFedVEM's part of SUN397: 50 subclasses for each of the three superclasses, 100 images of each (Appendix A).

    Subclasses that belong to one superclass only, the first ones in the hierarchy's order; their first images by name;
    80 for training, drawn at random, always the same. Cut to the middle square and resized to 64 x 64.
    """
    wanted = _sun_hierarchy(root / SUN_HIERARCHY)
    rng = np.random.default_rng(0)
    parts: dict[bool, list[tuple[np.ndarray, int, int]]] = {True: [], False: []}
    for fine, (folder, coarse) in enumerate(wanted):
        pictures = root / "SUN397" / folder
        files = sorted(pictures.glob("sun_*.jpg"))[:SUN_IMAGES]
        if len(files) < 5:
            raise UserError(f"{shown(pictures)} holds {len(files)} images, too few to split into training and test")
        cut = SUN_TRAIN * len(files) // SUN_IMAGES
        for rank, at in enumerate(rng.permutation(len(files))):
            parts[rank < cut].append((_square(files[at]), coarse, fine))
    arrays = [np.stack(column) for part in (True, False) for column in zip(*parts[part], strict=True)]
    x_train, y_train, fine_train, x_test, y_test, fine_test = arrays
    return Images(x_train, y_train, x_test, y_test, fine_train, fine_test)


def _sun_hierarchy(path: Path) -> list[tuple[str, int]]:
    """(folder, superclass) of the chosen subclasses, superclass by superclass."""
    sheet = read_sheet(path, "SUN397", 1, ("category", *SUN_SUPERCLASSES)).dropna()
    with reading(path, "hierarchy of SUN397"):
        single = sheet[sheet[list(SUN_SUPERCLASSES)].sum(axis=1) == 1]  # some belong to two superclasses, or three
        chosen = [
            (str(category).strip("' ").strip("/"), coarse)
            for coarse, name in enumerate(SUN_SUPERCLASSES)
            for category in single.loc[single[name] == 1, "category"][:SUN_SUBCLASSES]
        ]
        if not chosen:
            raise ValueError("no category belongs to one superclass")
        if any(".." in Path(folder).parts for folder, _ in chosen):
            raise ValueError("a category's name leads out of the folder")
        return chosen


def _square(path: Path) -> np.ndarray:
    """The middle square of a picture at 64 x 64, (3, 64, 64) uint8."""
    from PIL import Image

    picture = Image.fromarray(read_picture(path))
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    small = picture.crop((left, top, left + side, top + side)).resize((SUN_SIDE, SUN_SIDE))
    return np.ascontiguousarray(np.moveaxis(np.asarray(small), -1, 0))


def _fetch_sun(sets: Any, root: Path) -> None:
    source = sets.SUN397
    sets.utils.download_and_extract_archive(source._DATASET_URL, str(root), md5=source._DATASET_MD5)


image_set(
    "sun397", "64x64 scenes, 3 superclasses of 50 subclasses, 15,000 images",
    Layout(
        _sun, _fetch_sun, lambda sets: [sets.SUN397._DATASET_URL], "SUN397",
        f"SUN397/ with the folders a to z, and {SUN_HIERARCHY}", "39 GB", SUN_HIERARCHY, subclasses=True,
    ),
    network=DEEP_CNN, split="concept-drift",
)  # fmt: skip
