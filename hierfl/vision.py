"""Image sets in the layout of torchvision, which reads and, where it can, downloads them.

The only file that knows torchvision, and it is imported only when such a set is asked for: its build must match
torch's, and whoever never needs it should not be stopped by that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from .errors import UserError

log = logging.getLogger("hierfl")


@dataclass(frozen=True)
class Images:
    """What was read: uint8 images (N, channels, height, width), labels (N,), subclasses (N,) where there are any."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    fine_train: np.ndarray | None = None
    fine_test: np.ndarray | None = None


Read = Callable[[Any, Path, bool], Images]


def load_images(name: str, root: Path) -> Images:
    """Reads a set of :data:`LAYOUTS` from ``root``, after downloading it where it is not there.

    Raises:
        UserError: if it is neither there nor to be had, or damaged; says which files go where.
    """
    layout = LAYOUTS[name]
    subclasses = ", fine_train, fine_test" * (name in ("cifar100", "sun397"))
    advice = f"put {name}.npz (x_train, y_train, x_test, y_test{subclasses}) or {layout.files} into {root}"
    try:
        import torchvision.datasets as sets
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"torchvision cannot be imported ({error}): it and torch must come from the same build; or {advice}"
        ) from error
    if layout.beside is not None and not (root / layout.beside).is_file():
        raise UserError(f"{name} also needs {root / layout.beside}, which torchvision does not download; {advice}")
    unreadable = (RuntimeError, OSError, ValueError, EOFError, AssertionError, KeyError, IndexError, BadZipFile)
    try:
        return layout.read(sets, root, False)
    except UserError:
        raise
    except unreadable as error:
        if any(path.is_file() for path in (root / layout.folder).rglob("*")):
            detail = " ".join(str(error).split())
            raise UserError(
                f"{name} in {root / layout.folder} is incomplete or damaged ({detail}); {advice}; or move that folder "
                "away to have it downloaded anew"
            ) from error
    log.warning("%s is not in %s; downloading it (%s)", name, root, layout.size)
    try:
        return layout.read(sets, root, True)
    except UserError:
        raise
    except unreadable as error:
        detail = " ".join(str(error).split())
        for folder in sorted([*(root / layout.folder).rglob("*"), root / layout.folder, root], reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()  # (torchvision makes them before it has anything to put there)
        raise UserError(f"{name} is not in {root}, and its download failed ({detail}); {advice}") from error


@dataclass(frozen=True)
class Layout:
    """Where torchvision keeps a set, and how it is read.

    Attributes:
        read: torchvision.datasets, root, whether to download -> images.
        folder: under the root.
        files: which files it must hold, in words.
        size: of the download, in words.
        beside: a file that is needed and cannot be downloaded.
    """

    read: Read
    folder: str
    files: str
    size: str
    beside: str | None = None


def _grey(kind: str, **options: Any) -> Read:
    """The MNIST family: idx files."""

    def read(sets: Any, root: Path, download: bool) -> Images:
        train, test = (
            getattr(sets, kind)(str(root), train=part, download=download, **options) for part in (True, False)
        )
        images = [np.asarray(part.data)[:, None] for part in (train, test)]
        if kind == "EMNIST":  # stored with rows and columns exchanged
            images = [np.ascontiguousarray(x.swapaxes(-1, -2)) for x in images]
        return Images(images[0], _labels(train), images[1], _labels(test))

    return read


def _labels(part: Any) -> np.ndarray:
    return np.asarray(part.targets, dtype=np.int64)


def _colour(
    kind: str, superclasses: Mapping[str, tuple[str, ...]] | None = None
) -> Callable[[Any, Path, bool], Images]:
    """The CIFAR family. Torchvision checks the files' sums before it reads them."""

    def read(sets: Any, root: Path, download: bool) -> Images:
        train, test = (getattr(sets, kind)(str(root), train=part, download=download) for part in (True, False))
        x_train, x_test = (np.ascontiguousarray(np.moveaxis(part.data, -1, 1)) for part in (train, test))
        y_train, y_test = _labels(train), _labels(test)
        if superclasses is None:
            return Images(x_train, y_train, x_test, y_test)
        coarse = {name: number for number, names in enumerate(superclasses.values()) for name in names}
        of = np.array([coarse[name] for name in train.classes])
        return Images(x_train, of[y_train], x_test, of[y_test], y_train, y_test)

    return read


def _svhn(sets: Any, root: Path, download: bool) -> Images:
    """Street View house numbers, cropped (Netzer et al., 2011)."""
    train, test = (sets.SVHN(str(root / "SVHN"), split=part, download=download) for part in ("train", "test"))
    return Images(train.data, np.asarray(train.labels, np.int64), test.data, np.asarray(test.labels, np.int64))


def _usps(sets: Any, root: Path, download: bool) -> Images:
    """The postal service's digits (Hull, 1994)."""
    if download:
        (root / "USPS").mkdir(parents=True, exist_ok=True)
    train, test = (sets.USPS(str(root / "USPS"), train=part, download=download) for part in (True, False))
    return Images(train.data[:, None], _labels(train), test.data[:, None], _labels(test))


#: CIFAR-100's superclasses and their classes, both in the order of their numbers
CIFAR100 = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}

