"""Permuted labels at four of twenty clients: what confusion=on gains at these, and at the others.

python confusion.py confusion.csv [SEED...]
"""

from __future__ import annotations

import sys

import pandas as pd
from concept_drift import PERMUTED, ROUNDS, SEEDS, drifted

from hierfl.inference import fit
from hierfl.models import PFedHB
from hierfl.nn.networks.build import architecture


def rows(seed: int, confusion: str) -> list[dict[str, object]]:
    """The metrics of one run: means over clients, at 20 draws, with their own test rows."""
    fed, found = drifted("permuted labels", seed), []
    method = PFedHB(architecture("mlp:64", fed), heads="off", lr=0.1, batch=10, epochs=2, confusion=confusion)
    run = fit(method, fed, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False)
    flagged = (run.personal["trust"].flatten() < 1).tolist() if confusion == "on" else [False] * fed.clients
    for j, index in enumerate(fed.test):
        for shares in ("own", "test", "uniform"):
            x, y = fed.x[index], fed.y[index]
            p = run.predict(x, client=j, draws=20, shares=shares)
            nll = -p[range(len(y)), y].log().mean()
            hit = (p.argmax(-1) == y).double().mean()
            who = "permuted" if j < PERMUTED else "others"
            found.append({"seed": seed, "confusion": confusion, "clients": who, "shares": shares, "flagged": flagged[j],
                          "accuracy": float(hit), "nll": float(nll)})  # fmt: skip
    return found


if __name__ == "__main__":
    seeds = [int(s) for s in sys.argv[2:]] or SEEDS
    each: list[dict[str, object]] = []
    for number in seeds:
        for switch in ("off", "on"):
            each += rows(number, switch)
            keys = ["seed", "confusion", "clients", "shares"]
            pd.DataFrame(each).groupby(keys, sort=False).mean().round(5).reset_index().to_csv(sys.argv[1], index=False)
