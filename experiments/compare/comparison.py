"""A comparison of runs: gains, who gains, leave-one-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hierfl.errors import UserError
from hierfl.metrics.registry import METRICS, MIN_TEST_EXAMPLES, client_metrics

from .gains import gain_table, gains_by_size, paired_gains
from .leave_one_out import leave_one_out, why_no_loo
from .variants import Variant, gather_variants, same_clients


@dataclass
class Comparison:
    """What a comparison found.

    Attributes:
        variants: the first is compared with every other.
        gains, table, sizes: see :func:`~hierfl.experiments.compare.gains.paired_gains`,
            :func:`~hierfl.experiments.compare.gains.gain_table`,
            :func:`~hierfl.experiments.compare.gains.gains_by_size`.
        loo: see :func:`~hierfl.experiments.compare.leave_one_out.leave_one_out`; None where it was not wanted, or there
            are no two variants fit for it.
        unfit: variants that are not in ``loo``, and why.
        scarce: metrics of which few test examples say little, and so nothing is said.
        crossing: whether a client's name means the same data under every seed.
    """

    variants: list[Variant]
    gains: pd.DataFrame
    table: pd.DataFrame
    sizes: pd.DataFrame
    loo: pd.DataFrame | None
    unfit: dict[str, str]
    scarce: list[str]
    crossing: bool


def compare_runs(
    runs: Sequence[Path], want_loo: bool | None = None, labels: Mapping[Path, str] | None = None
) -> Comparison:
    """Compares runs; see the module.

    Args:
        runs: folders of finished runs, those of the method in question first.
        want_loo: True insists on leave-one-out, False leaves it out, None has it where all runs have draws.
        labels: see :func:`.variants.gather_variants`.

    Raises:
        UserError: for runs that cannot be compared, or that have no draws where leave-one-out was asked for.
    """
    variants = gather_variants(runs, labels)
    if len(variants) < 2:
        raise UserError(f"all these runs are {variants[0].name}: there is nothing to compare")
    crossing, gains = same_clients(variants[0]), paired_gains(variants)
    if gains.empty:
        raise UserError("no client has test data to be compared on (of tables: hierfl run --test-fraction 0.2)")
    few = gains["n_test"].median() < MIN_TEST_EXAMPLES
    scarce = [m for m in client_metrics() if few and METRICS[m].needs_many and m in gains]
    gains = gains.drop(columns=scarce)
    seeds = sorted(set.intersection(*(set(v.runs) for v in variants)))
    reasons = (
        {}
        if want_loo is False
        else {v.name: next(filter(None, (why_no_loo(v.runs[s]) for s in seeds)), "") for v in variants}
    )
    fit = [v for v in variants if v.name in reasons and not reasons[v.name]]
    if want_loo and (len(fit) < 2 or not seeds):
        name, reason = next(((k, v) for k, v in reasons.items() if v), ("they", "have no seed in common"))
        raise UserError(f"leave-one-out needs two variants with draws; {name}: {reason}")
    loo = leave_one_out(fit, seeds) if len(fit) > 1 and seeds else None
    unfit = {k: v for k, v in reasons.items() if v}
    return Comparison(
        variants, gains, gain_table(gains, crossing), gains_by_size(gains, crossing), loo, unfit, scarce, crossing
    )
