"""`hierfl report`, `hierfl collect`, `hierfl cost`: what finished runs have found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.files import shown_lines

from .as_json import AsJson, print_json
from .options import Offline, Quiet, TrustCode, path_argument, path_option, with_run_options


@with_run_options("data", "data_root", data="the run's", data_root="the run's")
def report(
    folder: Annotated[Path, path_argument("RUN|COMPARISON", "A finished run, or a comparison.")],
    features: Annotated[
        bool, typer.Option(help="Draw a network's features of test data (t-SNE), which needs the data.")
    ] = True,
    rhat: Annotated[bool, typer.Option("--rhat", help="Require several chains and their R-hat.")] = False,
    rows: Annotated[
        bool, typer.Option(help="Show single rows; for a site: keep entries of single rows in its results.")
    ] = True,
    study: Annotated[
        str, typer.Option("--study", metavar="NAME", help="Name of the study, if a site has several.")
    ] = "",
    offline: Offline = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Write report.html, one page of a run or a comparison. If the data were moved, set --data or --data-root."""
    from ..report.write import write_report

    pictures = write_report(folder, given, not quiet, features, rhat, trust_code, study, by_row=rows)
    if not quiet:
        for path in pictures:
            typer.echo(path)


def collect(
    runs: Annotated[list[Path], path_argument("RUN...", "Finished runs: several seeds of one setting of each method.")],
    out: Annotated[Path, path_option("FILE", "A json file to write the table to.")],
    as_json: AsJson = False,
) -> None:
    """Gather runs into a table: a row for each method and prior, mean and standard error over seeds."""
    from ..compare.over_seeds import markdown, summarise_over_seeds
    from ..run_folder.files import write_text

    records = summarise_over_seeds(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, json.dumps(records, indent=1) + "\n")
    if as_json:
        print_json(records)
        return
    typer.echo(shown_lines(markdown(records)))


def cost(
    runs: Annotated[list[Path], path_argument("RUN...", "Finished runs.")],
    out: Annotated[Path, path_option("DIR", "Folder to write cost.csv, cost.png and the configurations to.")],
    as_json: AsJson = False,
) -> None:
    """Test accuracy against seconds and bytes, for several runs."""
    from ..papers.cost import rows, write_cost

    written = write_cost(runs, out)
    if as_json:
        print_json({"folder": out, "evaluations": [row for folder in runs for row in rows(folder)]})
    else:
        typer.echo(written)
