r"""What noise inside each client costs predictions of new patients, by epsilon: 10 sites fitted to 200 patients each.

    python tests/support/private_predictions.py --replicates 40 \
        --table experiments/results/privacy/formulas-nll.csv

Sites predict about 200 new patients each, by their own effects given draws of the population: the negative log density
of a new response, in its own units, the root of the squared error of its mean, and how many lie in 90 % intervals. A
client's random effects are left out in what begins with gm. What noise costs is the mean of differences in pairs.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models.mixed_effects.method import MixedEffects

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support import private_formulas, private_rounds

#: no noise, and the budgets
EPSILONS = (0.0, 8.0, 4.0, 1.0)
MODELS = ("intercept", "binomial")
#: what is kept of a fit's evaluation
METRICS = ("pm_draws_nll", "pm_draws_rmse", "pm_draws_coverage90", "gm_nll")


def scores(model: str, epsilon: float, seed: int) -> dict[str, float]:
    """Of new patients of one replicate, half of the rows."""
    binary = model == "binomial"
    support: Any = private_rounds if binary else private_formulas
    df = support.table(*(() if binary else (model,)), seed, 2 * support.PATIENTS)
    family = "binomial" if binary else "gaussian"
    federation, design = from_formula(df, support.FORMULAS[model], family=family, test=0.5, seed=seed)
    noise: dict[str, Any] = {"dp": "site", "epsilon": epsilon} if epsilon else {}
    method = MixedEffects(design, ranges=support.RANGES)
    run = fit(method, federation, 60, seed=seed, dtype=torch.float64, progress=False, splits=("test",), **noise)
    row = run.metrics.iloc[-1]
    return {name: float(row[name]) for name in METRICS if np.isfinite(row[name])}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicates", type=int, default=40)
    parser.add_argument("--table", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table: list[tuple[Any, ...]] = []
    for model in MODELS:
        without: dict[str, np.ndarray] = {}
        for epsilon in EPSILONS:
            rows = [scores(model, epsilon, private_formulas.number_of(model, 50, k)) for k in range(args.replicates)]
            for name in rows[0]:
                values = np.array([row[name] for row in rows])
                more = values - without.setdefault(name, values)
                numbers = [column.std(ddof=1) / np.sqrt(len(column)) for column in (values, more)]
                each = values.mean(), numbers[0], more.mean(), numbers[1]
                table.append(
                    (model, f"{epsilon:g}" if epsilon else "none", len(rows), name, *(f"{v:.4g}" for v in each))
                )
                print(*table[-1], flush=True)
    with open(args.table, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("model", "epsilon", "replicates", "metric", "mean", "standard_error", "more", "more_standard_error")
        )
        writer.writerows(table)


if __name__ == "__main__":
    main()
