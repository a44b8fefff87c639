"""Leave-one-out by PFedEB's draws: Pareto's k, and beside refits.

    python experiments/results/posteriors/loo.py OUT.csv REFITS.csv

OUT.csv: the share of examples with k below 0.7 in federations of 50 clients of 5 to 500 examples, by the clients' size.
REFITS.csv: four clients of 6 to 10 examples of two classes; log p(y_ij | all others) by importance sampling and by
fits without the example. Rows that are there are not computed again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import hierfl  # noqa: F401  # imported first: tests/ has a folder hierfl as well

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.simulated_heads import DRAWS, LARGE, SMALL, Truth, fitted, simulated

from hierfl import Federation
from hierfl.arviz_io import loo
from hierfl.inference.run.result import Run

KEYS = ["family", "rho"]
CASES = [(family, rho) for family in ("gaussian", "logistic", "softmax") for rho in (0.0, 0.3, 1.0)]
FEW = (6, 8, 10, 8)
HOW: dict[str, object] = {"points": 16, "nodes": "off"}


def shares(family: str, rho: float) -> dict[str, object]:
    """Shares of rows with k below 0.7."""
    truth = simulated(family, rho, 0)
    result = loo(fitted(truth, 16, **({} if family == "gaussian" else HOW)).posterior(draws=DRAWS, observed=False))
    k = result["pareto_k"].values
    n = np.repeat(truth.n, truth.n)
    groups = {"all": n > 0, "small": n < SMALL, "middle": (n >= SMALL) & (n < LARGE), "large": n >= LARGE}
    below = {name: round(float((k[which] < 0.7).mean()), 4) for name, which in groups.items()}
    return {"family": family, "rho": rho, "examples": len(k), **below, "largest": round(float(k.max()), 3)}


def without(truth: Truth, client: int, row: int) -> Truth:
    """The federation but for one training example."""
    fed, parts = truth.fed, []
    for j, index in enumerate(fed.train):
        x, y = (v.numpy() for v in fed.examples(index))
        keep = np.arange(len(y)) != (row if j == client else -1)
        parts.append((x[keep], y[keep], np.repeat(fed.ids[j], keep.sum())))
    x, y, who = (np.concatenate(parts_of_array) for parts_of_array in zip(*parts, strict=True))
    left = Federation.from_arrays(x, y, who, test=0.0, task="classification").to(dtype=torch.float64)
    return Truth(left, truth.net, truth.family, truth.rho, truth.w, truth.w_j)


def log_predictive(truth: Truth, run: Run, client: int, row: int) -> float:
    """The log predictive density of an example, by a client's draws."""
    x, y = truth.fed.examples(truth.fed.train[client])
    heads = run.personal["w_j_draws"][client].flatten(0, -2)
    logits = truth.net.head(heads[:, None, None], x[None, row : row + 1])[:, 0, 0]
    return float(logits.log_softmax(-1)[:, y[row]].logsumexp(0) - np.log(len(heads)))


def refits() -> pd.DataFrame:
    """A row for each example."""
    how, rows = {"points": 64, "draws": 4000}, []
    truth = simulated("logistic", 1.0, 1, FEW, features=2)
    ours = loo(fitted(truth, 20, **how).posterior(draws=4000))
    where = [(j, i) for j, n in enumerate(truth.n) for i in range(n)]
    for number, (j, i) in enumerate(where):
        run = fitted(without(truth, j, i), 20, **how)
        rows.append({
            "client": j, "place": i, "refit": round(log_predictive(truth, run, j, i), 4),
            "loo": round(float(ours["loo_i"].values[number]), 4), "k": round(float(ours["pareto_k"].values[number]), 3),
        })  # fmt: skip
    return pd.DataFrame(rows)


def main(out: Path, beside: Path) -> None:
    """Computes what lacks."""
    torch.set_num_threads(1)
    if not beside.is_file():
        refits().to_csv(beside, index=False)
    done = pd.read_csv(out) if out.is_file() else pd.DataFrame(columns=KEYS)
    done_keys = set(done[KEYS].itertuples(index=False, name=None))
    for case in CASES:
        if case not in done_keys:
            done = pd.concat([done, pd.DataFrame([shares(*case)])])
            done.to_csv(out, index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
