"""How often the verdict warns: of fits that agree with a referee, and of fits that are wrong on purpose.

    OMP_NUM_THREADS=1 python tests/support/verdict/table.py experiments/results/gallery/verdict.csv
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

COLUMNS = ("model", "seed", "agreed", "off", "k_hat", "limit", "worth", "points", "share", "warnings", "first", "seconds")
#: seeds of a case
SEEDS = {"schools": 12, "poisson": 12, "binomial": 12, "normal": 8, "held, few points": 6, "funnel": 3, "signs": 3,
         "topics": 3, "horseshoe": 3}  # fmt: skip


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
    with Path(sys.argv[1]).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for name, seeds in SEEDS.items():
            for seed in range(seeds):
                made = row(name, seed)
                writer.writerow(made)
                file.flush()
                print(*(f"{key}={value}" for key, value in made.items()), flush=True)


if __name__ == "__main__":
    main()
