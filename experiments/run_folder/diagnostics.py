"""How well chains have mixed, and how surely strange inputs are noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hierfl.arviz_io import of_clients
from hierfl.metrics.ood import ood_auroc

if TYPE_CHECKING:
    from hierfl.inference import Run


#: of more draws than these it is not computed how well their chains mixed: that would take longer than some seconds
MOST_MIXING_DRAWS = 10_000_000


def chain_mixing(data: Any, clients: pd.DataFrame) -> dict[str, float | None]:
    """The worst R-hat and bulk ESS of all personal numbers; each client's become columns of ``clients``.

    Nothing where there is one chain only, or draws are independent (a guide's, and those of a joint posterior), or
    draws without end.
    """
    from hierfl.convergence import rhat_and_ess

    nothing: dict[str, float | None] = {"rhat": None, "ess_bulk": None}
    if "posterior" not in data.groups() or data.log_likelihood.attrs.get("draws_of") == "posterior":
        return nothing
    posterior = of_clients(data.posterior)
    if posterior.sizes["chain"] < 2 or posterior.sizes["draw"] < 4:
        return nothing
    arrays = [v.transpose("chain", "draw", "client", ...).values for v in posterior.data_vars.values()]
    if sum(array.size for array in arrays) > MOST_MIXING_DRAWS:
        return nothing
    found = [rhat_and_ess(array.reshape(*array.shape[:2], -1)) for array in arrays]
    for k, column, worst in ((0, "rhat", "max"), (1, "ess_bulk", "min")):
        each = np.concatenate(
            [values[k].reshape(array.shape[2], -1) for values, array in zip(found, arrays, strict=True)], 1
        )
        clients[column] = getattr(each, worst)(1)
    return {"rhat": float(clients["rhat"].max()), "ess_bulk": float(clients["ess_bulk"].min())}


def ood_detection(run: Run, strange: np.ndarray, clients: pd.DataFrame) -> tuple[dict[str, float | None], list[Any]]:
    """How well strange inputs are separated from a client's own, by predictive entropy.

    Columns entropy, ood_entropy and ood_auroc of ``clients`` are at the posterior mean; with ``draws`` in the name they
    are averaged over draws.

    Returns:
        Means over clients for the summary, and the entropies to draw: (own, strange) for each client.
    """
    numbers: dict[str, float | None] = {"ood_auroc": None, "ood_draws_auroc": None}
    pairs: list[Any] = []
    for kind, draws in (("", 0), ("draws_", run.options.draws)):
        if draws and not run.random:
            continue
        own, other = run.entropies(None, draws), run.entropies(strange, draws)
        pairs = list(zip(own, other, strict=True))
        clients[f"{kind}entropy"] = [a.mean() if len(a) else np.nan for a in own]
        clients[f"ood_{kind}entropy"] = [a.mean() for a in other]
        clients[f"ood_{kind}auroc"] = [ood_auroc(a, b) if len(a) else np.nan for a, b in pairs]
        numbers[f"ood_{kind}auroc"] = float(clients[f"ood_{kind}auroc"].mean())
    return numbers, pairs
