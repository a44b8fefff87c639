"""How often 90 % intervals of the clients' heads cover, in small linear-Gaussian federations.

    python experiments/results/posteriors/coverage.py OUT.csv [--data-sets 200] [--rounds 12]

20 clients, d = 4, rho 0.5, 5 to 50 examples at every client, inputs independent or with correlations of 0.8: PFedEB,
settings as they come, its own draws and those of --final chains; pFedVEM at its fixed point. A row is written as its
fit ends; rows that are in OUT.csv are not computed again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import hierfl  # noqa: F401  # imported first: tests/ has a folder hierfl as well

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.simulated_heads import covered, fitted, mean_field, simulated

KEYS = ["n", "correlation", "method", "data_set"]
CLIENTS, RHO = 20, 0.5
#: how each ends, pFedVEM apart
METHODS: dict[str, Any] = {"pfedeb": "method", "pfedeb-chains": "chains"}


def row(n: int, correlation: float, method: str, number: int, rounds: int) -> dict[str, object]:
    """Shares that are covered in one data set."""
    truth = simulated("gaussian", RHO, number, (n,) * CLIENTS, correlation=correlation)
    if method == "pfedvem":
        estimated = mean_field(truth)
    else:
        run = fitted(truth, rounds, number, METHODS[method], spreads="blocks", w_scale=0.0)
        rho = run.shared["w.log_rho"].exp()
        shares = covered(truth, run)
        estimated = {"w_j": shares["w_j"], "w": shares["w"], "rho": float(rho[0]), "rho_bias": float(rho[1])}
    return {
        **dict(zip(KEYS, (n, correlation, method, number), strict=True)),
        **{k: round(v, 5) for k, v in estimated.items()},
    }


def main() -> None:
    """Computes the rows that lack."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-sets", type=int, default=200)
    parser.add_argument("--methods", nargs="+", default=[*METHODS, "pfedvem"])
    parser.add_argument("--rounds", type=int, default=12)
    at = parser.parse_args()
    done = pd.read_csv(at.out) if at.out.is_file() else pd.DataFrame(columns=KEYS)
    done_keys = set(done[KEYS].itertuples(index=False, name=None))
    for number in range(at.data_sets):
        for n in (5, 15, 50):
            for correlation in (0.0, 0.8):
                for method in at.methods:
                    if (n, correlation, method, number) not in done_keys:
                        done = pd.concat([done, pd.DataFrame([row(n, correlation, method, number, at.rounds)])])
                        done.to_csv(at.out, index=False)


if __name__ == "__main__":
    main()
