"""Gains of one variant over others, paired by seed and client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hierfl.errors import UserError
from hierfl.metrics import paired

from .variants import Variant

#: predictions at the posterior mean, and averaged over draws
KINDS = ("mean", "draws")


def paired_gains(variants: Sequence[Variant]) -> pd.DataFrame:
    """Gains of the first over each other, a row for each seed and client: columns over, kind, seed, client, n, ...

    Raises:
        UserError: where two have no seed in common.
    """
    first, frames = variants[0], []
    for other in variants[1:]:
        for kind in KINDS:
            if any(kind not in v.kinds for v in (first, other)) or (
                kind == "draws" and not (first.random or other.random)
            ):
                continue
            columns = {}
            for metric in paired.METRICS:
                names = [v.kinds[kind] + metric for v in (first, other)]
                if all(name in v.clients for name, v in zip(names, (first, other), strict=True)):
                    columns[metric] = (names[0], names[1])
            try:
                gains = paired.gains(first.clients, other.clients, columns)
            except UserError as error:
                raise UserError(f"{first.name} and {other.name} cannot be paired: {error}") from error
            frames.append(gains.assign(over=other.name, kind=kind))
    frame = pd.concat(frames, ignore_index=True)
    return frame[["over", "kind", *(c for c in frame if c not in ("over", "kind"))]]


def gain_table(gains: pd.DataFrame, crossing: bool) -> pd.DataFrame:
    """Mean gain, interval and share of clients that gain: a row for each pair, kind and metric."""
    rows = []
    for (over, kind), part in gains.groupby(["over", "kind"], sort=False):
        for metric in (m for m in paired.METRICS if m in part and part[m].notna().any()):
            values, clients = part[metric].to_numpy(float), part["client"].to_numpy(str) if crossing else None
            estimate = paired.bootstrap(values, part["seed"].to_numpy(), clients)
            rows.append(
                {
                    "over": over, "kind": kind, "metric": metric, "gain": estimate.mean, "low": estimate.low,
                    "high": estimate.high, "share_better": float(np.mean(values > 0)),
                    "share_worse": float(np.mean(values < 0)), "seeds": part["seed"].nunique(), "pairs": len(part),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def gains_by_size(gains: pd.DataFrame, crossing: bool) -> pd.DataFrame:
    """Who gains: mean gain of the small, middling and large third of the clients, and its rank correlation with n."""
    rows = []
    for (over, kind), part in gains.groupby(["over", "kind"], sort=False):
        third = paired.by_size(part["n"].to_numpy(float))
        for metric in (m for m in ("accuracy", "rmse", "nll") if m in part):
            pair = {"over": over, "kind": kind, "metric": metric}
            pair["rank_correlation_with_n"] = paired.rank_correlation(part["n"], part[metric])
            for k in np.unique(third):
                mine = part[third == k]
                clients = mine["client"].to_numpy(str) if crossing else None
                estimate = paired.bootstrap(mine[metric].to_numpy(float), mine["seed"].to_numpy(), clients)
                if len(mine) < 4:  # of so few no interval can be seen
                    estimate = estimate._replace(low=float("nan"), high=float("nan"))
                span = {"n_from": int(mine["n"].min()), "n_to": int(mine["n"].max()), "pairs": len(mine)}
                rows.append({**pair, **span, "gain": estimate.mean, "low": estimate.low, "high": estimate.high})
    return pd.DataFrame(rows)
