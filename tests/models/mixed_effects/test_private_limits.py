"""The committed table of coverage under noise: which cells are off, and that a limit without noise says the same."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from support.private_limits import SITES, misses

TABLE = Path(__file__).parents[3] / "experiments/results/privacy/formulas.csv"
Cell = dict[str, float]


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, float, str], Cell]:
    """Of noise-aware fits, by model, epsilon and effect."""
    with open(TABLE) as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "aware"]
    numbers = ("coverage", "replicates", "errors_from_90", "sd", "truth")
    return {
        (row["model"], float(row["epsilon"]), row["effect"]): {name: float(row[name]) for name in numbers}
        for row in rows
    }


def test_no_cell_covers_too_little(cells: dict[tuple[str, float, str], Cell]) -> None:
    """Cells that cover too often are of the model whose spread is below the noise, alone."""
    assert min(cell["errors_from_90"] for cell in cells.values()) > -3
    assert {key[0] for key, cell in cells.items() if cell["errors_from_90"] > 3} <= {"slope"}
    for model in ("intercept", "slope"):
        assert all(cell["replicates"] >= 1000 for key, cell in cells.items() if key[0] == model)


@pytest.mark.parametrize("epsilon", [4.0, 8.0])
def test_a_spread_below_the_noise_is_covered_as_it_is_without_privacy(
    cells: dict[tuple[str, float, str], Cell], epsilon: float
) -> None:
    """Ten effects that are seen with a known normal error: no interval ends below the truth there, either."""
    error = cells["intercept", epsilon, "age"]["sd"] * SITES**0.5
    cell = cells["slope", epsilon, "sd(age)"]
    above, below = misses(cell["truth"] / error)
    expected = 1 - above - below
    assert expected > 0.94
    assert below < 0.002
    assert abs(cell["coverage"] - expected) < 3 * np.sqrt(expected * (1 - expected) / cell["replicates"])
