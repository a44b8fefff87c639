"""How close federated mixed models come to pooled ones: the numbers of docs/mixed-effects.md.

python tests/support/agreement.py
"""

import numpy as np
import torch
from mixed import covariance, fitted, referee, table
from mixed_families import counts, hessian, investments, quadrature
from scipy.optimize import minimize

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.quadrature import marginal_log_likelihood
from hierfl.models.mixed_effects.summary import effects_table


def gaussian(random: str) -> None:
    df = table(slope="x" in random)
    theirs, run = referee(df, f"~ {random}"), fitted(df, f"y ~ 1 + x + ({random} | site)")
    beta = (run.shared["effects.beta"].numpy() - theirs.fe_params.values) / theirs.bse_fe.values
    gaps = []
    for j, site in enumerate(run.fitted.federation.ids):
        root = run.personal["b_root"][j]
        gap = run.personal["b_mean"][j].numpy() - theirs.random_effects[site].values
        gaps.append(np.abs(gap / (root @ root.T).diagonal().sqrt().numpy()).max())
    estimates, numbers = effects_table(run.fitted)
    print(f"gaussian, ({random} | site), beside MixedLM:")
    print(f"  fixed effects {np.abs(beta).max():.1e} SE; variances {100 * spread(run, theirs):.1e} %")
    print(f"  random effects {max(gaps):.1e} sd; log likelihood {numbers['marginal_log_likelihood'] - theirs.llf:.1e}")
    print(f"  standard errors {np.abs(estimates.standard_error[:2] / theirs.bse_fe.values - 1).max():.1e}")


def spread(run: object, theirs: object) -> float:
    scale = float((2 * run.shared["effects.log_noise"]).exp()) / theirs.scale - 1
    return max(np.abs(covariance(run) / theirs.cov_re.values - 1).max(), abs(scale))


def real() -> None:
    run, theirs = investments()
    estimates, numbers = effects_table(run.fitted)
    beta = np.abs((estimates.estimate[:3] - theirs.fe_params.values) / theirs.bse_fe.values).max()
    print("Grunfeld's investments, beside MixedLM:")
    print(f"  fixed effects {beta:.1e} SE; variances {100 * spread_of(estimates, theirs):.1e} %;", end=" ")
    print(f"log likelihood {numbers['marginal_log_likelihood'] - theirs.llf:.1e}")


def spread_of(estimates: object, theirs: object) -> float:
    firm, scale = estimates.estimate[3] ** 2 / theirs.cov_re.values[0, 0], estimates.estimate[4] ** 2 / theirs.scale
    return max(abs(firm - 1), abs(scale - 1))


def counted(family: str, seeds: int = 5) -> None:
    df = counts(family)
    best = minimize(quadrature, [0, 0.5, -0.3], args=(df, family), method="BFGS", options={"gtol": 1e-7})
    error = np.sqrt(np.diag(np.linalg.inv(hessian(df, family, best.x))))
    fed, design = from_formula(df, "y ~ 1 + x + (1 | site)", family=family)
    found = []
    for seed in range(seeds):
        run = fit(
            MixedEffects(design, draws=0), fed, 60, chunk=30, dtype=torch.float64, progress=False, seed=seed,
            evaluate_every=60,
        )  # fmt: skip
        found.append(np.r_[run.shared["effects.beta"].numpy(), run.shared["effects.log_sd"].numpy()])
    off, noise = np.array(found) - best.x, np.std(found, axis=0, ddof=1)
    print(f"{family}, (1 | site), beside adaptive quadrature, worst of {seeds} seeds:")
    print(f"  fixed effects {np.abs(off[:, :2] / error[:2]).max():.1e} SE;", end=" ")
    print(f"sigma {100 * np.abs(np.expm1(off[:, 2])).max():.1e} %;", end=" ")
    print(f"log likelihood {marginal_log_likelihood(run) + best.fun:.1e}")
    print(f"  Monte-Carlo sd {(noise / error)[:2].max():.1e} SE, {100 * noise[2]:.1e} %")


if __name__ == "__main__":
    for random in ("1", "1 + x"):
        gaussian(random)
    real()
    for family in ("binomial", "poisson"):
        counted(family)
