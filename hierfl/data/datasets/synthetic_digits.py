"""Digits of several domains: MNIST on photographs, digits rendered from fonts, and federations of domains.

MNIST-M and the synthetic digits (Ganin et al., JMLR 2016) are read from their published files where the user has them.
Otherwise they are made here, always the same ones: MNIST's digits on patches of photographs, and digits in matplotlib's
own fonts. They are then other data of the same kind, and the pool's ``origin`` says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ..readers.safe_files import check_size, read_picture, read_text, shown
from .torchvision_layout import read_matlab_digits

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Made:
    """uint8 images (N, 3, height, width) and labels (N,), training and test; and how they were come by."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    origin: str = ""


# -- MNIST-M ---------------------------------------------------------------------------------------------------------

#: the published folders, and their lists of "FILE LABEL"
MNIST_M = {
    "train": ("mnist_m/mnist_m_train", "mnist_m/mnist_m_train_labels.txt"),
    "test": ("mnist_m/mnist_m_test", "mnist_m/mnist_m_test_labels.txt"),
}
PHOTOGRAPHS = "BSDS500"


def mnist_m(root: Path, mnist: Callable[[], Arrays]) -> Made:
    """MNIST-M: the published pictures, or |patch - digit| with patches of photographs, as it was made.

    Args:
        root: where data sets lie; photographs of its folder BSDS500, where there is one, otherwise scikit-learn's two.
        mnist: MNIST's arrays, (N, 1, 28, 28) uint8 images and labels; asked only where it is made.

    Raises:
        UserError: for published files that are incomplete.
    """
    if os.path.lexists(root / MNIST_M["train"][1]):
        parts = [_listed(root / folder, root / names) for folder, names in MNIST_M.values()]
        return Made(*parts[0], *parts[1])
    x_train, y_train, x_test, y_test = mnist()
    photographs, which = _photographs(root)
    made = [blended(x, photographs, np.random.default_rng([28, k])) for k, x in enumerate((x_train, x_test))]
    return Made(made[0], y_train, made[1], y_test, f"made from mnist and patches of {which}")


