"""Clients that differ in what labels look like, not in how often they come: label shares should gain and lose nothing.

    python concept_drift.py concept_drift.csv

The digits are dealt to 20 clients, each with all classes. Either four clients have their labels permuted, each in its
own way, or clients are of four domains (as they are, negative, turned by 90 degrees, mirrored), five clients each.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from hierfl import Federation
from hierfl.data.datasets import registry
from hierfl.inference import fit
from hierfl.inference.evaluation.protocols import evaluate_protocols
from hierfl.models import PFedHB
from hierfl.nn.networks.build import architecture

CLIENTS, PERMUTED, SEEDS, ROUNDS = 20, 4, (1, 2, 3), 30


def drifted(case: str, seed: int) -> Federation:
    """The federation of a case."""
    fed = Federation.from_pool(registry.load("digits", Path("data")), CLIENTS, "iid", validation=0.0, seed=seed)
    rng, side = np.random.default_rng([seed, 53]), 8
    x, y, begun = [fed.x], [fed.y], len(fed.x)
    train, test = list(fed.train), list(fed.test)
    for j in range(CLIENTS):
        if case == "permuted labels" and j >= PERMUTED:
            continue
        order = torch.as_tensor(rng.permutation(fed.classes))
        for split in (train, test):
            pictures, labels = fed.x[split[j]], fed.y[split[j]]
            if case == "permuted labels":
                labels = order[labels]
            else:
                square = pictures.reshape(-1, side, side)
                turned = (square, fed.extent[1] - square, square.rot90(1, (1, 2)), square.flip(2))[j % 4]
                pictures = turned.reshape(pictures.shape)
            x.append(pictures)
            y.append(labels)
            split[j] = torch.arange(begun, begun + len(labels))
            begun += len(labels)
    return dataclasses.replace(fed, x=torch.cat(x), y=torch.cat(y), train=train, test=test)


def rows(case: str, seed: int) -> pd.DataFrame:
    """The metrics of one run: its global model is FedAvg's."""
    fed = drifted(case, seed)
    method = PFedHB(architecture("mlp:64", fed), heads="off", lr=0.1, batch=10, epochs=2)
    run = fit(method, fed, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False)
    table = pd.DataFrame(evaluate_protocols(run.fitted, ["own"], draws=20))
    return table.assign(case=case, seed=seed)


if __name__ == "__main__":
    table = pd.concat([rows(case, seed) for case in ("permuted labels", "domains") for seed in SEEDS])
    columns = ["case", "seed", "predictions", "shares", "transductive", "accuracy", "nll", "ece"]
    table[columns].round(5).to_csv(sys.argv[1], index=False)
