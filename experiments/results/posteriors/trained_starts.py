"""Final spreads of heads from four starts, the base trained as shipped: PFedHB and PFedEB.

    python -P experiments/results/posteriors/trained_starts.py OUT.csv [--method pfedhb] [--data digits]
        [--starts 0.05 0.2 1 5] [--seeds 2] [--first-seed 0] [--rounds 30] [--set NAME=VALUE ...]

Data are the digits (20 clients of five classes, mlp:64, or mlp:16 where a fit has to be cheap), or clients whose heads
differ: those of `tests/support/part_simulations.py` (rho = 0.5, five classes, 5 to 250 rows) under a linear network or
mlp:16. A row is written as its fit ends; rows that are in OUT.csv are not computed again. A line at the end says for
each case how far apart its fits are: the largest over the smallest rho, and the difference of logarithms in standard
errors.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from hierfl import fit
from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.models import PFedEB, PFedHB
from hierfl.nn.networks.build import architecture

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.part_simulations import CLASSES, FEATURES, simulated

METHODS = {"pfedhb": (PFedHB, "heads"), "pfedeb": (PFedEB, "w")}
#: how each method is trained where settings that ship are of larger data
TRAINED: dict[tuple[str, str], dict[str, Any]] = {
    ("pfedhb", "heads"): {"epochs": 2, "lr": 0.1}, ("pfedeb", "heads"): {"base_epochs": 2, "base_lr": 0.05},
    ("pfedeb", "digits"): {"base_lr": 0.005},
}  # fmt: skip
#: rho below which it is at its floor, exp(-7)
FLOOR = 0.001
BLOCKS = "weights", "biases"
#: at the clients' test rows, of the digits
TESTED = "pm_accuracy", "pm_nll", "pm_draws_nll", "gm_accuracy"


def made(data: str, seed: int) -> tuple[Federation, Any]:
    """The federation and its network."""
    if data.startswith("digits"):
        pool = registry.load("digits", "data", seed)
        federation = Federation.from_pool(pool, 20, "label-skew:5", validation=0.0, seed=seed)
        return federation, architecture(data.partition("-")[2] or "mlp:64", federation)
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn((CLASSES, FEATURES + 1), generator=generator, dtype=torch.float64)
    federation = simulated("heads", seed, w)
    return federation, architecture(data.removeprefix("heads-"), federation)


def row(method: str, data: str, seed: int, start: float, rounds: int, more: dict[str, str]) -> dict[str, float]:
    """Fits once, and returns spreads and metrics."""
    federation, network = made(data, seed)
    cls, name = METHODS[method]
    settings = {**TRAINED.get((method, data.split("-")[0]), {}), **more}
    how: dict[str, Any] = {"seed": seed, "evaluate_every": 10_000, "progress": False}
    tested = data.startswith("digits")
    run = fit(cls(network, sigma_0=start, draws=50 if tested else 2, **settings), federation, rounds, **how)
    shared, metrics = run.shared, run.last("test") if tested else {}
    rho = shared[f"{name}.log_rho"].exp().tolist()
    error = torch.linalg.inv(shared[f"{name}.information"].double()).diagonal().sqrt().tolist()
    return {
        **{f"rho_{b}": round(v, 5) for b, v in zip(BLOCKS, rho, strict=True)},
        **{f"se_log_{b}": round(v, 4) for b, v in zip(BLOCKS, error, strict=True)},
        **{k: round(float(metrics[k]), 4) for k in TESTED if k in metrics},
    }


def apart(rows: pd.DataFrame) -> str:
    """How far apart each case's fits are."""
    lines = []
    for key, case in rows.groupby(["method", "settings", "data", "seed", "rounds"], dropna=False):
        for block in BLOCKS:
            rho = case[f"rho_{block}"]
            # Those at the floor have no standard error.
            error = case.loc[(rho >= FLOOR) | (rho.max() < FLOOR), f"se_log_{block}"].max()
            ratio = rho.max() / rho.min()
            verdict = "floor" if rho.max() < FLOOR else "met" if ratio <= 1.25 or np.log(ratio) <= error else "MISSED"
            lines.append(
                f"{' '.join(map(str, key))} {block}: {rho.min():.4g} to {rho.max():.4g}, ratio {ratio:.3f}, "
                f"{np.log(ratio) / error:.2f} standard errors: {verdict}"
            )
    return "\n".join(lines)


def main() -> None:
    """Computes the rows that lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", choices=METHODS, default="pfedhb")
    parser.add_argument("--data", choices=["digits", "digits-mlp:16", "heads-linear", "heads-mlp:16"], default="digits")
    parser.add_argument("--starts", type=float, nargs="+", default=[0.05, 0.2, 1.0, 5.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = pd.read_csv(given.out, keep_default_na=False).to_dict("records") if given.out.is_file() else []
    more = dict(text.split("=", 1) for text in given.set)
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for start in given.starts:
            key = {
                "method": given.method, "settings": " ".join(given.set), "data": given.data, "seed": seed,
                "rounds": given.rounds, "rho_0": start,
            }  # fmt: skip
            if any(all(r[k] == v for k, v in key.items()) for r in rows):
                continue
            began = time.process_time()
            found = row(given.method, given.data, seed, start, given.rounds, more)
            rows.append({**key, **found, "cpu_seconds": round(time.process_time() - began, 1)})
            pd.DataFrame(rows).to_csv(given.out, index=False)
            print(rows[-1], flush=True)
    print(apart(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
