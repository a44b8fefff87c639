"""A table with levels inside sites, items that cross them, and two curves, of which R says what tests compare."""

from __future__ import annotations

import numpy as np
import pandas as pd


def wards() -> pd.DataFrame:
    """Six sites of three wards of two patients of six rows; curves of x and z, arms, times, items and counts."""
    rng = np.random.default_rng(5)
    patient = np.repeat(np.arange(36), 6)
    site, ward = patient // 6, patient // 2
    n = len(patient)
    x, z = rng.uniform(0, 10, n).round(3), rng.uniform(0, 10, n).round(3)
    arm, item, t = rng.integers(0, 2, n), rng.integers(0, 5, n), np.tile(np.arange(6), 36)
    levels = (rng.normal(0, sd, size) for sd, size in ((0.7, 6), (0.5, 18), (0.4, 36), (0.6, 5)))
    effects = sum(of[group] for of, group in zip(levels, (site, ward, patient, item), strict=True))
    noise = rng.normal(0, 0.5, n) * np.exp(0.5 * arm)
    y = np.sin(x) + 0.1 * (z - 5) ** 2 + effects + noise
    n_events = rng.poisson(np.exp(0.5 * np.sin(x) + 0.6 * effects)) * (rng.uniform(size=n) > 0.25)
    names = {"site": site, "ward": ward % 3, "patient": patient % 2, "item": item, "arm": np.array(["a", "b"])[arm]}
    table = {name: [f"{name[0]}{value}" for value in values] for name, values in names.items() if name != "arm"}
    return pd.DataFrame({**table, "arm": names["arm"], "x": x, "z": z, "t": t, "y": y.round(4), "n": n_events})
