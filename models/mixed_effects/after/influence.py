"""What single clients do to the coefficients: the estimates without each.

Sums over clients lack one client's own part: of a gaussian response the estimates without it are exact given the
variances, of others those of one Newton step (:mod:`..search.single_sites`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hierfl.errors import UserError
from hierfl.inference.run.result import Run

from .coefficients import Coefficients

if TYPE_CHECKING:
    import pandas as pd


def influences(run: Run, coefficients: Coefficients) -> pd.DataFrame:
    """See :meth:`.answers.AfterFit.influence`."""
    import pandas as pd

    watched, method = run.watched, coefficients.method
    if method.above:
        raise UserError(
            "influence is of clients without groups of clients, or that cross them: the groups' effects move with it"
        )
    if watched is None or watched.beside is None or watched.without is None:
        raise UserError("single clients' messages were not seen: their influence is not known")
    places = [watched.estimated.index(name) for name in coefficients.names]
    moved = watched.without[:, places] - watched.beside[:, places]
    finite = np.isfinite(coefficients.covariance.diagonal())
    inverse = np.linalg.pinv(coefficients.covariance[np.ix_(finite, finite)], hermitian=True)
    away = moved[:, finite]
    table = pd.DataFrame({"client": list(watched.names)})
    sizes = dict(zip(run.ids, run.fitted.federation.sizes(), strict=True))
    table["rows"] = [sizes[name] for name in watched.names]
    table["cooks_distance"] = np.einsum("jp,pq,jq->j", away, inverse, away) / max(1, int(finite.sum()))
    table[list(coefficients.names)] = coefficients.values + moved
    table["note"] = [_note([coefficients.names[k] for k in np.flatnonzero(lost)]) for lost in np.isnan(moved) & finite]
    return table


def _note(names: Sequence[str]) -> str:
    """Why a row has numbers that are none."""
    return f"without it nothing is known of {', '.join(names)}" if names else ""
