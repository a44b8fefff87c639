"""Studies of a plain Pyro model: a file of its own, and a table at every site with more columns than it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from support.any_models import FEW, counts
from support.parties import Parties
from support.studies import FileStudy, write_tables

from hierfl.experiments.federate.draft import draft

#: a model's file; ``EXECUTED`` beside it says that it was run
VISITS = '''\
"""Counts by site."""

import pyro
import torch
from pyro.distributions import Normal, Poisson


def model(batch):
    beta = pyro.sample("beta", Normal(torch.zeros(2), 0.2).to_event(1))
    shift = pyro.deterministic("rate", beta[..., 0].exp())
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(beta[..., 0], 0.3))
        with pyro.plate("data", batch.width, dim=-1):
            old = 0.1 * (batch["ward"] == 1)
            pyro.sample("y", Poisson((u + beta[..., 1] * batch["x"] + old).exp()), obs=batch["visits"])
'''
#: levels of the column of text
WARDS = ("new", "old")
ROWS = (27, 14, 19)


def visits(rows: tuple[int, ...] = ROWS) -> pd.DataFrame:
    """Sites' rows; the columns "diary" and "dose" are read by nobody, and one is not a number, the other has holes."""
    df = counts(rows)
    df["visits"] = df.pop("y").astype(int)
    ward = [WARDS[k % 2] for k in range(len(df))]
    return df.assign(ward=ward, diary="a secret", dose=[None, *[1.0] * (len(df) - 1)])


def model_study(folder: Path, own: dict[str, Path], text: str = VISITS, **given: Any) -> Path:
    """study.toml of a model's file, with the cards of ``parties`` where they are given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "visits.py").write_text(text)
    sample, out = folder / "sample.csv", folder / "study.toml"
    table = pd.DataFrame({"visits": [0, 3], "x": [0.5, -1.5], "ward": list(WARDS), "more": ["p", "q"]})
    table.to_csv(sample, index=False)
    parties, settings = given.pop("parties", None), {**FEW, **given.pop("settings", {})}
    options = {"rounds": 60, **given}
    keys = parties.keys if parties else None
    method = str(folder / "visits.py")
    out.write_text(draft(method, sample, list(own), "visits", options, settings, keys=keys, out=out))
    return out


def model_sites(folder: Path, rows: tuple[int, ...] = ROWS, **given: Any) -> FileStudy:
    """The same with its server and sites."""
    own = write_tables(visits(rows), folder / "data")
    parties = Parties.of(list(own))
    return FileStudy(model_study(folder, own, parties=parties, **given), own, folder, parties)
