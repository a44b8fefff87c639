"""pFedVMP's table as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierfl.inference.method.settings import applicable
from hierfl.models import PFedVMP

from ..means import mean_and_error, percent
from ..published import published_numbers
from .records import differences
from .variants import KEPT, NETWORK, STEPS, VARIANTS


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """What was run, a row for each variant, and the differences."""
    one = rows[0]["setting"]
    theirs: dict[tuple[str, ...], Any] = {}
    split, more = one["split"].partition(",")[::2]
    kept = KEPT.get((one["data"], float(split.partition(":")[2])))
    papers = one["network"] == NETWORK and more == f"keep={kept:g},redraw" if kept else False
    for table in ("1", "2") if papers else ():  # (what was published is of the paper's data and network)
        theirs |= {(table, *map(str, key)): v for key, v in published_numbers("pfedvmp", table, split).items()}
    lines = [
        f"{one['data']}, {one['clients']} clients, {one['split']}, {one['network']}, {one['rounds']} rounds (paper: "
        + f"1,000), {', '.join(f'{k} {one[k]}' for k in STEPS)}, xi of the squared distance's "
        + f"{rows[-1]['setting']['distance']} over features; last round, mean ± standard error over seeds. Accuracy is "
        + "of all clients' test data together; the coefficient of variation is of clients' own.",
        "",
        "| | seeds | accuracy, % | published | mean over clients, % | variation | NLL | ECE | failed "
        "| kB a message | settings |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        runs, (table, method) = row["runs"], VARIANTS[row["variant"]][1]
        published = theirs.get((table, one["data"], str(one["clients"]), method, "PM"))
        shown = [percent(mean_and_error([run[name] for run in runs])) for name in ("pooled", "accuracy")]
        mean = {name: mean_and_error([run[name] for run in runs])[0] for name in ("cv", "nll", "ece")}
        used = applicable(PFedVMP, {k: row["setting"][k] for k in PFedVMP.Settings.__dataclass_fields__})
        beside = "" if published is None else published.accuracy
        cells = [
            row["variant"], len(row["seeds"]), shown[0], beside, shown[1], *(f"{mean[k]:.3f}" for k in mean),
            sum(run["failed"] for run in runs), f"{runs[0]['bytes_per_message'] / 1e3:,.0f}",
            ", ".join(f"{k} {used[k]:g}" for k in ("xi", "alpha", "cutoff") if k in used),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    gaps = differences(rows)
    if gaps:
        lines += ["", "| difference, paired by seed | seeds | accuracy, points | mean over clients, points | NLL |",
                  "|---|---:|---:|---:|---:|"]  # fmt: skip
    for gap in gaps:
        points = [percent(gap[name]) for name in ("pooled", "accuracy")]
        mean, error = gap["nll"]
        nll = f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}")
        lines.append(f"| {gap['better']} less {gap['worse']} | {len(gap['seeds'])} | {' | '.join(points)} | {nll} |")
    return "\n".join([*lines, ""])
