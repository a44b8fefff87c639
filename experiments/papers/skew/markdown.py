"""The table of domains as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..means import mean_and_error, percent
from ..published import published_numbers
from .variants import VARIANTS


def markdown(rows: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]]) -> str:
    """What was run, accuracy in each domain, the differences, and the published table."""
    domains, one = list(rows[0]["accuracy"]), rows[0]["setting"]
    seeds = sorted({len(row["seeds"]) for row in rows})
    of = f"{' or '.join(map(str, seeds))} seed{'s' * (seeds != [1])}"
    lines = [
        f"{one['data']}, {one['clients']} clients, {one['split']}, {one['rounds']} rounds, last round, "
        f"{of}, {one['network']}"
        + (f"; {one['data_origin']}" if one.get("data_origin") else "")
        + ". Mean ± standard error over seeds, where there are several; differences are paired by seed.",
        "",
        f"| accuracy, % | {' | '.join(domains)} | mean | NLL | ECE | averaged draws: mean | NLL | ECE | failed |",
        "|---|" + "---:|" * (len(domains) + 7),
    ]
    for row in rows:
        shown = [percent(mean_and_error(row["accuracy"][domain])) for domain in domains]
        shown.append(percent(mean_and_error(np.mean(list(row["accuracy"].values()), axis=0))))
        numbers = row["numbers"]
        for name in ("pm_nll", "pm_ece", "pm_draws_accuracy", "pm_draws_nll", "pm_draws_ece"):
            if None in numbers[name]:
                shown.append("")
            else:
                value = mean_and_error(numbers[name])
                shown.append(percent(value) if name.endswith("accuracy") else f"{value[0]:.3f}")
        lines.append(f"| {row['variant']} | {' | '.join(shown)} | {sum(numbers['diverged_local_steps'])} |")
    columns = ["mean", *domains, "averaged draws: mean"]
    lines += ["", f"| difference, points | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for claim in claims:
        values = [claim["mean"], *(claim["domains"][d] for d in domains), claim["draws"]]
        cells = " | ".join("" if value is None else percent(value) for value in values)
        lines.append(f"| {claim['better']} less {claim['worse']} | {cells} |")
    theirs = published_numbers("pfedv", "2")
    known = [d for d in domains if any(key[0] == d for key in theirs)]
    if not known:
        return "\n".join([*lines, ""])
    lines += [
        "",
        "Published, on Digit-Five: five clients, 7,291 images each, 50 rounds, other data of these domains.",
        "",
    ]
    lines += [f"| published, % | {' | '.join(known)} |", "|---|" + "---:|" * len(known)]
    for name, (_, _, key) in VARIANTS.items():
        found = [theirs.get((d, 5, key, "PM")) for d in known]
        if any(found):
            lines.append(f"| {name} | {' | '.join('' if f is None else f'{f.accuracy:.2f}' for f in found)} |")
    return "\n".join([*lines, ""])
