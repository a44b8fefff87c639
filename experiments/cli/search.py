"""`hierfl tune` and `hierfl search`: settings chosen on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.errors import UserError

from .as_json import AsJson, print_json
from .options import Offline, Quiet, path_option, with_run_options
from .reading import with_reading

By = Annotated[
    str | None,
    typer.Option(metavar="METRIC,...", help="Judge settings by the mean of these metrics. [default: pm_nll]"),
]
Settle = Annotated[int, typer.Option(help="Average metrics over the last evaluations, this many.")]


@with_reading()
@with_run_options("tune")
def tune(
    method: Annotated[str, typer.Argument(help="A method (see hierfl methods), or FILE.py.")],
    grid: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=V,V,...]", help="Values that are tried. [default: the published grid]"),
    ] = None,
    budget: Annotated[int, typer.Option(help="Number of settings that are run.")] = 6,
    seeds: Annotated[int, typer.Option(help="Number of runs of each setting, with seeds 0, 1, ...")] = 1,
    settle: Settle = 1,
    by: By = None,
    out: Annotated[
        Path | None, path_option("FILE", "A json file of all that was tried. [default: ./runs/tune-METHOD-DATA.json]")
    ] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Choose a method's settings on validation data, with a budget. A stopped search continues."""
    from ..configure import parse_settings
    from ..search.cells import parse_metrics
    from ..search.tune import data_of
    from ..search.tune import tune as climb

    data = data_of(method, given.pop("data", None))
    values = {key: text.split(",") for key, text in parse_settings(grid or []).items()}
    best = climb(
        method, data, given, values, budget, out,
        seeds=seeds, settle=settle, by=parse_metrics(by or ""), progress=not (quiet or as_json),
    )  # fmt: skip
    if as_json:
        print_json(best)


@with_reading()
@with_run_options("search")
def search(
    method: Annotated[str, typer.Argument(help="A method (see hierfl methods), or FILE.py.")],
    grid: Annotated[
        list[str], typer.Argument(metavar="KEY=V,V,...", help="Values that are tried, in all combinations.")
    ],
    out: Annotated[Path, path_option("FILE", "A json file of all that was tried.")],
    seeds: Annotated[int, typer.Option(help="Number of runs of each setting, with seeds 0, 1, ...")] = 3,
    settle: Settle = 1,
    by: By = None,
    against: Annotated[
        str | None, typer.Option(metavar="KEY", help="Draw the metrics against this setting, to a png beside --out.")
    ] = None,
    offline: Offline = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Run every setting of a grid and rank them on validation data. A stopped search continues."""
    from ..configure import parse_settings
    from ..search.cells import in_words, parse_metrics
    from ..search.cells import search as run_grid
    from ..search.sensitivity import draw_sensitivity, numeric_settings
    from ..search.tune import data_of

    data = data_of(method, given.pop("data", None))
    values = {key: text.split(",") for key, text in parse_settings(grid).items()}
    if against and against not in numeric_settings(method):
        raise UserError(f"--against takes a setting of {method} that is a number, not {against!r}")
    cells = run_grid(method, data, seeds, values, out, given, settle, parse_metrics(by or ""),
                     say=(lambda line: None) if as_json else print)  # fmt: skip
    title, drawn = f"{method} on {data}, {seeds} seed{'s' * (seeds > 1)}", ""
    if against:
        drawn = str(draw_sensitivity(method, cells, against, title, out.with_suffix(".png")))
    if as_json:
        print_json(cells)
        return
    typer.echo("\n".join(filter(None, (f"best: {in_words(cells[0])}", drawn))))
