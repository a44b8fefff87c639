"""Numbers of docs/compare.md: how often intervals cover, and how far leave-one-out is from exact.

python tests/intervals.py
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from conftest import slopes
from test_posterior import exact_loo

from hierfl import paired
from hierfl.inference import fit
from hierfl.models import PFedVEM
from hierfl.networks import architecture
from hierfl.posterior import import_arviz, loo


def coverage(seeds: int, clients: int = 20, times: int = 500) -> float:
    """Of intervals for the population's gain, where seeds and clients vary alike (standard deviation 1)."""
    rng, which, hits = np.random.default_rng(0), np.repeat(np.arange(seeds), clients), 0
    for _ in range(times):
        values = np.repeat(rng.normal(size=seeds), clients) + rng.normal(size=seeds * clients)
        found = paired.bootstrap(values, which, None, times=1000)
        hits += found.low <= 0 <= found.high
    return hits / times


def main() -> None:
    """Prints them."""
    for seeds in (2, 5, 10):
        print(f"{seeds} seeds: intervals cover {coverage(seeds):.0%}")
    fed = slopes([12, 5, 3, 8], features=2)
    net = architecture("linear", fed, noise=0.5)
    for sigma_0 in (0.3, 2.0):
        for prior in ("hierarchical", "fixed"):
            method = PFedVEM(net, prior=prior, sigma_0=sigma_0, head_epochs=300, head_lr=2e-3, particles=20)
            run = fit(method, fed, rounds=5, dtype=torch.float64, progress=False)
            exact = exact_loo(run)
            for draws in (200, 100_000):
                data = run.posterior(draws=draws)
                ours = loo(data)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    plain = import_arviz().loo(data, pointwise=True)
                limit = min(0.7, ours["good_k"])
                told = []
                for one in (ours, plain):
                    good = one["pareto_k"].values < limit
                    told.append(np.abs(one["loo_i"].values - exact)[good].max())
                off = ours["elpd_loo"] - exact.sum()
                print(f"{prior}, sigma_0 {sigma_0}, {draws} draws: at most {told[0]:.3f} off where k < {limit:.2f} "
                      f"(az.loo, its own k: {told[1]:.3f}), the sum {off:+.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
