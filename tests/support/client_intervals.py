"""How often intervals of mixed models cover, where clients are few or small; numbers of docs/mixed-effects.md.

    python tests/support/client_intervals.py [REPLICATES] [OUT.csv]

Data are simulated from the model: y_ij = 1 + 0.5 x_ij + b_j + noise of standard deviation 1 (or a logistic, or Poisson
response), b_j ~ N(0, tau^2). Nominal level 90 %. *coefficient*: the intercept's t interval (as `effects.csv` has it, at
another level). *sd*: of the clients. *client*: 1 + b_j for every client. *new client*: 1 + b of clients that were not
there. A row is written as its setting ends; rows that are in OUT.csv are not computed again.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects import summary


class Setting(NamedTuple):
    """What is simulated: J clients of n rows."""

    clients: int
    rows: int
    tau: float
    family: str

    def __str__(self) -> str:
        return f"{self.family} {self.clients} x {self.rows}, {self.tau}"


SETTINGS = tuple(
    Setting(*one)
    for one in (
        (10, 5, 0.5, "gaussian"), (8, 3, 0.3, "gaussian"), (5, 10, 0.5, "gaussian"), (20, 2, 0.7, "gaussian"),
        (40, 5, 0.7, "gaussian"), (20, 8, 0.7, "binomial"), (12, 6, 0.5, "poisson"),
    )
)  # fmt: skip
LEVEL, NEW = 0.9, 50


def simulated(setting: Setting, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A table, its clients' true intercepts, and those of others."""
    rng = np.random.default_rng([setting.clients, setting.rows, seed])
    b = setting.tau * rng.normal(size=setting.clients + NEW)
    n = setting.clients * setting.rows
    who, x = np.repeat(np.arange(setting.clients), setting.rows), rng.normal(size=n)
    eta = 1 + 0.5 * x + b[who]
    if setting.family == "binomial":
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = eta + rng.normal(size=n) if setting.family == "gaussian" else rng.poisson(np.exp(eta)).astype(float)
    df = pd.DataFrame({"y": y, "x": x, "site": [f"s{j:03d}" for j in who]})
    return df, 1 + b[: setting.clients], 1 + b[setting.clients :]


def hits(setting: Setting, seed: int, **settings) -> dict[str, float]:
    """Shares of intervals that cover, in one replicate."""
    df, truth, others = simulated(setting, seed)
    federation, design = from_formula(df, "y ~ 1 + x + (1 | site)", family=setting.family)  # type: ignore[arg-type]
    options = {"dtype": torch.float64, "splits": ("train",), "evaluate_every": 200, "progress": False}
    run = fit(MixedEffects(design, **settings), federation, rounds=200, seed=seed, **options)
    draws = run.posterior(observed=False).posterior
    mu = draws["effects"].sel(effect="Intercept").to_numpy().ravel()
    sd = draws["effects"].sel(effect="sd(Intercept)").to_numpy().ravel()
    theta = mu[:, None] + draws["b"].to_numpy().reshape(len(mu), -1)
    new = mu + sd * np.random.default_rng(seed).normal(size=len(sd))
    tail = (1 - LEVEL) / 2

    def inside(values: np.ndarray, true: np.ndarray | float) -> float:
        low, high = np.quantile(values, [tail, 1 - tail], axis=0)
        return float(np.mean((low <= true) & (true <= high)))

    table = summary.effects_table(run.fitted, level=LEVEL)[0].set_index("effect")
    low, high = table.loc["Intercept", ["lower", "upper"]]
    return {
        "coefficient": float(low <= 1 <= high), "sd": inside(sd, setting.tau), "client": inside(theta, truth),
        "new client": inside(new, others), "sd at 0": float(table.loc["sd(Intercept)", "note"] != ""),
    }  # fmt: skip


def coverage(setting: Setting, replicates: int, **settings) -> dict[str, tuple[float, float]]:
    """Shares over replicates, and their standard errors, replicates being clusters."""
    found = pd.DataFrame([hits(setting, seed, **settings) for seed in range(replicates)])
    return {name: (float(found[name].mean()), float(found[name].sem())) for name in found if name != "sd at 0"} | {
        "sd at 0": (float(found["sd at 0"].mean()), 1.0)
    }


def main(replicates: int, out: Path | None) -> None:
    """Prints a row for each setting, as it ends."""
    warnings.filterwarnings("ignore")
    done = pd.read_csv(out) if out is not None and out.is_file() else pd.DataFrame({"setting": []})
    for setting in SETTINGS:
        if str(setting) in set(done["setting"]):
            continue
        shares = coverage(setting, replicates)
        row = {"setting": str(setting), "replicates": replicates}
        row |= {name: round(share, 4) for name, (share, _) in shares.items()}
        row |= {f"se {name}": round(error, 4) for name, (_, error) in shares.items() if name != "sd at 0"}
        done = pd.concat([done, pd.DataFrame([row])], ignore_index=True)
        print(pd.DataFrame([row]).to_string(index=False), flush=True)
        if out is not None:
            done.to_csv(out, index=False)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
