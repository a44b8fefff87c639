"""Published numbers."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Published:
    """One published number, in percent."""

    accuracy: float
    sem: float | None


def published_numbers(paper: str, number: str, split: str = "") -> dict[tuple[str, int, str, str], Published]:
    """{(data, clients, method, PM or GM): number} of one table from published.csv, of a split where it has several."""
    text = (files("hierfl.experiments.papers") / "published.csv").read_text()
    return {
        (row["data"], int(row["clients"]), row["method"], row["model"]): Published(
            float(row["accuracy"]), float(row["sem"]) if row["sem"] else None
        )
        for row in csv.DictReader(io.StringIO(text))
        if (row["paper"], row["table"], row["split"]) == (paper, number, split)
    }
