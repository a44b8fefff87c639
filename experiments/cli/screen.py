"""Tables on the screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.data.formula.parsed import INSIDE_GROUPS, SPREAD
from hierfl.files import shown_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..compare.comparison import Comparison


#: columns of a comparison that are not broken: names give way to numbers
UNBROKEN = ("metric", "gain", "95 %", "elpd", "behind", "its se", "p_loo", "weight", "large k")
#: columns of a line in a file or a pipe, at most
UNBROKEN_WIDTH = 10_000


def console() -> Console:
    """The console for tables: names of others are neither markup nor highlighted, and hide or move nothing.

    In a file or a pipe no line is broken, unless COLUMNS says how wide it is.
    """
    from rich.console import Console

    class Escaping(Console):
        """Text as it can be printed."""

        def print(self, *objects: Any, **how: Any) -> None:
            if not self.is_terminal:
                how.setdefault("soft_wrap", all(isinstance(item, str) for item in objects))
            super().print(*(shown_lines(item) if isinstance(item, str) else item for item in objects), **how)

    screen = Escaping(markup=False, highlight=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = UNBROKEN_WIDTH
    return screen


def text_table(*columns: str) -> Table:
    """A table whose columns are text."""
    from rich import box
    from rich.table import Table

    class Escaping(Table):
        """Cells as they can be printed."""

        def add_row(self, *cells: Any, **how: Any) -> None:
            super().add_row(*(shown_lines(cell) if isinstance(cell, str) else cell for cell in cells), **how)

    return Escaping(*map(shown_lines, columns), box=box.SIMPLE_HEAD, pad_edge=False)


def number_table(first: str, *others: str) -> Table:
    """A table whose columns, but for the first, are numbers."""
    table = text_table(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def print_comparison(compared: Comparison, folder: Path) -> None:
    """Prints a comparison's tables."""
    from ..compare.display import display_tables, heading

    screen = console()
    screen.print(heading(compared))
    for shown_table in display_tables(compared):
        screen.print(f"\n{shown_table.before}")
        table = text_table(shown_table.columns[0])
        for name in shown_table.columns[1:]:
            table.add_column(name, no_wrap=name in UNBROKEN)
        for row in shown_table.rows:
            table.add_row(*row)
        screen.print(table)
        if shown_table.after:
            screen.print(shown_table.after.strip())
    screen.print(f"everything is in {folder}", soft_wrap=True)


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Prints what a run has found."""
    from hierfl.metrics.registry import client_metrics

    from ..run_folder.dp_lines import dp_lines
    from ..run_folder.summary import calibration_lines, ece_lines, fit_warnings, masked_line

    screen = console()
    clients, rounds = (f"{summary[k]} {k if summary[k] != 1 else k[:-1]}" for k in ("clients", "rounds"))
    screen.print(f"{summary['method']} on {summary['data']}: {clients}, {rounds}")
    _print_population(summary, folder, screen)
    regression = summary["pm_rmse"] is not None
    names = client_metrics("regression" if regression else "classification")
    table = number_table("test data", *names)
    for numbers, when in ((summary, "last round"), (summary["best"], "best by validation")):
        if numbers is None or (numbers is not summary and numbers["round"] == summary["rounds"]):
            continue  # nothing was held out, or the last round is the best one
        when = f"round {numbers['round']}, {when}" if "round" in numbers else when
        for kind, what in (("pm", "personal"), ("pm_draws", "personal, averaged draws"), ("gm", "global")):
            values = [numbers.get(f"{kind}_{name}") for name in names]
            if any(v is not None for v in values):
                table.add_row(f"{what} ({when})", *(_number(name, v) for name, v in zip(names, values, strict=True)))
    if table.row_count:
        screen.print(table)
    for note in filter(None, (summary.get("best_note"), masked_line(summary))):
        screen.print(note, soft_wrap=True)
    for line in (*ece_lines(summary), *calibration_lines(summary)):
        screen.print(line, soft_wrap=True)
    for line in dp_lines(summary):
        screen.print(line, soft_wrap=True)
    if (undone := summary["diverged_local_steps"]) and not any("local steps" in line for line in fit_warnings(summary)):
        steps = "1 local step" if undone == 1 else f"{undone} local steps"
        screen.print(f"{steps} diverged; the client{'s' * (undone > 1)} kept the previous state")
    for line in summary.get("advice") or ():
        screen.print(line, soft_wrap=True)
    screen.print(f"everything is in {folder}", soft_wrap=True)


def _print_population(summary: dict[str, Any], folder: Path, screen: Console) -> None:
    """What a method reports of the population, and how well its chains have mixed."""
    from hierfl.data.formula.references import reference_line
    from hierfl.models.mixed_effects.report.printed import ratio_line
    from hierfl.responses.registry import RESPONSES

    from ..run_folder.config_file import read_config
    from ..run_folder.files import GLOBAL_COLUMNS, read_effects, read_globals
    from ..run_folder.summary import fit_warnings

    config, effects = read_config(folder) if (folder / "config.toml").is_file() else None, list[list[str]]()
    response = None if config is None else RESPONSES.get(config.run.family or "")
    if (folder / "effects.csv").is_file():
        columns, effects = read_effects(folder)
        table = number_table(*columns)
        table.collapse_padding = True  # so that it has room in eighty columns
        for row in effects:
            table.add_row(*row)
        screen.print(table)
        if line := reference_line(summary.get("references") or {}):
            screen.print(line, soft_wrap=True, markup=False, highlight=False)
        if response is not None and response.ratio:
            screen.print(ratio_line(response.ratio))
    if (folder / "globals.csv").is_file():
        table = number_table(*GLOBAL_COLUMNS)
        for row in read_globals(folder):
            table.add_row(*row)
        screen.print(table)
    if summary.get("log_likelihood") is not None and config is not None:
        population = config.settings.get("population")
        # Of clients' own residual deviations it is maximum likelihood.
        own = any(row[0] == f"sd({SPREAD})" for row in effects)
        exact = response is not None and response.closed_form and not own
        restricted = population == "reml" or (population == "auto" and exact)
        name = "restricted log likelihood" if restricted else "log likelihood"
        numbers = [f"{name} {summary['log_likelihood']:.3f}"]
        numbers += [f"{name.upper()} {summary[name]:.1f}" for name in ("aic", "bic")]
        lost = f" ({summary['left_out']:,.0f} more lack a value, and are left out)" if summary.get("left_out") else ""
        counts = [f"{summary[name]:,.0f}" for name in INSIDE_GROUPS if summary.get(name)]
        inside = f"{' + '.join(counts)} groups inside " if counts else ""
        above = f" in {summary['outer_groups']:,.0f} groups" if summary.get("outer_groups") else ""
        crossed = summary.get("crossed_groups")
        above = f" x {crossed:,.0f} groups that cross them" if crossed else above
        noisy = "about " if summary.get("dp") else ""  # a count of rows has noise as all else
        numbers += [f"{noisy}{summary['rows']:,.0f} rows of {inside}{summary['groups']:,.0f} clients{above}{lost}"]
        screen.print(", ".join(numbers))
        if summary.get("dp"):
            screen.print("these are of the noisy sums that were sent: compare no two fits with different noise by them")
    if summary["ood_auroc"] is not None:
        score_words = f"AUROC {summary['ood_auroc']:.3f} at the posterior mean"
        averaged = (
            "" if summary["ood_draws_auroc"] is None else f", {summary['ood_draws_auroc']:.3f} averaged over draws"
        )
        screen.print(f"inputs of {summary['ood']} among its own, by predictive entropy: {score_words}{averaged}")
    for line in fit_warnings(summary):
        screen.print(line, soft_wrap=True)


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    from hierfl.metrics.registry import in_percent

    return f"{value:.1%}" if in_percent(name) else f"{value:.3f}"
