"""A run's table of protocols on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .screen import console, number_table

KINDS = {"pm": "personal", "pm_draws": "personal, averaged draws", "gm": "global"}
SHOWN_METRICS = ("accuracy", "nll", "ece")


def print_protocols(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Prints two tables: of predictions that see an input at a time, and of those that use the test inputs together."""
    screen = console()
    for transductive in (False, True):
        own = [row for row in rows if row["transductive"] == transductive]
        if not own:
            continue
        table = number_table("test labels", "predictions", "shares", *SHOWN_METRICS)
        for row in own:
            numbers = (
                f"{100 * row[name]:.2f} %" if name == "accuracy" else f"{row[name]:.4f}" for name in SHOWN_METRICS
            )
            table.add_row(row["protocol"], KINDS[row["predictions"]], row["shares"], *numbers)
        first = own[0]
        what = "label shares from all test inputs together" if transductive else "one input at a time"
        screen.print(f"{first['method']} {first['setting']}".strip() + f", {what}")
        screen.print(table)
    screen.print(f"everything is in {folder}", soft_wrap=True)
