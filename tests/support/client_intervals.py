"""How often intervals of mixed models cover, where clients are few or small; numbers of docs/mixed-effects.md.

    python tests/support/client_intervals.py [REPLICATES]

Data are simulated from the model: y_ij = 1 + 0.5 x_ij + b_j + noise of standard deviation 1 (or a logistic, or Poisson
response), b_j ~ N(0, tau^2). Nominal level 90 %. *intercept*: the estimate and its standard error (as `effects.csv` has
them). *client*: 1 + b_j for every client, by its posterior at the estimates (as `clients.csv` has it). *new client*:
1 + b of a client that was not there, by N(estimate, tau^2). *sd at 0*: share of the fits whose sd is at its lower
bound. Fits whose standard errors are withheld count for the clients alone.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.summary import effects_table

Z = 1.6448536269514722
#: clients, rows of each, tau, family, rounds
SETTINGS = (
    (10, 5, 0.5, "gaussian", 25),
    (8, 3, 0.3, "gaussian", 25),
    (5, 10, 0.5, "gaussian", 25),
    (20, 2, 0.7, "gaussian", 25),
    (40, 5, 0.7, "gaussian", 25),
    (20, 8, 0.7, "binomial", 40),
    (12, 6, 0.5, "poisson", 40),
)


def simulated(
    clients: int, n: int, tau: float, family: str, rng: np.random.Generator
) -> tuple[pd.DataFrame, Any, float]:
    """A table, its clients' true intercepts, and that of another one."""
    b = tau * rng.normal(size=clients + 1)
    who, x = np.repeat(np.arange(clients), n), rng.normal(size=clients * n)
    eta = 1 + 0.5 * x + b[who]
    if family == "binomial":
        y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = eta + rng.normal(size=len(eta)) if family == "gaussian" else rng.poisson(np.exp(eta)).astype(float)
    return pd.DataFrame({"y": y, "x": x, "site": [f"s{j:03d}" for j in who]}), 1 + b[:-1], float(1 + b[-1])


def covered(clients: int, n: int, tau: float, family: str, rounds: int, replicates: int) -> list[float]:
    """Shares: of intercepts, of clients, of new clients; and of sds at their bound."""
    hits: dict[str, list[float]] = {"intercept": [], "client": [], "new": [], "bound": []}
    for seed in range(replicates):
        df, truth, other = simulated(clients, n, tau, family, np.random.default_rng([clients, n, seed]))
        federation, design = from_formula(df, "y ~ 1 + x + (1 | site)", family=family)
        method = MixedEffects(design, draws=0 if family == "gaussian" else 50)  # (exact without draws)
        options = {"dtype": torch.float64, "splits": ("train",), "evaluate_every": rounds, "progress": False}
        run = fit(method, federation, rounds=rounds, **options)
        table = effects_table(run.fitted)[0].set_index("effect")
        estimate, error = table.loc["Intercept", ["estimate", "standard_error"]]
        sd = table.loc["sd(Intercept)", "estimate"]
        if np.isfinite(error):
            hits["intercept"].append(abs(estimate - 1) < Z * error)
        own = run.clients
        hits["client"] += list(np.abs(estimate + own["b[Intercept]"] - truth) < Z * own["sd b[Intercept]"])
        hits["new"].append(abs(estimate - other) < Z * sd)
        hits["bound"].append(table.loc["sd(Intercept)", "note"] == "at its lower bound")
    return [float(np.mean(values)) for values in hits.values()]


def main(replicates: int) -> None:
    """Prints a row for each setting, as it ends."""
    warnings.filterwarnings("ignore")
    print(f"nominal 90 %, {replicates} replicates; %")
    print(f"{'clients x rows, tau':<28}{'intercept':>10}{'client':>8}{'new client':>12}{'sd at 0':>9}", flush=True)
    for clients, n, tau, family, rounds in SETTINGS:
        values = covered(clients, n, tau, family, rounds, replicates)
        name = f"{family} {clients} x {n}, {tau}"
        print(
            f"{name:<28}" + "".join(f"{100 * v:>{w}.0f}" for v, w in zip(values, (10, 8, 12, 9), strict=True)),
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
