"""Leave-one-out results of ArviZ 0.x and 1.x, which call the same numbers otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .arviz_data import dataset, import_arviz, of_trees

if TYPE_CHECKING:
    import pandas as pd

#: names in ArviZ 1.x, and what 0.x calls them
EARLIER = {"elpd": "elpd_loo", "p": "p_loo", "elpd_i": "loo_i"}


def elpd_value(result: Any, name: str) -> Any:
    """A number of an ``ELPDData``: elpd, se, p, elpd_i, pareto_k, good_k or warning, whatever ArviZ's version."""
    return result[_name(result, name)]


def _name(result: Any, name: str) -> str:
    return name if hasattr(result, name) else EARLIER.get(name, name)


def with_elpd(result: Any, densities: np.ndarray, k: np.ndarray, p: float) -> Any:
    """The same with other log densities of rows left out (N,), shapes (N,) and effective number of parameters."""
    own = {
        "elpd": densities.sum(),
        "se": (len(densities) * densities.var(ddof=int(of_trees()))) ** 0.5,  # 1.x divides by n - 1, as its loo does
        "p": p,
        "elpd_i": elpd_value(result, "elpd_i").copy(data=densities),
        "pareto_k": elpd_value(result, "pareto_k").copy(data=k),
        "warning": bool((k > elpd_value(result, "good_k")).any()),
    }
    for name, value in own.items():
        result[_name(result, name)] = value
    return result


#: a tail that can be fitted has more draws than this
LARGEST_SHORT_TAIL = 4


def smoothed(log_ratios: np.ndarray, reff: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Pareto-smoothed log weights (N, S), which add up to one, and shapes (N,), of log importance ratios (N, S).

    Where a tail has too few draws that differ, weights are as they are and the shape is inf.
    """
    if not of_trees():
        weights, k = import_arviz().psislw(log_ratios, reff=reff)
        return np.asarray(weights), np.asarray(k)
    import xarray

    weights = log_ratios - log_ratios.max(-1, keepdims=True)
    number = weights.shape[-1]
    tail = int(np.ceil(min(number / 5, 3 * (number / reff) ** 0.5)))
    cutoff = np.sort(weights, -1)[:, max(0, number - tail - 1), None]
    k = np.full(len(weights), np.inf)
    fit = (weights > cutoff).sum(-1) > LARGEST_SHORT_TAIL
    if fit.any():
        import_arviz()  # from 1.0 on what it does with arrays is an accessor of xarray's
        rows = xarray.DataArray(-weights[fit], dims=("row", "draw"))
        weights[fit], k[fit] = (v.transpose("row", ...).values for v in rows.azstats.psislw(dim="draw", r_eff=reff))
    return weights - np.logaddexp.reduce(weights, axis=-1, keepdims=True), k


def leave_one_out(data: Any, site: str, reff: float) -> Any:
    """``az.loo``, pointwise, of one site's log likelihoods, a short tail's included."""
    if not of_trees():
        return import_arviz().loo(data, pointwise=True, var_name=site, reff=reff)
    density = dataset(data, "log_likelihood")[site].transpose(..., "chain", "draw").astype(float)
    rows = density.shape[:-2]
    weights, k = smoothed(-density.values.reshape(-1, density.sizes["chain"] * density.sizes["draw"]), reff)
    log_weights = density.copy(data=weights.reshape(density.shape))
    shapes = density.isel(chain=0, draw=0, drop=True).copy(data=k.reshape(rows))
    return import_arviz().loo(data, pointwise=True, var_name=site, reff=reff, log_weights=log_weights, pareto_k=shapes)


def compared(results: Mapping[str, Any]) -> pd.DataFrame:
    """``az.compare`` of results by name: best first, with the columns and the signs of ArviZ 0.x, not rounded."""
    if not of_trees():
        return import_arviz().compare(dict(results))
    table = import_arviz().compare(dict(results), round_to="none").rename(columns=EARLIER)
    return table.assign(elpd_diff=-table["elpd_diff"] + 0.0)  # how much worse than the best
