"""How close federated mixed models come to pooled ones: the numbers of docs/mixed-effects.md.

python tests/support/agreement.py
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from mixed import covariance, fitted, random_effects, referee, table
from mixed_families import counts, hessian, investments, quadrature
from scipy.optimize import minimize

from hierfl import mixed_model
from hierfl.models.mixed_effects.summary import effects_table


def row(what: str, beta: np.ndarray, spread: np.ndarray, height: float, errors: np.ndarray) -> str:
    """Largest gaps: of coefficients in standard errors, of standard deviations, heights, standard errors."""
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


def counted(family: str) -> str:
    df = counts(family)
    best = minimize(quadrature, [0, 0.5, -0.3], args=(df, family), method="BFGS", options={"gtol": 1e-7})
    error = np.sqrt(np.diag(np.linalg.inv(hessian(df, family, best.x))))
    fit = mixed_model(df, "y ~ 1 + x + (1 | site)", family=family, draws=0)  # type: ignore[arg-type]
    found: pd.DataFrame = fit.summary().table
    gap = (found.estimate[:2] - best.x[:2]) / error[:2]
    sds = found.estimate[2:] / np.exp(best.x[2]) - 1
    errors = found.standard_error / (error * [1, 1, found.estimate[2]]) - 1
    return row(
        f"{family}, (1 \\| site); quadrature with 41 nodes", gap.to_numpy(), sds.to_numpy(),
        fit.log_likelihood + best.fun, errors.to_numpy(),
    )  # fmt: skip


def main() -> None:
    """Prints the table, a row as it is made."""
    print("| | coefficients, in standard errors | standard deviations | log likelihood | standard errors |")
    print("|---|---:|---:|---:|---:|")
    parts: list[Callable[[], str]] = [
        lambda random=random, p=p: gaussian(random, p)  # type: ignore[misc]
        for random in ("1", "1 + x")
        for p in ("ml", "reml")
    ]
    parts += [real, *(lambda family=family: counted(family) for family in ("binomial", "poisson"))]  # type: ignore[misc]
    for part in parts:
        print(part(), flush=True)


if __name__ == "__main__":
    main()
