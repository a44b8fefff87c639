"""Leave-one-out results of ArviZ 0.x and 1.x, which call the same numbers otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .arviz_data import import_arviz

if TYPE_CHECKING:
    import pandas as pd

#: names in ArviZ 1.x, and what 0.x calls them
EARLIER = {"elpd": "elpd_loo", "p": "p_loo", "elpd_i": "loo_i"}


def elpd_value(found: Any, name: str) -> Any:
    """A number of an ``ELPDData``: elpd, se, p, elpd_i, pareto_k, good_k or warning, whatever ArviZ's version."""
    return found[_name(found, name)]


def _name(found: Any, name: str) -> str:
    return name if hasattr(found, name) else EARLIER.get(name, name)


def with_elpd(found: Any, each: np.ndarray, k: np.ndarray, p: float) -> Any:
    """The same with other log densities of rows left out (N,), shapes (N,) and effective number of parameters."""
    own = {
        "elpd": each.sum(),
        "se": (len(each) * each.var()) ** 0.5,
        "p": p,
        "elpd_i": elpd_value(found, "elpd_i").copy(data=each),
        "pareto_k": elpd_value(found, "pareto_k").copy(data=k),
        "warning": bool((k > elpd_value(found, "good_k")).any()),
    }
    for name, value in own.items():
        found[_name(found, name)] = value
    return found


def smoothed(log_ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pareto-smoothed log weights (N, S), which add up to one, and shapes (N,), of log importance ratios (N, S)."""
    az = import_arviz()
    if hasattr(az, "psislw"):
        weights, k = az.psislw(log_ratios)
    else:
        from arviz_stats.base import array_stats

        weights, k = array_stats.psislw(log_ratios, axis=-1)
    return np.asarray(weights), np.asarray(k)


def compared(found: Mapping[str, Any]) -> pd.DataFrame:
    """``az.compare`` of results by name: best first, with the columns and the signs of ArviZ 0.x, not rounded."""
    az = import_arviz()
    if hasattr(az, "InferenceData"):
        return az.compare(dict(found))
    table = az.compare(dict(found), round_to="none").rename(columns=EARLIER)
    return table.assign(elpd_diff=-table["elpd_diff"] + 0.0)  # (how much worse than the best)
