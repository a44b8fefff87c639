"""PFedEB's posteriors of heads beside Pyro's NUTS, w = 0 and rho the same.

    python experiments/results/posteriors/nuts.py OUT.csv [--data-sets 1] [--draws 2000]

Three clients each of 5, 15, 50 and 200 examples. Compared are, in the chains' standard deviations, means and standard
deviations along the directions of which the data say something (eigenvalues of rho^2 H above 0.2), and of the contrasts
of held-out logits. A row for each size is written as a data set ends; data sets that are in OUT.csv are not computed
again. Chains of 2,000 draws have errors of some 0.03 in a mean and 3 % in a standard deviation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import hierfl  # noqa: F401  # imported first: tests/ has a folder hierfl as well

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
from support.head_chains import Agreement, beside_nuts
from support.simulated_heads import simulated

KEYS = ["family", "rho", "data_set"]
SIZES = (5, 15, 50, 200)
VARIANTS: dict[str, dict[str, object]] = {"laplace": {"points": 1}, "default": {}}


def row(clients: list[Agreement]) -> dict[str, object]:
    """The row of clients of one size."""
    numbers: dict[str, object] = {}
    for name, before in (("directions", ""), ("logits", "logit_")):
        mean = np.abs(np.concatenate([getattr(agreement, f"{before}mean") for agreement in clients]))
        sd = np.concatenate([getattr(agreement, f"{before}sd") for agreement in clients])
        numbers |= {
            name: len(mean), f"{before}mean_rms": np.sqrt((mean**2).mean()), f"{before}mean_max": mean.max(),
            f"{before}sd_min": sd.min(), f"{before}sd_median": np.median(sd), f"{before}sd_max": sd.max(),
        }  # fmt: skip
    return {k: v if isinstance(v, int) else round(float(v), 3) for k, v in numbers.items()}


def main() -> None:
    """Computes the data sets that lack."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-sets", type=int, default=1)
    parser.add_argument("--draws", type=int, default=2000)
    at = parser.parse_args()
    done = pd.read_csv(at.out) if at.out.is_file() else pd.DataFrame(columns=KEYS)
    done_keys = set(done[KEYS].itertuples(index=False, name=None))
    cases = [(f, rho, k) for k in range(at.data_sets) for f in ("logistic", "softmax") for rho in (0.3, 1.0)]
    for case in cases:
        if case in done_keys:
            continue
        family, rho, number = case
        truth = simulated(family, rho, number, tuple(n for n in SIZES for _ in range(3)), s_w=0.0)
        by_variant = beside_nuts(truth, at.draws, number, **VARIANTS)
        rows = [
            {**dict(zip(KEYS, case, strict=True)), "variant": name, "n": n, **row([c for c in clients if c.n == n])}
            for name, clients in by_variant.items()
            for n in SIZES
        ]
        done = pd.concat([done, pd.DataFrame(rows)])
        done.to_csv(at.out, index=False)


if __name__ == "__main__":
    main()
