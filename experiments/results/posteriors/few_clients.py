"""Whether 90 % intervals cover where few small clients say little of rho: with nodes of log rho, and without.

    python -P experiments/results/posteriors/few_clients.py OUT.csv [--data-sets 50] [--rounds 30]
        [--methods pfedeb pfedeb-point pfedhb pfedhb-point]

Twelve clients of five rows, two classes, three features, rho = 0.5 of weights and biases, w ~ N(0, I). PFedEB has one
rho, learns w and knows its prior (`tests/support/simulated_heads.py`). PFedHB has w held at the truth, and rho of
weights and biases (`tests/support/few_heads.py`). Each has nodes of log rho, as it comes, or a point (nodes=off).
Covered are numbers of w, of w_j, and the logits of 40 new rows of each client: probabilities are monotone in them. A
row is written as its fit ends; rows that are in OUT.csv are not computed again. Printed are rates and their standard
errors over data sets.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import hierfl  # noqa: F401  # imported first: tests/ has a folder hierfl as well
from hierfl.nn.head import LinearHead

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support import few_heads, simulated_heads

METHODS = "pfedeb", "pfedeb-point", "pfedhb", "pfedhb-point"
CLIENTS, ROWS, FEATURES, RHO = few_heads.CLIENTS, few_heads.ROWS, few_heads.FEATURES, few_heads.RHO
LEVEL, NEW = simulated_heads.LEVEL, 40


def share_inside(draws: Tensor, true: Tensor) -> float:
    """Share of the numbers (...) that intervals of draws (K, ...) hold."""
    low, high = np.quantile(draws.numpy(), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return float(((low <= true.numpy()) & (true.numpy() <= high)).mean())


def logits(head: LinearHead, heads: Tensor, x: Tensor) -> Tensor:
    """Differences of the two classes' logits (..., J, n) for heads (..., J, d) and rows x (J, n, features)."""
    outputs = head(heads[..., None, :], x)
    return outputs[..., 1] - outputs[..., 0]


def row(method: str, number: int, rounds: int) -> dict[str, float]:
    """What one fit covers, and what it says of rho: the likeliest, and 5, 50 and 95 % of its posterior over nodes."""
    nodes = "off" if method.endswith("-point") else "on"
    if method.startswith("pfedeb"):
        truth = simulated_heads.simulated("logistic", RHO, number, (ROWS,) * CLIENTS, FEATURES)
        run, true = simulated_heads.fitted(truth, rounds, number, nodes=nodes), truth.w_j
        drawn = run.fitted.method.shared_draws(run.shared, simulated_heads.DRAWS)["w"].flatten(0, -2)
        covered, names = {"w": share_inside(drawn, truth.w)}, ("w", "nodes")
    else:
        run, true = few_heads.fitted(number, nodes, "held")
        covered, names = {"w": np.nan}, ("heads", "at_nodes")
    heads = run.personal["w_j_draws"].flatten(1, -2).movedim(1, 0).double()  # (K, J, d)
    x = torch.tensor(np.random.default_rng([number, 7]).normal(size=(CLIENTS, NEW, FEATURES)))
    head = run.fitted.method.network.head
    covered |= {"w_j": share_inside(heads, true), "logits": share_inside(logits(head, heads, x), logits(head, true, x))}
    rho = run.shared[f"{names[0]}.log_rho"][0].exp()
    posterior = [np.nan] * 3
    if nodes == "on":
        log_rho, weight = run.shared[f"{names[1]}.log_rho"][:, 0], run.shared[f"{names[1]}.log_weight"].softmax(-1)
        order = log_rho.argsort()
        below, last = weight[order].cumsum(0), len(order) - 1
        posterior = [float(log_rho[order][(below < q).sum().clamp_max(last)].exp()) for q in (0.05, 0.5, 0.95)]
    return {**covered, "rho": float(rho), **dict(zip(("rho_5", "rho_50", "rho_95"), posterior, strict=True))}


def main() -> None:
    """Computes the rows that lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-sets", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=30, help="of PFedEB; PFedHB has those of few_heads.py")
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=METHODS)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = pd.read_csv(given.out).to_dict("records") if given.out.is_file() else []
    for number in range(given.data_sets):
        for method in given.methods:
            key = {"method": method, "data_set": number}
            if any(all(r[k] == v for k, v in key.items()) for r in rows):
                continue
            began = time.process_time()
            try:
                measured = row(method, number, given.rounds)
            except ValueError:  # a data set that lacks a class
                continue
            rows.append({**key, **{k: round(v, 5) for k, v in measured.items()},
                         "cpu_seconds": round(time.process_time() - began, 2)})  # fmt: skip
            pd.DataFrame(rows).to_csv(given.out, index=False)
    table = pd.DataFrame(rows)
    for method, of_method in table.groupby("method"):
        rates = (
            f"{name} {100 * of_method[name].mean():.1f} +- {100 * of_method[name].std() / len(of_method) ** 0.5:.1f} %"
            for name in ("w", "w_j", "logits")
        )
        print(f"{method}, {len(of_method)} data sets: {', '.join(rates)}")


if __name__ == "__main__":
    main()
