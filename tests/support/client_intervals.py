"""How often intervals of mixed models cover, where clients are few or small; numbers of docs/mixed-effects.md.

    python tests/support/client_intervals.py [REPLICATES] [OUT.csv]

Data are simulated from the model: y_ij = 1 + 0.5 x_ij + b_j + noise of standard deviation 1 (or a logistic, or Poisson
response), b_j ~ N(0, tau^2); other responses as in :mod:`.responses`. Nominal level 90 %. *coefficient*: the
intercept's t interval (as `effects.csv` has it, at another level; of levels, which have none, the slope's). *sd*: of
the clients, likewise. *client*: 1 + b_j for every client. *new client*: 1 + b of clients that were not there. Of a
Bayesian population the truth is drawn from its prior: intercept N(1, 1), slope N(0, 1), tau and the noise's standard
deviation half-normal with scale 1; the coefficient's interval is its posterior's. Tables with two to four patients
inside each client, or with clients in six regions, have *level sd*, of patients or regions, and *level*, each one's
effect. A row is written as its setting ends; rows that are in OUT.csv are not computed again.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

try:
    from support.levels import SDS, table
    from support.responses import CASES
except ModuleNotFoundError:  # as a script, beside it
    from levels import SDS, table
    from responses import CASES

from hierfl import mixed_model


class Setting(NamedTuple):
    """What is simulated: J clients of n rows."""

    clients: int
    rows: int
    tau: float
    family: str
    bayes: bool = False
    level: str = ""

    def __str__(self) -> str:
        spread = "posterior" if self.bayes else str(self.tau)
        within = {"": "", "patient": " x 3 patients", "region": " in regions"}[self.level]
        return f"{self.family} {self.clients}{within} x {self.rows}, {spread}"


class Simulated(NamedTuple):
    """A table with the truth.

    Attributes:
        df: the table.
        formula: of the model.
        how: more arguments of a mixed model.
        coefficient: a coefficient's name, and its true value.
        tau: the clients' standard deviation.
        clients, others: true intercepts of those that are there, and of others.
        level: true effects of patients or regions, in the order of their table.
        level_tau: their standard deviation.
    """

    df: pd.DataFrame
    formula: str
    how: dict[str, Any]
    coefficient: tuple[str, float]
    tau: float
    clients: np.ndarray
    others: np.ndarray
    level: np.ndarray = np.zeros(0)
    level_tau: float = 0.0


SETTINGS = tuple(
    Setting(*fields)
    for fields in (
        (10, 5, 0.5, "gaussian"), (8, 3, 0.3, "gaussian"), (5, 10, 0.5, "gaussian"), (20, 2, 0.7, "gaussian"),
        (40, 5, 0.7, "gaussian"), (20, 8, 0.7, "binomial"), (12, 6, 0.5, "poisson"),
        *((10, n, 0.0, "gaussian", True) for n in (3, 8)), (20, 8, 0.0, "binomial", True),
        (12, 6, 0.0, "poisson", True),
        *((15, 8, 0.8, family) for family in CASES if family not in ("gaussian", "binomial", "poisson")),
        (12, 4, 0.8, "gaussian", False, "patient"), (12, 5, 0.8, "binomial", False, "patient"),
        (12, 4, 0.8, "poisson", False, "patient"), (30, 5, 0.8, "gaussian", False, "region"),
        (30, 6, 0.8, "binomial", False, "region"),
    )
)  # fmt: skip
LEVEL, NEW = 0.9, 50
PRIORS = {
    "population": "bayes", "intercept_prior": "normal(1, 1)", "beta_prior": "normal(0, 1)",
    "sd_prior": "half-normal(1)", "residual_prior": "half-normal(1)",
}  # fmt: skip


def simulated(setting: Setting, seed: int) -> Simulated:
    """A table of such clients."""
    rng = np.random.default_rng([setting.clients, setting.rows, seed])
    if setting.level:
        return _with_level(setting, seed, rng)
    if setting.family in CASES and setting.family not in ("gaussian", "binomial", "poisson"):
        case = CASES[setting.family]
        df = case.table(setting.clients, seed, (setting.rows, setting.rows), sd=setting.tau)
        own = df.groupby("site").effect.first().to_numpy()
        others = setting.tau * rng.normal(size=NEW)
        coefficient = ("x", 0.7) if case.family == "ordinal" else ("Intercept", case.intercept)
        at = 0.0 if case.family == "ordinal" else case.intercept
        return Simulated(df, case.formula, dict(case.how), coefficient, setting.tau, at + own, at + others)
    mu, slope, tau, noise = 1.0, 0.5, setting.tau, 1.0
    if setting.bayes:
        mu, slope, tau, noise = 1 + rng.normal(), rng.normal(), abs(rng.normal()), abs(rng.normal())
    b = tau * rng.normal(size=setting.clients + NEW)
    n = setting.clients * setting.rows
    who, x = np.repeat(np.arange(setting.clients), setting.rows), rng.normal(size=n)
    eta = mu + slope * x + b[who]
    if setting.family == "binomial":
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = eta + noise * rng.normal(size=n) if setting.family == "gaussian" else rng.poisson(np.exp(eta)).astype(float)
    df = pd.DataFrame({"y": y, "x": x, "site": [f"s{j:03d}" for j in who]})
    how, clients = dict(PRIORS) if setting.bayes else {}, setting.clients
    if setting.family != "gaussian":
        how.pop("residual_prior", None)
    return Simulated(df, "y ~ 1 + x + (1 | site)", how, ("Intercept", mu), tau, mu + b[:clients], mu + b[clients:])


def _with_level(setting: Setting, seed: int, rng: np.random.Generator) -> Simulated:
    """Patients inside clients, or six regions of them."""
    case, inside = CASES[setting.family], setting.level == "patient"
    tau, level_tau = setting.tau, 0.6 if inside else 0.7
    if inside:
        df = table(case, 1, setting.clients, 3, setting.rows, seed, (0.0, tau, level_tau))
    else:
        df = table(case, 6, setting.clients // 6, 1, setting.rows, seed, (level_tau, tau, 0.0))
    own = df.groupby("site").site_effect.first().to_numpy()
    level = df.groupby(["site", "patient"] if inside else ["region"])[f"{setting.level}_effect"].first().to_numpy()
    formula = f"{case.response} ~ 1 + x + (1 | {'site/patient' if inside else 'region/site'})"
    at, how = case.intercept, {"client": "site", **case.how}
    others = at + tau * rng.normal(size=NEW)
    return Simulated(df, formula, how, ("Intercept", at), tau, at + own, others, level, level_tau)


def hits(setting: Setting, seed: int, **settings) -> dict[str, float]:
    """Shares of intervals that cover, in one replicate."""
    made = simulated(setting, seed)
    fit = mixed_model(made.df, made.formula, family=setting.family, seed=seed, **made.how, **settings)  # type: ignore[arg-type]
    draws = fit.run.posterior(observed=False).posterior
    effects = draws["effects"]
    mu = np.zeros(effects.sizes["chain"] * effects.sizes["draw"])
    if "Intercept" in effects.effect:  # levels have thresholds: there it is the clients' own parts
        mu = effects.sel(effect="Intercept").to_numpy().ravel()
    sd = effects.sel(effect="sd(Intercept)").to_numpy().ravel()
    theta = mu[:, None] + draws["b"].to_numpy().reshape(len(mu), -1)
    new = mu + sd * np.random.default_rng(seed).normal(size=len(sd))
    tail = (1 - LEVEL) / 2

    def inside(values: np.ndarray, true: np.ndarray | float) -> float:
        low, high = np.quantile(values, [tail, 1 - tail], axis=0)
        return float(np.mean((low <= true) & (true <= high)))

    summary = fit.summary(LEVEL).table.set_index("effect")

    def printed(name: str, true: float) -> float:
        low, high = summary.loc[name, ["lower", "upper"]]
        return float(low <= true <= high)

    of_level = {}
    if setting.level:
        level_effects = fit.ranef(setting.level)
        covered = (level_effects.lower <= made.level) & (made.level <= level_effects.upper)
        of_level = {"level sd": printed(SDS[setting.level], made.level_tau), "level": float(covered.mean())}
    name, value = made.coefficient
    return {
        "coefficient": printed(name, value), "sd": printed("sd(Intercept)", made.tau),
        "client": inside(theta, made.clients), "new client": inside(new, made.others),
        "sd at 0": float(summary.loc["sd(Intercept)", "note"] != ""), **of_level,
    }  # fmt: skip


def coverage(setting: Setting, replicates: int, **settings) -> dict[str, tuple[float, float]]:
    """Shares over replicates, and their standard errors, replicates being clusters."""
    table = pd.DataFrame([hits(setting, seed, **settings) for seed in range(replicates)])
    return {name: (float(table[name].mean()), float(table[name].sem())) for name in table if name != "sd at 0"} | {
        "sd at 0": (float(table["sd at 0"].mean()), 1.0)
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
