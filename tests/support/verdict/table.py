"""How often the verdict warns: of fits that agree with a referee, and of fits that are wrong on purpose.

    OMP_NUM_THREADS=1 python tests/support/verdict/table.py experiments/results/gallery/verdict.csv

It goes on where the file ends. ``off`` is how much of the posterior's mass a fit has wrongly below an end of a 90 %
interval (of topics: of how likely one is under another name); a fit agrees where that is at most 0.04.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from pathlib import Path
from typing import Any

from hierfl import fit_model
from hierfl.models.any_model.names import DRAWS

sys.path.append(str(Path(__file__).parents[2]))

from support.verdict.models import CASES
from support.verdict.referees import OFF, off

COLUMNS = (
    "model",
    "seed",
    "agreed",
    "off",
    "k_hat",
    "limit",
    "worth",
    "points",
    "share",
    "warnings",
    "first",
    "seconds",
)
#: seeds of a case
SEEDS = {"held, few points": 4, "funnel": 2, "schools": 8, "poisson": 8, "binomial": 8, "signs": 2, "normal": 6,
         "horseshoe": 2, "topics": 1}  # fmt: skip


def row(name: str, seed: int) -> dict[str, Any]:
    """One line."""
    case = CASES[name]
    df, start = case.data(seed), time.process_time()
    fitted = fit_model(case.model, df, seed=seed, progress=False, **case.settings)
    seconds, verdict = time.process_time() - start, fitted.verdict
    wrong = off(name, df, fitted.run.shared[DRAWS])
    return {
        "model": name, "seed": seed, "agreed": "" if math.isnan(wrong) else "yes" if wrong <= OFF else "no",
        "off": f"{wrong:.3f}", "k_hat": f"{verdict.k_hat:.2f}", "limit": f"{verdict.limit:.2f}",
        "worth": round(verdict.worth), "points": round(verdict.points), "share": f"{verdict.share:.2f}",
        "warnings": len(verdict.warnings), "first": next(iter(verdict.warnings), "").split(",")[0].split(":")[0],
        "seconds": f"{seconds:.1f}",
    }  # fmt: skip


def main() -> None:
    """See the module."""
    path, done = Path(sys.argv[1]), set[tuple[str, int]]()
    if path.exists():
        with path.open() as file:
            done = {(line["model"], int(line["seed"])) for line in csv.DictReader(file)}
    for name, seeds in SEEDS.items():
        for seed in [seed for seed in range(seeds) if (name, seed) not in done]:
            made = row(name, seed)
            new = not path.exists()
            with path.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow(made)
            print(*(f"{key}={value}" for key, value in made.items()), flush=True)


if __name__ == "__main__":
    main()
