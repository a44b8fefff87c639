"""Numbers of docs/compare.md: how often intervals cover, and how far leave-one-out is from exact.

python tests/support/intervals.py
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from federations import slopes
from leave_one_out import exact_loo

from hierfl.arviz_data import import_arviz
from hierfl.arviz_io import loo
from hierfl.elpd import elpd_value
from hierfl.inference import fit
from hierfl.metrics import paired
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture


def coverage(seeds: int, clients: int = 20, times: int = 1000, between: float = 1.0, crossed: bool = False) -> float:
    """Of intervals for the population's gain.

    Args:
        seeds, clients: how many.
        times: repetitions.
        between: standard deviation between seeds; that between a seed's clients is 1.
        crossed: whether clients are the same under every seed; then half of their variance is their own.
    """
    rng, which, hits = np.random.default_rng(0), np.repeat(np.arange(seeds), clients), 0
    names = np.tile(np.arange(clients).astype(str), seeds) if crossed else None
    for _ in range(times):
        values = between * np.repeat(rng.normal(size=seeds), clients) + rng.normal(size=seeds * clients)
        if crossed:
            values = values * 0.5**0.5 + np.tile(rng.normal(size=clients), seeds) * 0.5**0.5
        interval = paired.bootstrap(values, which, names, times=1000)
        hits += interval.low <= 0 <= interval.high
    return hits / times


def main() -> None:
    """Prints them."""
    for crossed in (False, True):
        for between in (0.0, 0.2, 1.0):
            told = ", ".join(f"{s}: {coverage(s, between=between, crossed=crossed):.0%}" for s in (1, 2, 3, 5, 10))
            kind = "the same clients under every seed" if crossed else "clients of each seed"
            print(f"{kind}, between seeds {between}: intervals cover, by seeds, {told}", flush=True)
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
                limit = min(0.7, elpd_value(ours, "good_k"))
                told = []
                for estimate in (ours, plain):
                    good = elpd_value(estimate, "pareto_k").values < limit
                    told.append(np.abs(elpd_value(estimate, "elpd_i").values - exact)[good].max())
                off = elpd_value(ours, "elpd") - exact.sum()
                print(f"{prior}, sigma_0 {sigma_0}, {draws} draws: at most {told[0]:.3f} off where k < {limit:.2f} "
                      f"(az.loo, its own k: {told[1]:.3f}), the sum {off:+.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
