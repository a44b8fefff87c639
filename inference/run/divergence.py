"""Whether a fit has diverged, by its last metrics and by how many local steps were undone: one line for its reader."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engines.base import ClientStatus
from ..evaluation.fitted import Fitted
from ..evaluation.predictive_model import PredictiveModel
from ..method.capabilities import is_tabular
from ..options import Options
from .journal import Row

#: of the clients' local steps, what part may be undone without a line
UNDONE_PART = 0.1
#: guessing has NLL log C; a fit that has diverged is so many times worse, at an accuracy so little above 1 / C
WORSE_NLL, ABOVE_CHANCE = 2.0, 0.05
#: predicting the mean has the responses' standard deviation as RMSE; a fit that has diverged is so many times worse
WORSE_RMSE = 3.0


def divergence(fitted: Fitted, evaluations: Sequence[Row], status: np.ndarray | None, options: Options) -> str:
    """One line for a fit of a network that has diverged; empty for others.

    Args:
        fitted: method, data and state.
        evaluations: one row for each evaluation and split.
        status: (rounds, J) of :class:`~hierfl.inference.engines.base.ClientStatus`; None without a round.
        options: how the fit was run: noise for differential privacy may be the cause.
    """
    if is_tabular(fitted.method) or status is None or not len(status):
        return ""
    last = {row["split"]: row for row in evaluations}
    row = next((last[split] for split in ("validation", "test", "train") if split in last), {})
    units = fitted.federation.response_units
    bad = bad_metrics(row, fitted.federation.classes, None if units is None else units.sd)
    steps = int((status != ClientStatus.ABSENT).sum())
    undone = next((int(row["diverged"]) for row in reversed(evaluations) if row.get("diverged")), 0)
    if undone > UNDONE_PART * max(steps, undone):
        bad.append(f"{undone} of {max(steps, undone)} local steps were undone, as their numbers were not finite")
    if not bad:
        return ""
    noise = "" if options.dp == "none" else f"; it has noise for epsilon {options.epsilon:g}: try a larger epsilon"
    return f"the fit has diverged: {'; '.join(bad)}{noise}{_smaller_step(fitted.method)}"


def bad_metrics(row: Mapping[str, Any], classes: int, sd: float | None) -> list[str]:
    """What an evaluation says that only a fit that has diverged leaves.

    Args:
        row: of metrics.csv.
        classes: C; 0 for a regression.
        sd: of a regression's training responses; None where it is not known.
    """
    worst = {name: row[name] for name in ("pm_nll", "pm_draws_nll", "gm_nll") if row.get(name) is not None}
    if strange := [name for name, value in worst.items() if not math.isfinite(value)]:
        kind = {"pm_nll": "personal", "pm_draws_nll": "averaged", "gm_nll": "global"}[strange[0]]
        return [f"NLL of {kind} predictions on {row['split']} data is not finite"]
    accuracy, nll, rmse = (row.get(f"pm_{name}") for name in ("accuracy", "nll", "rmse"))
    if classes > 1 and accuracy is not None and nll is not None:
        guess = math.log(classes)
        if accuracy <= 1 / classes + ABOVE_CHANCE and nll > WORSE_NLL * guess:
            guessing = f"guessing has {1 / classes:.1%} and {guess:.2f}"
            return [f"accuracy is {accuracy:.1%} and NLL {nll:.3g} on {row['split']} data, where {guessing}"]
    if not classes and rmse is not None and sd is not None and not rmse <= WORSE_RMSE * sd:
        return [f"RMSE on {row['split']} data is {rmse:.3g}, and the responses' standard deviation is {sd:.3g}"]
    return []


def _smaller_step(method: PredictiveModel) -> str:
    """The method's step sizes, a tenth of what they were."""
    settings = vars(method.settings)
    sizes = {k: v for k, v in settings.items() if k.endswith("lr") and k != "server_lr" and isinstance(v, float) and v}
    return f"; try smaller steps: {', '.join(f'{k}={v / 10:.3g}' for k, v in sizes.items())} (--set)" if sizes else ""
