"""How close federated mixed models come to pooled ones: the numbers of docs/mixed-effects.md.

python tests/support/agreement.py
"""

import math
import warnings

import numpy as np
from levels import PASTES, dense, log_likelihood, point
from levels import table as level_table
from mixed import covariance, fitted, random_effects, referee, table
from mixed_families import investments
from responses import CASES, Case, hessian, quadrature, referee_point
from scipy.optimize import minimize

from hierfl import mixed_model
from hierfl.models.mixed_effects.report.summary import effects_table
from hierfl.models.mixed_effects.search.loop import PopulationSearch


def row(what: str, beta: np.ndarray, spread: np.ndarray, height: float, errors: np.ndarray) -> str:
    """Largest gaps: of coefficients and the like in standard errors, of standard deviations, heights, errors."""
    cells = [np.abs(beta).max(), 100 * np.abs(spread).max(), abs(height), 100 * np.abs(errors).max()]
    return f"| {what} | {cells[0]:.0e} | {cells[1]:.0e} % | {cells[2]:.0e} | {cells[3]:.0e} % |"


def gaussian(random: str, population: str) -> str:
    df = table(slope="x" in random)
    theirs = referee(df, f"~ {random}", population == "reml")
    run = fitted(df, f"y ~ 1 + x + ({random} | site)", population=population)
    summary, numbers = effects_table(run.fitted)
    ours = np.sqrt(covariance(run).diagonal())
    sds = np.r_[ours / np.sqrt(np.diag(theirs.cov_re.values)), summary.estimate.iloc[-1] / np.sqrt(theirs.scale)] - 1
    gap = (summary.estimate[:2].to_numpy() - theirs.fe_params.values) / theirs.bse_fe.values
    mean, cov = random_effects(run)
    effects = max(
        np.abs((mean[j] - theirs.random_effects[site].values) / np.sqrt(cov[j].diagonal())).max()
        for j, site in enumerate(run.fitted.federation.ids)
    )
    errors = summary.standard_error[:2].to_numpy() / theirs.bse_fe.values - 1
    what = f"gaussian, ({random} \\| site), {population.upper()}; MixedLM (random effects {effects:.0e} sd)"
    return row(what, gap, sds, numbers["log_likelihood"] - theirs.llf, errors)


def real() -> str:
    run, theirs = investments()
    summary, numbers = effects_table(run.fitted)
    gap = (summary.estimate[:3].to_numpy() - theirs.fe_params.values) / theirs.bse_fe.values
    theirs_sd = np.sqrt([theirs.cov_re.values[0, 0], theirs.scale])
    sds = summary.estimate[3:5].to_numpy() / theirs_sd - 1
    errors = summary.standard_error[:3].to_numpy() / theirs.bse_fe.values - 1
    return row(
        "Grunfeld's investments, 11 firms, ML; MixedLM", gap, sds, numbers["log_likelihood"] - theirs.llf, errors
    )


def other(case: Case) -> str:
    """Coefficients and the family's own numbers beside those of quadrature."""
    df = case.table()

    def minus(theta: np.ndarray) -> float:
        return quadrature(theta, df, case)

    fit = mixed_model(df, case.formula, family=case.family, population="ml", **case.how)  # type: ignore[arg-type]
    start = np.r_[case.intercept, 0.7, -0.2, case.own]
    best = minimize(minus, start, method="BFGS", options={"gtol": 1e-6})
    error = np.sqrt(np.diag(np.linalg.inv(hessian(minus, best.x))))
    ours, summary = referee_point(case, fit), fit.summary().table.set_index("effect")
    gap = (ours - best.x) / error
    errors = summary.standard_error[["x", "sd(Intercept)"]] / (error[1:3] * [1, np.exp(ours[2])]) - 1
    return row(
        f"{case.family}, (1 \\| site); quadrature with 41 nodes", np.delete(gap, 2),
        np.expm1(ours[2:3] - best.x[2:3]), fit.log_likelihood + best.fun, errors.to_numpy(),
    )  # fmt: skip


def pastes() -> str:
    """Beside what lme4's authors print of lmer(strength ~ 1 + (1 | batch/cask), Pastes, REML = FALSE)."""
    fit = mixed_model(PASTES, "strength ~ 1 + (1 | batch/cask)", population="ml", draws=0)
    summary = fit.summary().table.set_index("effect")
    sds = summary.estimate.iloc[1:].to_numpy() / np.array([1.0951, 2.9041, 0.8234]) - 1
    gap = np.array([(summary.estimate.iloc[0] - 60.0533) / 0.6421])
    errors = np.array([summary.standard_error.iloc[0] / 0.6421 - 1])
    height = fit.log_likelihood + 124.0
    return row("Pastes, (1 \\| batch/cask), ML; lme4 as printed, 4 digits, log likelihood 1", gap, sds, height, errors)


