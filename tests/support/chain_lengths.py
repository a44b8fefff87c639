"""How far FedPop's chains are from the exact posterior; numbers of docs/fedpop.md.

    python tests/support/chain_lengths.py

Linear regressions of 20 clients with 8 rows each, y = w_j . (x, 1) + N(0, 0.5^2), w_j ~ N(0, sigma_0^2 I) with
sigma_0 = 0.5 held at its true value (``prior=fixed``), so that every client's posterior is known; five seeds. Sd
ratio: of the draws, over the exact one, median over clients and numbers. Coverage: of the true w_j by the draws'
central 90 % interval. ESS: bulk, median, by ArviZ.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from hierfl import Federation
from hierfl.arviz_data import import_arviz
from hierfl.inference import fit
from hierfl.models import FedPop
from hierfl.nn.networks.build import architecture

CLIENTS, ROWS, FEATURES, NOISE, SIGMA = 20, 8, 2, 0.5, 0.5
PAPERS = {"final_kernel": "unadjusted", "final_chains": 1, "final_steps": 1000, "final_keep": 50}
WAYS: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "the paper's steps, step_size=0.001": PAPERS,
    "the paper's steps, step_size=0.01": {**PAPERS, "step_size": 0.01},
}


def simulated(seed: int) -> tuple[Federation, np.ndarray, np.ndarray]:
    """A federation, its true w_j, and the exact posterior standard deviations, (J, 3) each."""
    rng = np.random.default_rng(seed)
    w = SIGMA * rng.normal(size=(CLIENTS, FEATURES + 1))
    x = rng.normal(size=(CLIENTS, ROWS, FEATURES))
    full = np.concatenate([x, np.ones((CLIENTS, ROWS, 1))], -1)
    y = (full @ w[..., None])[..., 0] + NOISE * rng.normal(size=(CLIENTS, ROWS))
    precision = full.swapaxes(1, 2) @ full / NOISE**2 + np.eye(FEATURES + 1) / SIGMA**2
    sd = np.sqrt(np.diagonal(np.linalg.inv(precision), axis1=1, axis2=2))
    who = np.repeat([f"c{j:02d}" for j in range(CLIENTS)], ROWS)
    federation = Federation.from_arrays(x.reshape(-1, FEATURES), y.ravel(), who, test=0.0, task="regression")
    return federation.to(dtype=torch.float64), w, sd


def main() -> None:
    """Prints a row for each way of sampling."""
    warnings.filterwarnings("ignore")
    az = import_arviz()
    print(f"{'FedPop':<48}{'sd ratio':>10}{'coverage, %':>13}{'ESS':>8}{'draws':>8}")
    for name, settings in WAYS.items():
        ratios, hits, effective, draws = [], [], [], 0
        for seed in range(5):
            federation, w, sd = simulated(seed)
            method = FedPop(architecture("linear", federation, NOISE), prior="fixed", sigma_0=SIGMA, **settings)
            run = fit(method, federation, rounds=10, seed=seed, dtype=torch.float64, splits=("train",), progress=False)
            data = run.posterior()
            kept = data.posterior["z"].values  # (chain, draw, client, 3)
            draws = kept.shape[0] * kept.shape[1]
            low, high = np.quantile(kept, (0.05, 0.95), axis=(0, 1))
            ratios.append(kept.std((0, 1), ddof=1) / sd)
            hits.append((low <= w) & (w <= high))
            effective.append(az.ess(data)["z"].values)
        ratio, covered, ess = np.median(ratios), 100 * np.mean(hits), np.median(effective)
        print(f"{name:<48}{ratio:>10.2f}{covered:>13.0f}{ess:>8.0f}{draws:>8}", flush=True)


if __name__ == "__main__":
    main()
