"""Digits rendered from fonts.

The synthetic digits (Ganin et al., JMLR 2016) are read from their published files where the user has them. Otherwise
they are made here, always the same ones: digits in matplotlib's own fonts. They are then other data of the same kind,
and the pool's ``origin`` says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..readers.matlab_digits import read_matlab_digits
from .generated import GeneratedDataset
from .registry import CNN, DATASETS, DataSet, paper_settings

SYNTHETIC = {"train": "SynthDigits/synth_train_32x32.mat", "test": "SynthDigits/synth_test_32x32.mat"}
#: of those that are made
SYNTHETIC_TRAIN, SYNTHETIC_TEST, SIDE = 10_000, 2_500, 32
#: matplotlib's fonts with plain digits
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta", "cmr10", "cmb10", "cmss10", "cmtt10",
)  # fmt: skip


def synthetic_digits(root: Path) -> GeneratedDataset:
    """The published synthetic digits, or rendered ones.

    Raises:
        UserError: for a published file without its companion, or that cannot be read.
    """
    if any(os.path.lexists(root / name) for name in SYNTHETIC.values()):
        parts = [read_matlab_digits(root / name) for name in SYNTHETIC.values()]
        return GeneratedDataset(*parts[0], *parts[1])
    train, test = (rendered(n, seed) for n, seed in ((SYNTHETIC_TRAIN, 0), (SYNTHETIC_TEST, 1)))
    return GeneratedDataset(*train, *test, "rendered from matplotlib's fonts")


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
        for position, character in enumerate(text):
            draw.text((x + (position - 1) * step, y), character, fill=255, font=font, anchor="mm")
        canvas = canvas.rotate(rng.uniform(-20, 20), Image.Resampling.BILINEAR)
        canvas = canvas.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.0)))
        cut = (wide - SIDE) // 2
        ink = np.asarray(canvas, dtype=np.float64)[cut : cut + SIDE, cut : cut + SIDE] / 255
        paper, pen = rng.uniform(0, 255, 3), rng.uniform(0, 255, 3)
        while np.abs(paper - pen).sum() < 150:  # a digit that can be seen
            pen = rng.uniform(0, 255, 3)
        picture = paper[:, None, None] + ink * (pen - paper)[:, None, None] + rng.normal(0, 8, (3, SIDE, SIDE))
        images[k] = picture.clip(0, 255).round()
    return images, labels.astype(np.int64)


DATASETS["synthetic-digits"] = DataSet(
    "32x32 digits from fonts (published, or 12,500 made here)",
    lambda root: synthetic_digits(root).pool("synthetic-digits"), **paper_settings(CNN),
)  # fmt: skip
