"""Sites' homes after a study: keys, approval, audit file, state, and the ledger of the site's account."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from support.once import Once
from support.studies import FileStudy, written

from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.guard.home import Home
from hierfl.experiments.federate.guard.ledger import Ledger
from hierfl.experiments.federate.study import Study

SITES = ("north", "south", "west")


@dataclass
class Kept:
    """A site's home with one study that has ended, and its account's ledger.

    Attributes:
        home: the site's own folder.
        folder: of the study in it.
        ledger: of the account.
        study: digest of the study.
        root: of all of it: ``exchange``, ``server``, the homes.
    """

    home: Home
    folder: Path
    ledger: Ledger
    study: str
    root: Path


def small_study(folder: Path, sizes: tuple[int, ...] = (40, 44, 48)) -> FileStudy:
    """A study of three sites, approved by all; a table of numbers."""
    rng, sample = np.random.default_rng(1), folder / "sample.csv"
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"y": [20.5, 21.5], "x": [0.25, 1.5]}).to_csv(sample, index=False)
    files = {}
    for name, rows in zip(SITES, sizes, strict=True):
        x = rng.normal(size=rows).round(2)
        files[name] = folder / f"{name}.csv"
        pd.DataFrame({"y": (20 + x + rng.normal(size=rows)).round(4), "x": x}).to_csv(files[name], index=False)
    options = {"formula": "y ~ x + (1 | site)", "rounds": 2}
    text = draft("mixed-effects", sample, list(files), "small", options, {"draws": 0}, out=folder / "study.toml")
    return FileStudy(written(folder, text), files, folder)


def kept_home(target: Path, once: Once, name: str = "north") -> Kept:
    """A copy of a home after such a study.

    Args:
        target: where it is copied to.
        once: of the session.
        name: of the site.
    """
    made = once("a small study that has ended", lambda folder: small_study(folder).serve())
    shutil.copytree(made, target)
    home, study = Home(target / name), Study.read(target / "study.toml")
    return Kept(home, home.folder_of(study), Ledger(target / "accounts" / name / "ledger"), study.digest, target)
