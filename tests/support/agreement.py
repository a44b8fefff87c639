"""How close federated mixed models come to pooled ones: the numbers of docs/mixed-effects.md.

python tests/support/agreement.py
"""

import math
import warnings

import numpy as np
from mixed import covariance, fitted, random_effects, referee, table
from mixed_families import investments
from responses import CASES, Case, hessian, quadrature, referee_point
from scipy.optimize import minimize

from hierfl import mixed_model
from hierfl.models.mixed_effects.exchange import PopulationSearch
from hierfl.models.mixed_effects.summary import effects_table


def row(what: str, beta: np.ndarray, spread: np.ndarray, height: float, errors: np.ndarray) -> str:
    """Largest gaps: of coefficients and the like in standard errors, of standard deviations, heights, errors."""
    cells = [np.abs(beta).max(), 100 * np.abs(spread).max(), abs(height), 100 * np.abs(errors).max()]
    return f"| {what} | {cells[0]:.0e} | {cells[1]:.0e} % | {cells[2]:.0e} | {cells[3]:.0e} % |"


def gaussian(random: str, population: str) -> str:
    df = table(slope="x" in random)
    theirs = referee(df, f"~ {random}", population == "reml")
    run = fitted(df, f"y ~ 1 + x + ({random} | site)", population=population)
    found, numbers = effects_table(run.fitted)
    ours = np.sqrt(covariance(run).diagonal())
    sds = np.r_[ours / np.sqrt(np.diag(theirs.cov_re.values)), found.estimate.iloc[-1] / np.sqrt(theirs.scale)] - 1
    gap = (found.estimate[:2].to_numpy() - theirs.fe_params.values) / theirs.bse_fe.values
    mean, cov = random_effects(run)
    effects = max(
        np.abs((mean[j] - theirs.random_effects[site].values) / np.sqrt(cov[j].diagonal())).max()
        for j, site in enumerate(run.fitted.federation.ids)
    )
    errors = found.standard_error[:2].to_numpy() / theirs.bse_fe.values - 1
    what = f"gaussian, ({random} \\| site), {population.upper()}; MixedLM (random effects {effects:.0e} sd)"
    return row(what, gap, sds, numbers["log_likelihood"] - theirs.llf, errors)


def real() -> str:
    run, theirs = investments()
    found, numbers = effects_table(run.fitted)
    gap = (found.estimate[:3].to_numpy() - theirs.fe_params.values) / theirs.bse_fe.values
    theirs_sd = np.sqrt([theirs.cov_re.values[0, 0], theirs.scale])
    sds = found.estimate[3:5].to_numpy() / theirs_sd - 1
    errors = found.standard_error[:3].to_numpy() / theirs.bse_fe.values - 1
    return row(
        "Grunfeld's investments, 11 firms, ML; MixedLM", gap, sds, numbers["log_likelihood"] - theirs.llf, errors
    )


def other(case: Case) -> str:
    """Coefficients and the family's own numbers beside those of quadrature."""
    df = case.table()

    def minus(theta: np.ndarray) -> float:
        return quadrature(theta, df, case)

    fit = mixed_model(df, case.formula, family=case.family, **case.how)  # type: ignore[arg-type]
    start = np.r_[case.intercept, 0.7, -0.2, case.own]
    best = minimize(minus, start, method="BFGS", options={"gtol": 1e-6})
    error = np.sqrt(np.diag(np.linalg.inv(hessian(minus, best.x))))
    ours, found = referee_point(case, fit), fit.summary().table.set_index("effect")
    gap = (ours - best.x) / error
    errors = found.standard_error[["x", "sd(Intercept)"]] / (error[1:3] * [1, np.exp(ours[2])]) - 1
    return row(
        f"{case.family}, (1 \\| site); quadrature with 41 nodes", np.delete(gap, 2),
        np.expm1(ours[2:3] - best.x[2:3]), fit.log_likelihood + best.fun, errors.to_numpy(),
    )  # fmt: skip


def sent(case: Case) -> str:
    """Rounds to the end, and what a site sends in all of them, intervals and all."""
    fit = mixed_model(case.table(), case.formula, family=case.family, **case.how)  # type: ignore[arg-type]
    fields = PopulationSearch(fit.method).form({}).values()
    size = 8 * sum(math.prod(field.shape) for field in fields)
    return f"| {case.family} | {fit.run.rounds} | {size / 1e3:.1f} | {size * fit.run.rounds / 1e3:.0f} |"


def main() -> None:
    """Prints the tables, a row as it is made."""
    warnings.filterwarnings("ignore")
    print("| | coefficients, in standard errors | standard deviations | log likelihood | standard errors |")
    print("|---|---:|---:|---:|---:|")
    for random in ("1", "1 + x"):
        for population in ("ml", "reml"):
            print(gaussian(random, population), flush=True)
    print(real(), flush=True)
    for case in CASES.values():
        if case.family != "gaussian":
            print(other(case), flush=True)
    print("\n| | rounds | kB a message | kB a site sends in all |\n|---|---:|---:|---:|")
    for case in CASES.values():
        print(sent(case), flush=True)


if __name__ == "__main__":
    main()