def normal_levels() -> str:
    """Three levels with slopes beside the dense normal density: heights, and the slope that is left there."""
    df = level_table(CASES["gaussian"], 4, 5, 3, 4)
    df["both"] = df.site + df.patient
    formula = "y ~ x + (1 | region) + (1 | region:site) + (1 + x | region:site:patient)"
    fit = mixed_model(df, formula, client="site", population="ml", draws=0)
    e = fit.summary().table.set_index("effect").estimate

    def theirs(v: np.ndarray) -> float:
        own = np.array([[v[4], 0.0], [v[5], v[6]]])
        levels = {"region": v[2:3, None] ** 2, "site": v[3:4, None] ** 2, "both": own @ own.T}
        return dense(df, v[0] + v[1] * df.x.to_numpy(), levels, np.full(len(df), v[7] ** 2))

    sd, rho = e[["sd(Intercept | patient)", "sd(x | patient)"]].to_numpy(), e["corr(Intercept, x | patient)"]
    root = [sd[0], rho * sd[1], np.sqrt(1 - rho**2) * sd[1]]
    at = np.r_[e[["Intercept", "x", "sd(Intercept | region)", "sd(Intercept)"]], root, e["sd(residual)"]]
    what = "gaussian, region, (1 \\| site), (1 + x \\| patient), ML; dense normal density"
    return _step(what, theirs, at, 2, fit.log_likelihood, fit.summary().table.standard_error.to_numpy()[:2])


def levels(case: Case, inside: bool) -> str:
    """Patients inside clients, or regions of them, beside sums over a fine grid of both effects."""
    names = ("site", "patient") if inside else ("region", "site")
    df = (
        level_table(case, 1, 8, 3, 4, sds=(0, 0.8, 0.9)) if inside else level_table(case, 4, 4, 1, 6, sds=(0.9, 0.8, 0))
    )
    formula = f"{case.response} ~ x + (1 | {'/'.join(names)})"
    fit = mixed_model(df, formula, family=case.family, client="site", population="ml", draws=0, **case.how)  # type: ignore[arg-type]
    what = f"{case.family}, (1 \\| {'/'.join(names)}); sums over a grid"
    error = fit.summary().table.set_index("effect").standard_error[["x"]].to_numpy()
    return _step(
        what, lambda theta: log_likelihood(theta, df, case, names), point(case, fit, names), 2, fit.log_likelihood,
        error, logs=True,
    )  # fmt: skip


def _step(what, theirs, at, p, height, errors, logs=False) -> str:
    """The referee's own Newton step from the estimates: p coefficients first, then two (or more) deviations."""
    h = 1e-3
    slope = np.array([theirs(at + s) - theirs(at - s) for s in h * np.eye(len(at))]) / (2 * h)
    bend = hessian(theirs, at, h)
    own = np.sqrt(np.diag(np.linalg.inv(-bend)))
    step = np.linalg.solve(bend, slope)
    sds = step[p : p + 2] if logs else step[p:] / at[p:]
    own_errors = own[1 : 1 + len(errors)] if logs else own[:p]
    gap = np.delete(step / own, range(p, p + len(sds)))
    return row(what, gap, sds, height - theirs(at), errors / own_errors - 1)


def sent(case: Case, random: str = "") -> str:
    """Rounds to the end, and what a site sends in all of them, intervals and all."""
    df, formula = (level_table(case, 4, 5, 3, 4), f"y ~ x + {random}") if random else (case.table(), case.formula)
    fit = mixed_model(df, formula, family=case.family, client="site", **case.how)  # type: ignore[arg-type]
    name = f"{case.family}, {random}".replace("|", "\\|") if random else case.family
    fields = PopulationSearch(fit.method).form({}).values()
    size = 8 * sum(math.prod(field.shape) for field in fields)
    return f"| {name} | {fit.run.rounds} | {size / 1e3:.1f} | {size * fit.run.rounds / 1e3:.0f} |"


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
    print(pastes(), flush=True)
    print(normal_levels(), flush=True)
    for case in CASES.values():
        for inside in (True, False):
            if case.family != "gaussian":
                print(levels(case, inside), flush=True)
    print("\n| | rounds | kB a message | kB a site sends in all |\n|---|---:|---:|---:|")
    for case in CASES.values():
        print(sent(case), flush=True)
    for family in ("gaussian", "poisson"):
        for formula in ("(1 | site/patient)", "(1 | region/site)"):
            print(sent(CASES[family], formula), flush=True)


if __name__ == "__main__":
    main()
