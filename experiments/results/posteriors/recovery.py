"""Whether PFedEB finds the spread that data were made with, and how often its intervals hold the truth.

    python experiments/results/posteriors/recovery.py OUT.csv [--data-sets 200] [--families gaussian logistic softmax]
        [--variants laplace variational ...] [--rho 0 0.3 1] [--rounds 16]

50 clients of 5 to 500 examples, heads drawn from the model (see tests/support/simulated_heads.py), s_w known, nine
nodes of log rho; of "variational", "diagonal" and "kronecker", with 16 draws, log rho's posterior is Gaussian. A row is
written as its fit ends; rows that are in OUT.csv are not computed again. The variant "importance" fits nothing: it is
the maximum of the marginal likelihood by importance sampling. With a Gaussian response all but "diagonal" are exact.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pandas as pd
import torch

import hierfl  # noqa: F401  # imported first: tests/ has a folder hierfl as well

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.head_evidence import maximum
from support.simulated_heads import fitted, measured, simulated

VARIANTS: dict[str, dict[str, object]] = {
    "laplace": {"points": 1},
    "variational": {"points": 16, "nodes": "off"},
    "variational-nodes": {"points": 16},
    "default": {},
    "diagonal": {"points": 16, "nodes": "off", "covariance": "diagonal"},
    "kronecker": {"points": 16, "nodes": "off", "covariance": "kronecker"},
    "blocks": {"points": 1, "spreads": "blocks"},
    "chains": {"points": 16, "nodes": "off", "final": "chains"},
    "importance": {},
}
KEYS = ["family", "true_rho", "variant", "data_set"]


def row(family: str, rho: float, variant: str, number: int, rounds: int) -> dict[str, object]:
    """What is found in one data set."""
    truth, began = simulated(family, rho, number), time.process_time()
    if variant == "importance":
        measured_values = maximum(truth)
    else:
        measured_values = measured(truth, fitted(truth, rounds, number, **VARIANTS[variant]))
    values = {k: round(v, 5) for k, v in measured_values.items()}
    seconds = round(time.process_time() - began, 1)
    return {**dict(zip(KEYS, (family, rho, variant, number), strict=True)), **values, "cpu_seconds": seconds}


def main() -> None:
    """Computes the rows that lack."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-sets", type=int, default=200)
    parser.add_argument("--families", nargs="+", default=["gaussian", "logistic", "softmax"])
    parser.add_argument("--variants", nargs="+", default=["laplace"], choices=list(VARIANTS))
    parser.add_argument("--rho", nargs="+", type=float, default=[0.0, 0.3, 1.0])
    parser.add_argument("--rounds", type=int, default=16)
    at = parser.parse_args()
    done = pd.read_csv(at.out) if at.out.is_file() else pd.DataFrame(columns=KEYS)
    done_keys = set(done[KEYS].itertuples(index=False, name=None))
    for number in range(at.data_sets):
        for family in at.families:
            for rho in at.rho:
                for variant in at.variants:
                    if (family, rho, variant, number) in done_keys:
                        continue
                    done = pd.concat([done, pd.DataFrame([row(family, rho, variant, number, at.rounds)])])
                    done.to_csv(at.out, index=False)


if __name__ == "__main__":
    main()
