"""A client whose training labels are shuffled: what confusion=on and =trust save the others, and what honest runs pay.

    python shuffled.py shuffled.csv ROUNDS [SEED...]

Twenty digits clients of five classes each. The client is the one of most training rows. NLL is of the 19 others, at the
posterior mean, of their own test rows.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import pandas as pd
import torch

from hierfl import Federation
from hierfl.data.datasets import registry
from hierfl.inference import fit
from hierfl.models import PFedHB
from hierfl.nn.networks.build import architecture

#: cases of what the client sends
CASES = "honest", "shuffled", "absent"


def federation(case: str, seed: int) -> tuple[Federation, int]:
    """The data of a case, and which client it is about; -1 where it is absent."""
    fed = Federation.from_pool(registry.load("digits", Path("data")), 20, "label-skew:5", validation=0.0, seed=seed)
    largest = max(range(fed.clients), key=lambda j: len(fed.train[j]))
    if case == "absent":
        return fed.select([j for j in range(fed.clients) if j != largest]), -1
    y, index = fed.y.clone(), fed.train[largest]
    if case == "shuffled":
        y[index] = y[index][torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))]
    return dataclasses.replace(fed, y=y), largest


def row(case: str, confusion: str, rounds: int, seed: int) -> dict[str, object]:
    """The metrics of one run."""
    fed, client = federation(case, seed)
    method = PFedHB(architecture("mlp:64", fed), heads="off", lr=0.1, batch=10, epochs=2, confusion=confusion)
    begun = time.process_time()
    run = fit(method, fed, rounds=rounds, seed=seed, evaluate_every=rounds, progress=False)
    seconds = time.process_time() - begun
    nll = []
    for j, index in enumerate(fed.test):
        if j != client:
            p = run.predict(fed.x[index], client=fed.ids[j], draws=0)
            nll.append(float(-p[range(len(index)), fed.y[index]].log().mean()))
    trust = run.personal["trust"].flatten() if confusion != "off" else torch.ones(fed.clients)
    flagged = [j for j in range(fed.clients) if trust[j] < 1 and j != client]
    return {
        "seed": seed, "rounds": rounds, "client": case, "confusion": confusion, "nll_others": sum(nll) / len(nll),
        "rows": len(fed.train[client]) if client >= 0 else 0, "weight": float(trust[client]) if client >= 0 else 0.0,
        "others_flagged": len(flagged), "cpu_seconds": seconds,
    }  # fmt: skip


if __name__ == "__main__":
    seeds = [int(s) for s in sys.argv[3:]] or [1, 2, 3]
    each: list[dict[str, object]] = []
    for number in seeds:
        for kind in CASES:
            for switch in ("off", "trust", "on"):
                if (kind, switch) != ("absent", "on"):
                    each.append(row(kind, switch, int(sys.argv[2]), number))
                    pd.DataFrame(each).round(4).to_csv(sys.argv[1], index=False)
