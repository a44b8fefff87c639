"""Image sets in the layout of torchvision: read here, downloaded by torchvision where they are not there.

The only file that knows torchvision, and it is imported only when something is to be downloaded: its build must match
torch's, and whoever never needs it should not be stopped by that. Its own readers are not used: they unpickle, and take
what a file says of its size for granted. A download is compared with the published check sums (by torchvision); files
that the user put there are read as they are, since nothing in them is executed.
"""

from __future__ import annotations

import logging
import os
import shutil
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
from ..readers import cifar_pickle
from ..readers.mat import read_idx, read_mat
from ..readers.safe_files import DAMAGED, read_picture, read_sheet, read_text, reading, shown

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
    """Where torchvision keeps a set, and how it is read and come by.

    Attributes:
        read: root -> images.
        fetch: torchvision.datasets, root: downloads it.
        urls: torchvision.datasets -> where from; the first that answers.
        folder: under the root.
        files: which files it must hold, in words.
        size: of the download, in words.
        beside: a file that is needed and cannot be downloaded.
    """

    read: Callable[[Path], Images]
    fetch: Callable[[Any, Path], None]
    urls: Callable[[Any], list[str]]
    folder: str
    files: str
    size: str
    beside: str | None = None


def load_images(name: str, root: Path) -> Images:
    """Reads a set of :data:`LAYOUTS` from ``root``, after downloading it where it is not there.

    Nothing is downloaded where the environment says ``HIERFL_OFFLINE=1`` (see :func:`offline`).

    Raises:
        UserError: if it is neither there nor to be had, or damaged; says which files go where.
    """
    layout = LAYOUTS[name]
    subclasses = ", fine_train, fine_test" * (name in ("cifar100", "sun397"))
    advice = f"put {name}.npz (x_train, y_train, x_test, y_test{subclasses}) or {layout.files} into {shown(root)}"
    if layout.beside is not None and not (root / layout.beside).exists():
        raise UserError(
            f"{name} also needs {shown(root / layout.beside)}, which torchvision does not download; {advice}"
        )
    folder = root / layout.folder
    if not _begun(folder):
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


def _begun(folder: Path) -> bool:
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
                folder.rmdir()  # (made before there was anything to put there)
        raise UserError(f"{name} is not in {shown(root)}, and its download failed ({detail}); {advice}") from error


# -- the MNIST family --------------------------------------------------------------------------------------------------


def _grey(folder: str, train: str, test: str, exchanged: bool = False) -> Callable[[Path], Images]:
    """A reader of idx files.

    Args:
        folder: under the root.
        train, test: how the names of the files begin.
        exchanged: whether images are stored with rows and columns exchanged.
    """

    def read(root: Path) -> Images:
        arrays = []
        for stem in (train, test):
            x = read_idx(root / folder / "raw" / f"{stem}-images-idx3-ubyte", 3)
            y = read_idx(root / folder / "raw" / f"{stem}-labels-idx1-ubyte", 1)
            x = np.ascontiguousarray(x.swapaxes(-1, -2)) if exchanged else x
            arrays += [x[:, None], y.astype(np.int64)]
        return Images(*arrays)

    return read


def _fetch_grey(kind: str) -> Callable[[Any, Path], None]:
    def fetch(sets: Any, root: Path) -> None:
        place = str(root / kind / "raw")
        for file, md5 in getattr(sets, kind).resources:
            failures = []
            for mirror in getattr(sets, kind).mirrors:
                try:
                    sets.utils.download_and_extract_archive(mirror + file, place, filename=file, md5=md5)
                    break
                except (RuntimeError, OSError) as error:  # (the next one may have it)
                    failures.append(str(error))
            else:
                raise RuntimeError(f"{file}: {'; '.join(failures)}")

    return fetch


EMNIST_STEMS = ("emnist-balanced-train", "emnist-balanced-test")


def _fetch_emnist(sets: Any, root: Path) -> None:
    """One archive with all six ways of splitting it, of which one is unpacked."""
    place = root / "EMNIST" / "raw"
    sets.utils.download_and_extract_archive(sets.EMNIST.url, str(place), md5=sets.EMNIST.md5)
    for stem in EMNIST_STEMS:
        for what in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            sets.utils.extract_archive(str(place / "gzip" / f"{stem}-{what}.gz"), str(place))
    shutil.rmtree(place / "gzip")