SUN_HIERARCHY = "hierarchy_three_levels/three_levels.xlsx"
SUN_SUPERCLASSES = ("indoor", "outdoor, natural", "outdoor, man-made")
SUN_SUBCLASSES, SUN_IMAGES, SUN_TRAIN, SUN_SIDE = 50, 100, 80, 64


def _sun(sets: Any, root: Path, download: bool) -> Images:
    """pFedVEM's part of SUN397: 50 subclasses for each of the three superclasses, 100 images of each (Appendix A).

    Subclasses that belong to one superclass only, the first ones in the hierarchy's order; their first images by name;
    80 for training, drawn at random, always the same. Cut to the middle square and resized to 64 x 64.
    """
    wanted = _sun_hierarchy(root / SUN_HIERARCHY)
    sets.SUN397(str(root), download=download)  # finds or fetches it; its own list of images comes in no fixed order
    rng = np.random.default_rng(0)
    parts: dict[bool, list[tuple[np.ndarray, int, int]]] = {True: [], False: []}
    for fine, (folder, coarse) in enumerate(wanted):
        place = root / "SUN397" / folder
        files = sorted(place.glob("sun_*.jpg"))[:SUN_IMAGES]
        if len(files) < 5:
            raise UserError(f"{place} holds {len(files)} images, too few to split into training and test")
        cut = SUN_TRAIN * len(files) // SUN_IMAGES
        for rank, at in enumerate(rng.permutation(len(files))):
            parts[rank < cut].append((_square(files[at]), coarse, fine))
    arrays = [np.stack(column) for part in (True, False) for column in zip(*parts[part], strict=True)]
    x_train, y_train, fine_train, x_test, y_test, fine_test = arrays
    return Images(x_train, y_train, x_test, y_test, fine_train, fine_test)


def _sun_hierarchy(path: Path) -> list[tuple[str, int]]:
    """(folder, superclass) of the chosen subclasses, superclass by superclass."""
    import pandas as pd

    try:
        sheet = pd.read_excel(path, sheet_name="SUN397", header=1)
    except ImportError as error:
        raise UserError(f"{path} is a spreadsheet, which needs openpyxl: pip install openpyxl") from error
    lacking = [c for c in ("category", *SUN_SUPERCLASSES) if c not in sheet.columns]
    if lacking:
        raise UserError(f"{path}: sheet SUN397 lacks the column {lacking[0]!r}")
    sheet = sheet.dropna(subset=["category", *SUN_SUPERCLASSES])
    one = sheet[sheet[list(SUN_SUPERCLASSES)].sum(axis=1) == 1]  # some belong to two superclasses, or three
    return [
        (str(category).strip("' ").strip("/"), coarse)
        for coarse, name in enumerate(SUN_SUPERCLASSES)
        for category in one.loc[one[name] == 1, "category"][:SUN_SUBCLASSES]
    ]


def _square(path: Path) -> np.ndarray:
    """The middle square of a picture at 64 x 64, (3, 64, 64) uint8."""
    from PIL import Image

    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    small = picture.crop((left, top, left + side, top + side)).resize((SUN_SIDE, SUN_SIDE))
    return np.ascontiguousarray(np.moveaxis(np.asarray(small), -1, 0))


def _idx(folder: str, *stems: str) -> str:
    files = ", ".join(f"{stem}-{what}" for stem in stems for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return f"{folder}/raw/ with {files}"


LAYOUTS: dict[str, Layout] = {
    "mnist": Layout(_grey("MNIST"), "MNIST", _idx("MNIST", "train", "t10k"), "12 MB"),
    "fashion-mnist": Layout(_grey("FashionMNIST"), "FashionMNIST", _idx("FashionMNIST", "train", "t10k"), "31 MB"),
    "emnist": Layout(
        _grey("EMNIST", split="balanced"), "EMNIST",
        _idx("EMNIST", "emnist-balanced-train", "emnist-balanced-test"), "562 MB",
    ),
    "cifar10": Layout(
        _colour("CIFAR10"), "cifar-10-batches-py",
        "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch, batches.meta", "170 MB",
    ),
    "cifar100": Layout(
        _colour("CIFAR100", CIFAR100), "cifar-100-python", "cifar-100-python/ with train, test, meta", "169 MB"
    ),
    "svhn": Layout(_svhn, "SVHN", "SVHN/ with train_32x32.mat and test_32x32.mat", "246 MB"),
    "usps": Layout(_usps, "USPS", "USPS/ with usps.bz2 and usps.t.bz2", "9 MB"),
    "sun397": Layout(
        _sun, "SUN397", f"SUN397/ with ClassName.txt and the folders a to z, and {SUN_HIERARCHY}",
        "39 GB", SUN_HIERARCHY,
    ),
}  # fmt: skip