def _listed(folder: Path, names: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (of one size) and labels from a folder and a list of its files."""
    if not names.is_file():
        raise UserError(f"mnist-m is incomplete: no file {names}")
    images: list[np.ndarray] = []
    labels = []
    lines = [line.strip() for line in read_text(names, "mnist-m's list of FILE LABEL").split("\n") if line.strip()]
    for line in lines:
        name, _, label = line.rpartition(" ")
        # (a name out of a list must not lead elsewhere)
        plain = name == os.path.basename(name) and (folder / name).is_file()
        if not plain or label not in map(str, range(10)):
            raise UserError(f"mnist-m is incomplete: {names} speaks of {shown(line)!r}, which is not in {folder}")
        picture = np.moveaxis(read_picture(folder / name), -1, 0)
        if images and picture.shape != images[0].shape:
            raise UserError(f"mnist-m: {folder / name} has another size than those before it")
        if not images:
            check_size(names, len(lines) * picture.nbytes, "all its pictures")
        images.append(picture)
        labels.append(int(label))
    if not images:
        raise UserError(f"mnist-m is incomplete: {names} is empty")
    return np.stack(images), np.array(labels, dtype=np.int64)


def _photographs(root: Path) -> tuple[list[np.ndarray], str]:
    """Photographs (height, width, 3), and what they are."""
    files = sorted((root / PHOTOGRAPHS).rglob("*.jpg")) if (root / PHOTOGRAPHS).is_dir() else []
    if files:
        found = []
        for path in files:
            found.append(read_picture(path))
            if min(found[-1].shape[:2]) < 28:
                raise UserError(f"{path} is smaller than the 28x28 pixels of a digit")
            check_size(root / PHOTOGRAPHS, sum(picture.nbytes for picture in found), "all its photographs")
        return found, f"{len(files)} photographs of {PHOTOGRAPHS}"
    from sklearn.datasets import load_sample_images

    return list(load_sample_images().images), "scikit-learn's two sample photographs"


def blended(x: np.ndarray, photographs: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """|patch - digit| in each colour, (N, 3, h, w), from grey images (N, 1, h, w) and random patches."""
    n, _, height, width = x.shape
    which = rng.integers(len(photographs), size=n)
    out = np.empty((n, 3, height, width), dtype=np.uint8)
    for k, photograph in enumerate(photographs):
        own = np.flatnonzero(which == k)
        top = rng.integers(photograph.shape[0] - height + 1, size=len(own))
        left = rng.integers(photograph.shape[1] - width + 1, size=len(own))
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (height, width), axis=(0, 1))
        out[own] = windows[top, left]
    return np.abs(out.astype(np.int16) - x).astype(np.uint8)


# -- synthetic digits ------------------------------------------------------------------------------------------------

SYNTHETIC = {"train": "SynthDigits/synth_train_32x32.mat", "test": "SynthDigits/synth_test_32x32.mat"}
#: of those that are made
SYNTHETIC_TRAIN, SYNTHETIC_TEST, SIDE = 10_000, 2_500, 32
#: matplotlib's fonts with plain digits
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta", "cmr10", "cmb10", "cmss10", "cmtt10",
)  # fmt: skip


def synthetic_digits(root: Path) -> Made:
    """The published synthetic digits, or rendered ones.

    Raises:
        UserError: for a published file without its companion, or that cannot be read.
    """
    if any(os.path.lexists(root / name) for name in SYNTHETIC.values()):
        parts = [read_matlab_digits(root / name) for name in SYNTHETIC.values()]
        return Made(*parts[0], *parts[1])
    train, test = (rendered(n, seed) for n, seed in ((SYNTHETIC_TRAIN, 0), (SYNTHETIC_TEST, 1)))
    return Made(*train, *test, "rendered from matplotlib's fonts")


def rendered(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits of random font, size, place, angle, colours, blur and noise, with others at their sides now and then.

    Returns:
        (n, 3, 32, 32) uint8 and labels (n,), each label equally often; a function of the seed.
    """
    import matplotlib
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    folder, rng = Path(matplotlib.get_data_path()) / "fonts" / "ttf", np.random.default_rng([32, seed])
    fonts: dict[tuple[str, int], Any] = {}
    labels = rng.permutation(np.arange(n) % 10)
    images = np.empty((n, 3, SIDE, SIDE), dtype=np.uint8)
    wide = 2 * SIDE  # room to turn
    for k, label in enumerate(labels):
        name, size = FONTS[rng.integers(len(FONTS))], int(rng.integers(18, 30))
        if (name, size) not in fonts:
            fonts[name, size] = ImageFont.truetype(str(folder / f"{name}.ttf"), size)
        font = fonts[name, size]
        text = [str(rng.integers(10)) if rng.random() < 0.35 else " ", str(label)]
        text.append(str(rng.integers(10)) if rng.random() < 0.35 else " ")
        canvas = Image.new("L", (wide, wide))
        draw, step = ImageDraw.Draw(canvas), 0.7 * size
        x, y = wide / 2 + rng.uniform(-3, 3), wide / 2 + rng.uniform(-3, 3)
        for place, character in enumerate(text):
            draw.text((x + (place - 1) * step, y), character, fill=255, font=font, anchor="mm")
        canvas = canvas.rotate(rng.uniform(-20, 20), Image.Resampling.BILINEAR)
        canvas = canvas.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.0)))
        cut = (wide - SIDE) // 2
        ink = np.asarray(canvas, dtype=np.float64)[cut : cut + SIDE, cut : cut + SIDE] / 255
        paper, pen = rng.uniform(0, 255, 3), rng.uniform(0, 255, 3)
        while np.abs(paper - pen).sum() < 150:  # (a digit that can be seen)
            pen = rng.uniform(0, 255, 3)
        picture = paper[:, None, None] + ink * (pen - paper)[:, None, None] + rng.normal(0, 8, (3, SIDE, SIDE))
        images[k] = picture.clip(0, 255).round()
    return images, labels.astype(np.int64)


# -- federations of domains ------------------------------------------------------------------------------------------

DIGIT_FIVE = ("mnist", "svhn", "usps", "synthetic-digits", "mnist-m")
DIGIT_THREE = ("mnist", "mnist-m", "synthetic-digits")


def resized(x: np.ndarray, side: int = 28) -> np.ndarray:
    """uint8 images (N, 1 or 3, h, w) as (N, 3, side, side): bilinear, without aliasing; grey in all colours."""
    import torch
    from torch.nn.functional import interpolate

    out = np.empty((len(x), 3, side, side), dtype=np.uint8)
    for first in range(0, len(x), 5000):
        part = x[first : first + 5000]
        if part.shape[2:] != (side, side):
            floats = torch.as_tensor(part).float()
            part = interpolate(floats, (side, side), mode="bilinear", antialias=True).round().clamp(0, 255).numpy()
        out[first : first + 5000] = part  # (one channel becomes three)
    return out
