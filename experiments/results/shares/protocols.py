"""The digits under three protocols, with the settings that ship: what `hierfl run` and `hierfl protocol` say.

    python protocols.py protocols.csv [SEED...]

Nothing but the rows of `hierfl protocol --offset` is kept: no run folders, no draws of training data.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pandas as pd

from hierfl import Federation
from hierfl.data.datasets import registry
from hierfl.experiments.methods import load, shipped_settings
from hierfl.inference import fit
from hierfl.inference.evaluation.protocols import evaluate_protocols
from hierfl.nn.networks.build import architecture

ROUNDS = 30
ROWS = (
    ("pfedhb", {"heads": "off"}), ("fedrod", {}), ("fedrod", {"shares": "on"}), ("fedpac", {}),
    ("fedpac", {"shares": "on"}), ("pfedvem", {}), ("pfedvem", {"shares": "on"}),
)  # fmt: skip
COLUMNS = ("method", "setting", "seed", "protocol", "predictions", "shares", "transductive", "accuracy", "nll", "ece")


def rows(name: str, more: dict[str, str], seed: int) -> pd.DataFrame:
    """The metrics of one run. pFedHB's global model is FedAvg's, to the bit."""
    pool = registry.load("digits", Path("data"))
    fed = Federation.from_pool(pool, 20, "label-skew:5", validation=0.0, seed=seed)
    settings, _ = shipped_settings(name, "digits")
    method = load(name).cls(architecture("mlp:64", fed), **{**settings, **more})
    run = fit(method, fed, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False)
    draws, offset = run.options.draws if run.random else 0, method.has_global_model and name != "pfedhb"
    table = pd.DataFrame(evaluate_protocols(run.fitted, draws=draws, offset=offset))
    return table.assign(method=name, setting=" ".join(f"{k}={v}" for k, v in more.items()), seed=seed)


if __name__ == "__main__":
    path, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [1, 2, 3]
    for seed in seeds:
        for name, more in ROWS:
            table = rows(name, more, seed)[list(COLUMNS)].round(5)
            table.to_csv(path, index=False, mode="a", header=not path.exists())
            print(name, more, seed, f"{time.process_time():.0f} CPU s", flush=True)
