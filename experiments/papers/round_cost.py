"""What a round of pFedVMP and its variants costs, by the number of features."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hierfl.errors import UserError

from ..bench.clock import seconds
from ..build import build
from ..grid import Cell
from ..messages import to_stderr


def with_width(network: str, width: int) -> str:
    """A network's name with another width of its last hidden layer.

    Raises:
        UserError: for a network without one.
    """
    name, comma, options = network.partition(",leaky")
    before, mark, last = name.rpartition(":")
    if not mark:
        raise UserError(f"network {network} has no hidden layer whose width could be another")
    widths = [*last.split(",")[:-1], str(width)]
    return f"{before}:{','.join(widths)}{comma}{options}"


def time_rounds(cells: Mapping[tuple[str, int], Cell], extra: Mapping[str, Any], turns: int) -> list[dict[str, Any]]:
    """Seconds and bytes of a round, every cell in turn, after one to warm up.

    Args:
        cells: by method and width.
        extra: run options.
        turns: rounds of each that are timed.
    """
    fits = {}
    for (name, width), cell in cells.items():
        config = cell.config(extra)
        to_stderr()(f"{name}, {width} features")
        fits[name, width] = build(config)[0]
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in fits}
    for _ in range(turns + 1):
        for key, fit in fits.items():
            taken[key].append(seconds(fit.step, fit.options.device))
    return [
        {
            "variant": name,
            "width": width,
            "seconds": taken[name, width][1:],
            "median_seconds": statistics.median(taken[name, width][1:]),
            "bytes_per_message": fit.state.bytes / fit.journal.round / len(fit.engine.ids),
        }
        for (name, width), fit in fits.items()
    ]


def cost_table(rows: Sequence[dict[str, Any]]) -> str:
    """Widths down, methods across: seconds a round, and kilobytes of a client's message."""
    names, widths = (list(dict.fromkeys(row[k] for row in rows)) for k in ("variant", "width"))
    by = {(row["variant"], row["width"]): row for row in rows}
    columns = [f"{name}: {what}" for name in names for what in ("s a round", "kB a message")]
    lines = [f"| features | {' | '.join(columns)} |", "|---:|" + "---:|" * len(columns)]
    for width in widths:
        cells = [
            cell
            for name in names
            for cell in (
                f"{by[name, width]['median_seconds']:.2f}",
                f"{by[name, width]['bytes_per_message'] / 1e3:,.0f}",
            )
        ]
        lines.append(f"| {width} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
