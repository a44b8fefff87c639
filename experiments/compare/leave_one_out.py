"""Leave-one-out log predictive densities of variants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from hierfl import arviz_io
from hierfl.arviz_data import dataset, group_names
from hierfl.elpd import compared, elpd_value
from hierfl.plurals import counted

from .variants import Variant

#: leave-one-out needs so many draws to see a tail
LEAST_DRAWS = 100
#: share of large k above which a sum over examples is not shown
MOST_LARGE_K = 0.2


def why_no_loo(run: Path) -> str:
    """Why nothing can be left out by a run's draws; empty where it can."""
    path = run / "posterior.nc"
    if not path.is_file():
        return "it has no draws (posterior.nc)"
    data = arviz_io.read(path)
    if "log_likelihood" not in group_names(data):
        return f"it has no log likelihoods of single rows; {arviz_io.LEFT_OUT}"
    density = dataset(data, "log_likelihood")
    if len(sites := list(density.data_vars)) > 1:
        return f"its model observes several sites, {', '.join(map(repr, sites))}; arviz_io.loo(data, 'SITE') is of one"
    kind, draws = density.attrs.get("draws_of"), density.sizes["chain"] * density.sizes["draw"]
    if kind == "point":
        return "its guide is a point, of which ArviZ's would be training likelihood"
    if kind == "examples":
        return "its draws are of single examples' latents, made without the response"
    if kind == "shared":
        return "its draws are of what all clients share, whose density is not known to be the posterior's"
    if kind is None:
        return "it is from before posterior.nc said what its draws are; run it again"
    return f"it has {counted(draws, 'draw')}, less than {LEAST_DRAWS}" if draws < LEAST_DRAWS else ""


def leave_one_out(variants: Sequence[Variant], seeds: Sequence[int]) -> pd.DataFrame:
    """``az.compare`` of PSIS-LOO (:func:`hierfl.arviz_io.loo`) under every seed, and how many k are large.

    Columns seed, variant, those of ``az.compare`` (by the names of ArviZ 0.x), good_k and k_large, the share of the
    examples above it.
    """
    parts = []
    for seed in seeds:
        results = {v.name: arviz_io.loo(arviz_io.read(v.runs[seed] / "posterior.nc")) for v in variants}
        frame = compared(results).rename_axis("variant").reset_index()
        frame.insert(0, "seed", seed)
        good = {name: elpd_value(result, "good_k") for name, result in results.items()}
        large = {name: float((elpd_value(result, "pareto_k") > good[name]).mean()) for name, result in results.items()}
        frame["good_k"] = frame["variant"].map(good)
        frame["k_large"] = frame["variant"].map(large)
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)
