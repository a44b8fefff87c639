"""Calibrations and alternatives of plain models on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .screen import console, number_table

if TYPE_CHECKING:
    from hierfl.models.any_model.alternatives import Difference, Scored
    from hierfl.models.any_model.sbc.study import Calibration


def print_calibration(calibration: Calibration, folder: Path) -> None:
    """Prints coverage of every quantity, and in the last line whether intervals cover."""
    from hierfl.models.any_model.sbc.study import shown

    screen = console()
    screen.print(f"{calibration.name}: {calibration.words}", soft_wrap=True)
    if len(calibration.failed) < len(calibration.replicates):
        table = number_table("quantity", "50 % intervals", "90 % intervals", "p, uniform", "")
        for row in shown(calibration.rows()):
            table.add_row(*row)
        screen.print(table)
    screen.print(f"in {folder}", soft_wrap=True)
    for line in calibration.lines():
        screen.print(line, soft_wrap=True)


def print_alternatives(
    differences: Sequence[Difference], scored: Sequence[Scored], folder: Path, *, held_out: bool
) -> None:
    """Prints how well each of some models predicts rows that it has not seen, best first."""
    screen = console()
    rows = len(scored[0].densities)
    how = f"{rows} rows that were held out" if held_out else f"leave-one-out of {rows} rows"
    screen.print(f"log predictive density, {how}; differences are paired by row", soft_wrap=True)
    columns = ["model", "elpd", "se", "behind", "its se", "bound", "globals"]
    table = number_table(*columns, *([] if held_out else ["k > 0.7"]))
    for row in differences:
        cells = [row.name, f"{row.elpd:.1f}", f"{row.elpd_se:.1f}", f"{row.behind:.1f}", f"{row.behind_se:.1f}"]
        cells += [f"{row.bound:.1f}", f"{row.globals}"]
        table.add_row(*cells, *([] if held_out else [f"{row.large_k}"]))
    screen.print(table)
    for model in scored:
        for note in model.notes:
            screen.print(f"{model.name}: {note}", soft_wrap=True)
    screen.print(f"in {folder}", soft_wrap=True)
    screen.print(_says(differences), soft_wrap=True)


def _says(differences: Sequence[Difference]) -> str:
    """Whether one of the models is better, in one line."""
    best, other = differences[0], differences[1]
    if any(row.large_k > 0 for row in differences):
        return f"{best.name} has the highest density, but rows with k above 0.7 are unsure: --test-fraction holds out"
    if other.behind > 2 * other.behind_se:
        return f"{best.name} predicts better than {other.name}: {other.behind:.1f} +- {other.behind_se:.1f}"
    return f"{best.name} and {other.name} predict alike: {other.behind:.1f} +- {other.behind_se:.1f}"
