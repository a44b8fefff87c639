"""One liar among the clients: what it costs, and whether it is named.

    python tests/support/liar_runs.py KIND FIRST_SEED SEEDS OUT.csv

KIND is fedavg or pfedvem (on digits, ten clients), mixed (gaussian and binomial mixed models, ten sites), or honest (no
liar: federations of several kinds, and who is named). A row of OUT.csv for each fit. ``liar_tables.py`` makes tables.
"""

from __future__ import annotations

import csv
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hierfl.inference.run.result import Run

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.liars import (
    LIAR,
    LIES,
    SETTINGS,
    coefficient,
    digits,
    flipped,
    invented,
    mixed_run,
    names_of,
    network_run,
    table,
    times,
    twin,
)

Row = dict[str, Any]
RULES = ("none", "trimmed:0.1", "median", "centred-clip:1", "krum:1")
#: the client says nothing at all: what one honest client is worth
LEFT_OUT = "left out"
#: it is honest, and has another's rows: what the rows of one honest client are worth
TWIN = "another's rows"


def accuracy(run: Run) -> float:
    """Of the honest clients' personal models, over their test examples."""
    metrics = run.client_metrics[0]
    n = np.asarray(metrics["n"], float)
    n[LIAR] = 0
    return float((np.nan_to_num(metrics["accuracy"]) * n).sum() / n.sum())


def shift(run: Run, honest: Run) -> float:
    """Euclidean distance between the shared values of two runs; not a number where they have diverged."""
    return float(sum((v.double() - honest.shared[k].double()).square().sum() for k, v in run.shared.items()) ** 0.5)


def networks(name: str, seed: int) -> Iterator[Row]:
    federation = digits(seed)
    data = {"labels flipped": flipped(federation), TWIN: twin(federation)}
    for rule in RULES if name == "fedavg" else RULES[:-1]:  # pFedVEM takes longer
        honest = None
        for what in ("honest", LEFT_OUT, *LIES, *data):
            lie = times(0.0, weights=True) if what == LEFT_OUT else LIES[what]() if what in LIES else None
            run = network_run(name, data.get(what, federation), rule, lie, seed)
            honest = run if honest is None else honest
            yield {
                "method": name, "lie": what, "rule": rule, "seed": seed, "measure": "PM", "value": accuracy(run),
                "shift": shift(run, honest), "named": names_of(run), "rejected": run.last()["rejected"],
            }  # fmt: skip


def mixed(seed: int) -> Iterator[Row]:
    for family in ("gaussian", "binomial"):
        df = table(seed, family)
        own = df.site == f"s{LIAR:02d}"
        wrong = df.assign(y=df.y.where(~own, -df.y if family == "gaussian" else 1 - df.y))
        data = {LEFT_OUT: df[~own], "labels flipped": wrong, "60 rows invented": invented(df, 60, family, seed)}
        if family == "gaussian":
            data["1e6 rows invented"] = invented(df, 10**6, family, seed)
        honest = coefficient(mixed_run(df, family, "none", None))
        for what in ("honest", *data, *LIES):
            for rule in ("none", "trimmed:0.1"):  # all rules do the same here
                row = {"method": f"{family} mixed model", "lie": what, "rule": rule, "seed": seed, "measure": "x"}
                lie = LIES[what]() if what in LIES else None
                try:
                    run = mixed_run(data.get(what, df), family, rule, lie)
                    value, error = coefficient(run)
                except Exception as error_of:
                    yield row | {"value": "", "named": "", "problem": f"{type(error_of).__name__}: {error_of}"[:120]}
                    continue
                without = list(_moved(run)) if what != LEFT_OUT else []
                yield row | {
                    "value": value, "errors": (value - honest[0]) / honest[1], "named": names_of(run),
                    "rejected": run.last("train").get("rejected"), "with": without[0][0] if without else "",
                    "without": without[0][1] if without else "", "se": error,
                }  # fmt: skip


def _moved(run: Run) -> Iterator[tuple[float, float]]:
    """x with the liar and without it."""
    watched = run.watched
    if watched is not None and watched.beside is not None and watched.without is not None:
        k = list(watched.estimated).index("x")
        yield float(watched.beside[LIAR, k]), float(watched.without[LIAR, k])


# -- nobody lies ------------------------------------------------------------------------------------------------------

HONEST: Mapping[str, Callable[[int, int], Run]] = {
    **{
        f"{name}, {what}": (
            lambda seed, j, name=name, split=split: network_run(name, digits(seed, split, j), "none", None, seed, 6)
        )
        for name in SETTINGS
        for what, split in {
            "alike": "iid", "label skew 0.5": "dirichlet:0.5,redraw", "label skew 0.1": "dirichlet:0.1,redraw",
        }.items()
    },
    **{
        f"{family}, {what}": (
            lambda seed, j, family=family, how=how: mixed_run(
                table(seed + 1000, family, j, **how), family, "none", None
            )
        )
        for family in ("gaussian", "binomial")
        for what, how in {
            "alike": {}, "10 to 1,000 rows": {"rows": (10, 1000)}, "slopes differ by 0.3": {"slopes": 0.3},
            "one outlies by 3 sd": {"outlies": 3.0},
        }.items()
    },
}  # fmt: skip


#: fits that take longer have fewer seeds
SEEDS = {"pfedvem, label skew 0.1": range(0), "pfedvem": range(8), "binomial": range(12)}


def honest(seed: int) -> Iterator[Row]:
    for what, make in HONEST.items():
        if seed not in next((seeds for name, seeds in SEEDS.items() if what.startswith(name)), range(1000)):
            continue
        for clients in (4, 10, 20):
            run = make(seed, clients)
            yield {"method": what, "clients": clients, "seed": seed, "named": names_of(run)}


def main(kind: str, first: int, seeds: int, out: Path) -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows: list[Row] = []
    kinds = {"mixed": mixed, "honest": honest, **{name: partial(networks, name) for name in SETTINGS}}
    for seed in range(first, first + seeds):
        start = time.perf_counter()
        for row in kinds[kind](seed):
            rows.append(row)
            fields = list(dict.fromkeys(k for entry in rows for k in entry))
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, fields, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        print(f"seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
