"""Fits the gallery's models from sums, and compares them with NUTS on pooled rows.

    OMP_NUM_THREADS=1 python tests/support/gallery_fits.py FILE.csv [NAME ...] [--seeds 0 1 2] [--draws 4000]

One line for each model and data seed: the largest error of means (in the reference's sds), of sds (log ratio) and of
90 % interval end points (in sds), over all numbers of globals and of clients; rounds, bytes of one
client, and seconds; the verdict. An exploration has half as many points a round as draws are asked for.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from hierfl import fit_model

sys.path.append(str(Path(__file__).parents[1]))

from support.gallery import GALLERY, load

COLUMNS = (
    "model", "seed", "of", "mean", "sd", "end", "where", "rounds", "arrived", "worth", "k_hat", "warnings", "bytes",
    "seconds", "nuts_seconds", "nuts_gradients",
)  # fmt: skip


def errors(reference: dict[str, Any], draws: np.ndarray) -> dict[str, float]:
    """Largest errors of one quantity: draws (D, *shape) beside a reference's entry."""
    mean, sd, low, high = (np.asarray(reference[name]) for name in ("mean", "sd", "q05", "q95"))
    draws = draws.reshape(len(draws), *mean.shape)
    ends = np.quantile(draws, [0.05, 0.95], axis=0)
    return {
        "mean": float((np.abs(draws.mean(0) - mean) / sd).max()),
        "sd": float(np.abs(np.log(draws.std(0) / sd)).max()),
        "end": float(max((np.abs(ends[0] - low) / sd).max(), (np.abs(ends[1] - high) / sd).max())),
    }


def compared(name: str, seed: int, draws: int) -> list[dict[str, Any]]:
    """Rows of the table: of globals, and of clients."""
    page = load(name)
    shared = "eight_schools" if name.startswith("eight_schools") else name
    reference = json.loads((GALLERY / "references" / f"{shared}-{seed}.json").read_text())
    start = time.perf_counter()
    fitted = fit_model(
        page.model, page.data(seed), group=page.GROUP, progress=False, draws=draws, worth=draws, points=draws // 2
    )
    seconds = time.perf_counter() - start
    (rule,) = fitted.method.exchange().values()
    sent = sum(field.nbytes for field in rule.form(fitted.run.shared).values()) * fitted.run.rounds
    verdict, samples = fitted.verdict, {"globals": fitted.globals, "clients": fitted.clients}
    rows = []
    for of, values in samples.items():
        each = {
            quantity: errors(entry, values[quantity])
            for quantity, entry in reference["quantities"].items()
            if entry["of"] == of and quantity in values
        }
        if not each:
            continue
        worst = {what: max(error[what] for error in each.values()) for what in ("mean", "sd", "end")}
        rows.append({
            "model": name, "seed": seed, "of": of, **{what: round(value, 3) for what, value in worst.items()},
            "where": max(each, key=lambda quantity: each[quantity]["end"]), "rounds": fitted.run.rounds,
            "arrived": fitted.arrived, "worth": round(verdict.worth), "k_hat": round(verdict.k_hat, 2),
            "warnings": len(verdict.warnings), "bytes": sent, "seconds": round(seconds, 1),
            "nuts_seconds": reference["seconds"], "nuts_gradients": reference["gradients"],
        })  # fmt: skip
    return rows


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--draws", type=int, default=4000)
    args = parser.parse_args()
    names = args.names or sorted({path.stem.rpartition("-")[0] for path in (GALLERY / "references").glob("*.json")})
    done: set[tuple[str, int]] = set()
    if args.file.exists():
        with args.file.open() as file:
            done = {(row["model"], int(row["seed"])) for row in csv.DictReader(file)}
    for name in names:
        for seed in args.seeds:
            if (name, seed) in done:
                continue
            rows = compared(name, seed, args.draws)
            new = not args.file.exists()
            with args.file.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerows(rows)
            for row in rows:
                print(*(f"{key}={value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
