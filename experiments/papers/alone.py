"""Models of one domain alone, on the test data of every domain: pFedV's Table 1.

    hierfl table pfedv-1 --data digit-three --data-root DATA --out OUT

Each domain is a client that learns by itself (`local`, for as many epochs as the paper's single-site training has); its
model is then asked of the test images of all domains. What OUT/alone.json holds is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.data.pool import PooledDataset
from hierfl.errors import UserError
from hierfl.inference.run.fit import Fit
from hierfl.nn.networks.build import architecture

from ..build import options_of
from ..configure import configure
from ..grid import read_cells
from ..messages import to_stderr
from ..methods import load
from ..run_folder.files import write_text

STEPS = {"epochs": 1, "lr": 0.01, "batch": 32, "momentum": 0.0}


def accuracies(
    pool: PooledDataset, data: str, seed: int, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """{trained on: {tested on: accuracy}} of one seed.

    Args:
        pool: a data set of domains.
        data: its name.
        seed: of the split and of training.
        options: run options as said; rounds are epochs.
        settings: of `local`, as said.
    """
    if pool.client_train is None or pool.client_test is None:
        raise UserError(f"{data} has no domains")
    domains = [str(name) for name in dict.fromkeys(pool.client_train.astype(str))]
    given = {"clients": len(domains), "validation_fraction": 0.0, "evaluate_every": 1000, **options, "seed": seed}
    config = configure("local", data, given, {**STEPS, **settings})
    federation = Federation.from_pool(pool, len(domains), config.run.split, validation=0.0, seed=seed)
    method = load("local").cls
    network = architecture(config.run.network, federation, latent=method.latent)
    run = Fit(method(network, **config.settings), federation, replace(options_of(config), splits=())).run(
        progress=False
    )
    tests = {name: pool.client_test.astype(str) == name for name in domains}
    shown: dict[str, dict[str, float]] = {}
    for client, name in enumerate(federation.ids):
        own = shown[str(name)] = {}
        for domain, mask in tests.items():
            predicted = run.predict(torch.as_tensor(pool.x_test[mask]), client=client).argmax(-1).cpu().numpy()
            own[domain] = float(np.mean(predicted == pool.y_test[mask]))
    return shown


def run_alone(
    data: Sequence[str], root: Path, seeds: int, options: Mapping[str, Any], settings: Mapping[str, Any], out: Path,
    collect: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Runs what is missing; cells with data, seed and accuracies.

    Raises:
        UserError: for data that are not there, or that have no domains.
    """
    path = out / "alone.json"
    facts = {"experiment": "pfedv-1", **options, "settings": dict(settings)}
    for name in () if collect else data:
        for seed in range(seeds):
            cells = read_cells(path, facts)
            if any((cell["data"], cell["seed"]) == (name, seed) for cell in cells):
                continue
            to_stderr()(f"{name}, seed {seed}")
            pool = registry.load(name, root)
            values = accuracies(pool, name, seed, options, settings)
            cells = [*read_cells(path, facts), {"data": name, "seed": seed, "origin": pool.origin, "accuracy": values}]
            out.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({**facts, "cells": cells}, indent=1) + "\n")
    return read_cells(path, facts)
