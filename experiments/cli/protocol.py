"""`hierfl protocol`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .as_json import AsJson, print_json
from .options import Offline, Quiet, TrustCode, path_argument, path_option, with_run_options


@with_run_options("data", "data_root", data="the run's", data_root="the run's")
def protocol(
    runs: Annotated[list[Path], path_argument("RUN...", "Finished runs of classifications.")],
    protocols: Annotated[
        str,
        typer.Option(
            "--protocol", metavar="NAME,...",
            help="Test labels: own (the clients'), balanced (as many of each class), shifted (another client's).",
        ),
    ] = "own,balanced,shifted",
    offset: Annotated[
        bool,
        typer.Option("--offset", help="Also evaluate the global model with the offset by label shares."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the test rows and of the shifted shares.")] = 0,
    out: Annotated[Path | None, path_option("FILE", "A further csv file with the rows of all runs.")] = None,
    offline: Offline = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:  # fmt: skip
    """Evaluate finished runs with the clients' own test labels, balanced ones, and those of another client.

    Each run's table is protocols.csv in its folder. Rows whose shares are estimated from the test inputs stand apart.
    """
    from ..report.protocol import run_under_protocols, write_protocols

    names = protocols.split(",")
    rows = []
    for folder in runs:
        rows_of_run = run_under_protocols(
            folder, names, given, not (quiet or as_json), seed=seed, offset=offset, trust_code=trust_code
        )  # fmt: skip
        rows += rows_of_run
        if not (quiet or as_json):
            from .screen_protocols import print_protocols

            print_protocols(rows_of_run, folder)
    if out is not None:
        write_protocols(out, rows)
    if as_json:
        print_json(rows)