# -- CIFAR, SVHN, USPS -------------------------------------------------------------------------------------------------


def _cifar10(root: Path) -> Images:
    """CIFAR-10 (Krizhevsky, 2009)."""
    folder = root / "cifar-10-batches-py"
    parts = [cifar_pickle.read_batch(folder / f"data_batch_{k}", "labels") for k in range(1, 6)]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Images(x, y, *cifar_pickle.read_batch(folder / "test_batch", "labels"))


def _cifar100(root: Path) -> Images:
    """CIFAR-100 (Krizhevsky, 2009): the superclass is the label."""
    folder = root / "cifar-100-python"
    (x, fine), (x_test, fine_test) = (
        cifar_pickle.read_batch(folder / part, "fine_labels") for part in ("train", "test")
    )
    coarse = {name: number for number, names in enumerate(CIFAR100.values()) for name in names}
    names = cifar_pickle.read_names(folder / "meta", "fine_label_names")
    with reading(folder / "meta", "file of CIFAR-100's names"):
        of = np.array([coarse[name] for name in names])
        both = np.concatenate([fine, fine_test])
        if both.size and not 0 <= both.min() <= both.max() < len(of):
            raise ValueError(f"it has {len(of)} names for labels {both.min()}..{both.max()}")
        return Images(x, of[fine], x_test, of[fine_test], fine, fine_test)


def _fetch_cifar(kind: str) -> Callable[[Any, Path], None]:
    def fetch(sets: Any, root: Path) -> None:
        of = getattr(sets, kind)
        sets.utils.download_and_extract_archive(of.url, str(root), filename=of.filename, md5=of.tgz_md5)

    return fetch


def _svhn(root: Path) -> Images:
    """Street View house numbers, cropped (Netzer et al., 2011)."""
    return Images(*(a for part in ("train", "test") for a in read_matlab_digits(root / f"SVHN/{part}_32x32.mat")))


def read_matlab_digits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """X (height, width, 3, N) and y (N, 1) of a .mat file, as images (N, 3, height, width) and labels; 10 is a nought.

    Raises:
        UserError: for what holds no such arrays.
    """
    arrays = read_mat(path, ("X", "y"))
    x, y = arrays["X"], arrays["y"].reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.dtype.kind not in "iuf":
        raise UserError(f"{shown(path)}: X is {x.dtype}{x.shape}, not uint8 (height, width, 3, N)")
    if not np.isin(y, np.arange(11)).all() or len(y) != x.shape[3]:
        raise UserError(f"{shown(path)}: y is not {x.shape[3]} labels from 0 to 10")
    labels = y.astype(np.int64)
    return np.ascontiguousarray(np.transpose(x, (3, 2, 0, 1))), np.where(labels == 10, 0, labels)


def _usps(root: Path) -> Images:
    """The postal service's digits (Hull, 1994)."""
    return Images(*(array for file in ("usps.bz2", "usps.t.bz2") for array in read_usps(root / "USPS" / file)))


