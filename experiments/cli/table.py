"""`hierfl table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.errors import UserError

from .options import Offline, Quiet, path_option, whole_numbers, with_run_options


@with_run_options("data_root", "device")
def table(
    name: Annotated[str, typer.Argument(help="Which table: pfedvem-1, pfedvmp-1.")] = "",
    data: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these data sets.")] = None,
    clients: Annotated[
        str | None, typer.Option("--clients", "-J", metavar="J,...", help="Only these numbers of clients.")
    ] = None,
    methods: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these methods.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of runs of each cell, with seeds 0, 1, ... [default: the paper's]")
    ] = None,
    collect: Annotated[bool, typer.Option("--collect", help="Run nothing, collect what has finished.")] = False,
    out: Annotated[Path | None, path_option("DIR", "Folder of its runs. [default: ./runs/table-NAME]")] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Run or collect a paper's table, ours beside published. Stopped, it goes on where it was."""
    from ..papers.table import make_table
    from ..papers.table_definitions import TABLES

    if not name:
        raise UserError(f"which table? known: {', '.join(TABLES)}")
    make_table(
        name,
        out,
        data=data.split(",") if data else None,
        clients=whole_numbers("--clients", clients) if clients else None,
        methods=methods.split(",") if methods else None,
        seeds=seeds,
        extra=given,
        collect=collect,
        progress=not quiet,
    )
