"""How well chains have mixed, and how surely strange inputs are noticed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hierfl.metrics.ood import ood_auroc

if TYPE_CHECKING:
    from hierfl.inference import Run


#: draws of a chain, or of two, of which something can be said
LEAST_DRAWS = 8
#: of so many draws it takes some seconds to say how well their chains mixed; where there are more, every so many of
#: each client's numbers are looked at
MOST_MIXING_DRAWS = 10_000_000
#: nothing to say of chains
NO_CHAINS: dict[str, float | None] = {"rhat": None, "ess_bulk": None, "ess_bulk_median": None, "kept_draws": None}


def chain_mixing(run: Run, clients: pd.DataFrame) -> dict[str, float | None]:
    """The worst R-hat and bulk ESS of all personal numbers, and the median ESS; each client's worst become columns.

    All draws that chains have kept count, posterior.nc may hold fewer. Of a single chain the halves are compared.
    Of hardly any draws (:data:`LEAST_DRAWS`) there is their number alone, and nothing where draws are independent (a
    guide's, and those of a joint posterior).
    """
    from hierfl.convergence import rhat_and_ess

    if run.fitted.method.independent_draws or not run.fitted.federation.clients:
        return NO_CHAINS
    arrays = [v.flatten(3) if v.dim() > 3 else v[..., None] for v in run.fitted.kept_draws().values()]
    if not arrays:
        return NO_CHAINS
    kept = float(min(v.shape[1] * v.shape[2] for v in arrays))
    if min(v.shape[2] * min(2, v.shape[1]) for v in arrays) < LEAST_DRAWS:
        return {**NO_CHAINS, "kept_draws": kept}
    every = math.ceil(sum(v.numel() for v in arrays) / MOST_MIXING_DRAWS)
    parts = []
    for value in arrays:  # J, chains, kept, numbers
        some = value[..., ::every].permute(1, 2, 0, 3)
        both = rhat_and_ess(some.reshape(*some.shape[:2], -1).cpu().numpy())
        parts.append(np.reshape(both, (2, len(value), -1)))
    rhat, ess = np.concatenate(parts, 2)
    clients["rhat"], clients["ess_bulk"] = rhat.max(1), ess.min(1)
    worst = {"rhat": float(rhat.max()), "ess_bulk": float(ess.min()), "ess_bulk_median": float(np.median(ess))}
    return {**worst, "kept_draws": kept}


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
