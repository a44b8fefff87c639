"""A comparison as it is shown: on the screen, as markdown, on a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hierfl.metrics.registry import METRICS, MIN_TEST_EXAMPLES

from .comparison import Comparison
from .leave_one_out import MOST_LARGE_K
from .variants import chosen_settings, differing, short_names


def _gain_and_interval(metric: str, row: Any) -> tuple[str, str, str]:
    """What is gained, how much, and the interval: percentage points of shares, else the number."""
    scale, digits = (100, 2) if METRICS[metric].points else (1, 3)
    gain, low, high = (f"{scale * value:+.{digits}f}" for value in (row.gain, row.low, row.high))
    return METRICS[metric].gain_label, gain, "" if np.isnan(row.low) else f"{low}…{high}"


@dataclass
class DisplayTable:
    """A table as it is shown, with what there is to say before and after."""

    columns: list[str]
    rows: list[list[str]]
    before: str = ""
    after: str = ""


def heading(compared: Comparison) -> str:
    """What was compared with what."""
    first, others = compared.variants[0], compared.variants[1:]
    run, summary = first.setting["run"], next(iter(first.summaries.values()))
    text = f"{first.name} against {', '.join(v.name for v in others)}: {run['data']}, {summary['clients']} clients, "
    text += f"{run['split']}."
    if own := chosen_settings(compared.variants):
        text += f" Settings: {own}."
    if other := differing(compared.variants):
        apart = "; ".join(f"{k} {', '.join(str(v) for v in values)}" for k, values in other.items())
        text += f" They differ in more than method and settings: {apart}."
    return text


def display_tables(compared: Comparison) -> list[DisplayTable]:
    """Gains, who gains, and leave-one-out."""
    by_pair = compared.table.groupby("over", sort=False)["seeds"].max()
    seeds = int(by_pair.max())
    over = f"a bootstrap over seeds and {'clients' if compared.crossing else 'the clients of each'}"
    over = "a bootstrap over clients alone (one seed)" if seeds == 1 else over
    number = (
        f"{seeds}"
        if by_pair.nunique() == 1
        else ", ".join(f"{short_names(compared.variants)[k]}: {v}" for k, v in by_pair.items())
    )
    label, metrics = short_names(compared.variants), list(dict.fromkeys(compared.table["metric"]))
    gains = DisplayTable(
        ["over", "predictions", "metric", "gain", "95 %", "gain, lose"], [],
        f"Gains: positive where the first is better; mean over clients and seeds ({number}), the central 95 % of "
        f"{over}, and the share of clients that gain and that lose.",
        f"{' and '.join(METRICS[m].label for m in compared.scarce)} left out: half of the clients have "
        f"less than {MIN_TEST_EXAMPLES} test examples, on which they say more of that number than of the model."
        if compared.scarce else "",
    )  # fmt: skip
    for row in compared.table.sort_values("metric", key=lambda c: c.map(metrics.index), kind="stable").itertuples():
        share = f"{100 * row.share_better:.0f} %, {100 * row.share_worse:.0f} %"
        gains.rows.append([label[row.over], row.kind, *_gain_and_interval(row.metric, row), share])
    who = DisplayTable(["over", "metric", "clients with n", "gain", "95 %", "rank r with n"], [])
    last = compared.sizes[compared.sizes["kind"] == compared.sizes["kind"].iloc[-1]]
    words = {"mean": "at the posterior mean", "draws": "averaged over draws"}[last["kind"].iloc[0]]
    who.before = f"Who gains (predictions {words}; r is Spearman's of gain and size, all seeds together):"
    for row in last.itertuples():
        span = f"{row.n_from}" if row.n_from == row.n_to else f"{row.n_from} to {row.n_to}"
        rank = "" if np.isnan(row.rank_correlation_with_n) else f"{row.rank_correlation_with_n:+.2f}"
        what, *gain = _gain_and_interval(row.metric, row)
        who.rows.append([label[row.over], what, span, *gain, rank])
    tables = [gains, who]
    if compared.loo is not None:
        tables.append(_loo_table(compared.loo, label))
    reasons = [f"{label[name]}: {reason}" for name, reason in compared.unfit.items()]
    if reasons:
        tables[-1].after += f" No leave-one-out of {'; '.join(reasons)}."
    return tables


def _loo_table(frame: pd.DataFrame, label: Mapping[str, str]) -> DisplayTable:
    table = DisplayTable(
        ["seed", "", "elpd", "behind", "its se", "p_loo", "weight", "large k"], [],
        "Leave-one-out log predictive density of the training data (PSIS), globals held; best first, and how far the "
        "others are behind it:",
        f"Large k: examples that importance sampling cannot leave out (Pareto's k above {frame['good_k'].min():.2f}); "
        f"above {MOST_LARGE_K:.0%} of them no sum is shown. The base network and the population saw every example, "
        "which makes this optimistic: rank methods with a network by held-out NLL.",
    )  # fmt: skip
    bad = frame.groupby("seed")["k_large"].max() > MOST_LARGE_K
    for row in frame.itertuples():
        cells = [f"{x:.1f}" for x in (row.elpd_loo, row.elpd_diff, row.dse, row.p_loo)] + [f"{row.weight:.2f}"]
        if row.k_large > MOST_LARGE_K:
            cells = [""] * 5
        elif bad[row.seed]:  # nothing to be compared with
            cells[1] = cells[2] = cells[4] = ""
        table.rows.append([str(row.seed), label[row.variant], *cells, f"{row.k_large:.0%}"])
    return table


def markdown(compared: Comparison) -> str:
    """The comparison as text."""
    lines = [heading(compared)]
    for shown_table in display_tables(compared):
        lines += [
            "",
            shown_table.before,
            "",
            f"| {' | '.join(shown_table.columns)} |",
            "|---" * len(shown_table.columns) + "|",
        ]
        lines += [f"| {' | '.join(row)} |" for row in shown_table.rows]
        lines += ["", shown_table.after.strip()] if shown_table.after else []
    return "\n".join([*lines, ""])
