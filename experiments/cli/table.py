"""`hierfl table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.errors import UserError

from .as_json import AsJson, print_json
from .options import Offline, Quiet, Settings, path_option, whole_numbers, with_run_options


@with_run_options("data_root", "device", "rounds", "network", "split", "draws")
def table(
    name: Annotated[str, typer.Argument(help="A paper's table or figure (--list names them), or FILE.toml.")] = "",
    data: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these data sets.")] = None,
    clients: Annotated[
        str | None, typer.Option("--clients", "-J", metavar="J,...", help="Only these numbers of clients.")
    ] = None,
    methods: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these methods.")] = None,
    conditions: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these conditions, such as dirichlet:0.3.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of runs of each cell, with seeds 0, 1, ... [default: the table's]")
    ] = None,
    setting: Settings = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="HOURS", help="Begin no cell after so many hours; the most informative cells come first."),
    ] = None,
    collect: Annotated[bool, typer.Option("--collect", help="Run nothing, collect what has finished.")] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Count the published numbers that have been run, and how close ours are.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="Name the tables and figures.")] = False,
    out: Annotated[
        Path | None,
        path_option("DIR", "Folder of its runs; with --summary a folder of tables. [default: ./runs/table-NAME]"),
    ] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Run or collect a table: a paper's, ours beside published, or your own. Stopped, it goes on where it was.

    FILE.toml says data, methods, clients and seeds of a table of your own. table.md, .csv, .tex and .json lie in its
    folder then.
    """
    from ..papers.read_definition import names, shipped

    if listed:
        titles = {table_name: shipped(table_name).title for table_name in names()}
        if as_json:
            print_json(titles)
        for table_name, title in () if as_json else titles.items():
            typer.echo(f"{table_name}: {title}")
        return
    if summary:
        from ..papers.summary import markdown, plain
        from ..papers.summary import summary as counted

        counts = counted(out or Path("runs"), given.get("data_root", Path("data")), name)
        if as_json:
            print_json(plain(counts))
        else:
            typer.echo(markdown(counts))
        return
    if not name:
        raise UserError(f"which table? known: {', '.join(names())}; or your own, FILE.toml")
    from ..configure import parse_settings
    from ..papers.make_table import make_table

    rows = make_table(
        name,
        out,
        data=data.split(",") if data else None,
        clients=whole_numbers("--clients", clients) if clients else None,
        methods=methods.split(",") if methods else None,
        conditions=conditions.split(",") if conditions else None,
        seeds=seeds,
        budget=budget,
        settings=parse_settings(setting or []),
        extra=given,
        collect=collect,
        progress=not (quiet or as_json),
    )
    if as_json:
        print_json(rows)


def papers(
    words: Annotated[list[str] | None, typer.Argument(help="An experiment of the papers, as it was called.")] = None,
) -> None:
    """What it did is done by hierfl table."""
    name = next(iter(words or ()), "")
    new = {"skew": "pfedv-2", "unseen": "pfedv-new-client", "synthetic": "fedpop-figure-2", "centroids": "pfedvmp-2"}
    if name in new:
        more = " (with --cost: hierfl table pfedvmp-cost)" if name == "centroids" else ""
        raise UserError(f"hierfl papers {name} is now hierfl table {new[name]}{more}")
    raise UserError("hierfl papers is now hierfl table: hierfl table --list names the tables and figures")