def read_usps(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 1, 16, 16) and labels of lines "LABEL 1:VALUE ... 256:VALUE", labels from 1, values from -1 to 1.

    Raises:
        UserError: for anything else.
    """
    rows, labels = [], []
    text = read_text(path, "a file of USPS's", packed=True)
    with reading(path, "file of USPS's"):
        for line in text.splitlines():
            label, *values = line.split()
            labels.append(int(label) - 1)
            rows.append(np.array([value.rpartition(":")[2] for value in values], dtype=np.float32).reshape(16, 16))
        x = np.stack(rows)[:, None]
        if not (np.abs(x) <= 1).all() or not 0 <= min(labels) <= max(labels) <= 9:
            raise ValueError("its values are not from -1 to 1, or its labels not from 1 to 10")
        return ((x + 1) / 2 * 255).astype(np.uint8), np.array(labels, dtype=np.int64)


def _fetch_listed(kind: str) -> Callable[[Any, Path], None]:
    """SVHN and USPS."""

    def fetch(sets: Any, root: Path) -> None:
        for part in ("train", "test"):
            url, file, md5 = getattr(sets, kind).split_list[part]
            sets.utils.download_url(url, str(root / kind), file, md5)

    return fetch


def _listed_urls(kind: str) -> Callable[[Any], list[str]]:
    return lambda sets: [getattr(sets, kind).split_list[part][0] for part in ("train", "test")]


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


def _sun(root: Path) -> Images:
    """pFedVEM's part of SUN397: 50 subclasses for each of the three superclasses, 100 images of each (Appendix A).

    Subclasses that belong to one superclass only, the first ones in the hierarchy's order; their first images by name;
    80 for training, drawn at random, always the same. Cut to the middle square and resized to 64 x 64.
    """
    wanted = _sun_hierarchy(root / SUN_HIERARCHY)
    rng = np.random.default_rng(0)
    parts: dict[bool, list[tuple[np.ndarray, int, int]]] = {True: [], False: []}
    for fine, (folder, coarse) in enumerate(wanted):
        place = root / "SUN397" / folder
        files = sorted(place.glob("sun_*.jpg"))[:SUN_IMAGES]
        if len(files) < 5:
            raise UserError(f"{shown(place)} holds {len(files)} images, too few to split into training and test")
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
        one = sheet[sheet[list(SUN_SUPERCLASSES)].sum(axis=1) == 1]  # some belong to two superclasses, or three
        chosen = [
            (str(category).strip("' ").strip("/"), coarse)
            for coarse, name in enumerate(SUN_SUPERCLASSES)
            for category in one.loc[one[name] == 1, "category"][:SUN_SUBCLASSES]
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
    of = sets.SUN397
    sets.utils.download_and_extract_archive(of._DATASET_URL, str(root), md5=of._DATASET_MD5)


# -- the sets ----------------------------------------------------------------------------------------------------------


def _idx(folder: str, *stems: str) -> str:
    files = ", ".join(f"{stem}-{what}" for stem in stems for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return f"{folder}/raw/ with {files}"


LAYOUTS: dict[str, Layout] = {
    "mnist": Layout(
        _grey("MNIST", "train", "t10k"), _fetch_grey("MNIST"), lambda sets: sets.MNIST.mirrors,
        "MNIST", _idx("MNIST", "train", "t10k"), "12 MB",
    ),
    "fashion-mnist": Layout(
        _grey("FashionMNIST", "train", "t10k"), _fetch_grey("FashionMNIST"), lambda sets: sets.FashionMNIST.mirrors,
        "FashionMNIST", _idx("FashionMNIST", "train", "t10k"), "31 MB",
    ),
    "emnist": Layout(
        _grey("EMNIST", *EMNIST_STEMS, exchanged=True), _fetch_emnist, lambda sets: [sets.EMNIST.url],
        "EMNIST", _idx("EMNIST", *EMNIST_STEMS), "562 MB",
    ),
    "cifar10": Layout(
        _cifar10, _fetch_cifar("CIFAR10"), lambda sets: [sets.CIFAR10.url], "cifar-10-batches-py",
        "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch", "170 MB",
    ),
    "cifar100": Layout(
        _cifar100, _fetch_cifar("CIFAR100"), lambda sets: [sets.CIFAR100.url], "cifar-100-python",
        "cifar-100-python/ with train, test, meta", "169 MB",
    ),
    "svhn": Layout(
        _svhn, _fetch_listed("SVHN"), _listed_urls("SVHN"), "SVHN",
        "SVHN/ with train_32x32.mat and test_32x32.mat", "246 MB",
    ),
    "usps": Layout(
        _usps, _fetch_listed("USPS"), _listed_urls("USPS"), "USPS", "USPS/ with usps.bz2 and usps.t.bz2", "9 MB",
    ),
    "sun397": Layout(
        _sun, _fetch_sun, lambda sets: [sets.SUN397._DATASET_URL], "SUN397",
        f"SUN397/ with the folders a to z, and {SUN_HIERARCHY}", "39 GB", SUN_HIERARCHY,
    ),
}  # fmt: skip
