"""Studies of three sites with forty rows each, by files: small, and far from every threshold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from support.studies import FileStudy, formula_study, write_tables

from hierfl.inference.run.checkpoint import load

NAMES = ("north", "south", "east")


def three_tables(folder: Path) -> dict[str, Path]:
    """Three sites' files."""
    rng = np.random.default_rng(0)
    site = np.repeat(NAMES, 40)
    age = rng.normal(60, 10, len(site)).clip(20, 99).round(1)
    y = 0.05 * age + np.repeat(rng.normal(size=3), 40) + rng.normal(size=len(site))
    return write_tables(pd.DataFrame({"site": site, "age": age, "y": y, "stage": "I"}), folder)


def study_of(own: dict[str, Path], folder: Path) -> Path:
    """study.toml of a mixed-effects model of them."""
    return formula_study(folder, own, formula="y ~ age + (1 | site)")


def same(first: FileStudy, other: FileStudy) -> None:
    """To the bit: what the servers have in the end, and the sites."""
    for name, value in load(first.folder / "server" / "checkpoint")[0].items():
        assert torch.equal(value, load(other.folder / "server" / "checkpoint")[0][name]), name
    for name in NAMES:
        mine, others = (load_file(file_study.site_folder(name) / "site.safetensors") for file_study in (first, other))
        assert all(torch.equal(value, others[key]) for key, value in mine.items() if key != "answer")
