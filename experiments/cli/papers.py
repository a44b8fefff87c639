"""`hierfl papers`: experiments of the papers, each a grid of runs with its own table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Offline, Settings, chosen, path_option, whole_numbers, with_run_options

papers = typer.Typer(help="Experiments of the papers. Stopped, each goes on where it was.", no_args_is_help=True)

Out = Annotated[Path, path_option("DIR", "Folder of its runs and tables.")]
Rows = Annotated[list[str] | None, typer.Option("--row", metavar="NAME", help="A row of the table; repeatable.")]
Seeds = Annotated[int, typer.Option(help="Number of runs of each row, with seeds 0, 1, ...")]
Collect = Annotated[bool, typer.Option("--collect", help="Run nothing, collect what has finished.")]


@papers.command("skew")
@with_run_options("data", "data_root", "clients", "split", "network", "rounds", "draws", "device", data="digit-three")
def skew(
    out: Out, row: Rows = None, setting: Settings = None, seeds: Seeds = 3, collect: Collect = False,
    offline: Offline = False, **given: Any,
) -> None:  # fmt: skip
    """pFedV's Table 2: accuracy on digits of several domains, one domain a client.

    --set gives steps of all methods, and other settings of fedv and pfedv.
    """
    from ..configure import parse_settings
    from ..papers.skew.experiment import run_table

    data = given.pop("data", "digit-three")
    typer.echo(run_table(data, given, parse_settings(setting or []), out, row, seeds, collect))


@papers.command("unseen")
@with_run_options("data", "data_root", "split", "network", "rounds", "device", data="digit-three")
def unseen(
    out: Out,
    leave: Annotated[str, typer.Option(metavar="DOMAIN", help="The domain that no client of the federation has.")],
    row: Rows = None, setting: Settings = None, seeds: Seeds = 3,
    examples: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of examples that the new client trains on.")
    ] = "20,100,500",
    steps: Annotated[int, typer.Option(help="Steps of the new client.")] = 300,
    offline: Offline = False, **given: Any,
) -> None:  # fmt: skip
    """pFedV's new clients: accuracy for a client of a domain that no other has."""
    from ..configure import parse_settings
    from ..papers.unseen import run_table

    data, root = given.pop("data", "digit-three"), given.pop("data_root", Path("data"))
    numbers = whole_numbers("--examples", examples)
    typer.echo(run_table(data, root, leave, given, parse_settings(setting or []), out, row, seeds, numbers, steps))


@papers.command("centroids")
@with_run_options("data", "data_root", "clients", "network", "rounds", "device", data="fashion-mnist")
def centroids(
    out: Out, row: Rows = None, setting: Settings = None, seeds: Seeds = 3, collect: Collect = False,
    beta: Annotated[float, typer.Option(help="Concentration of the Dirichlet split.")] = 0.3,
    keep: Annotated[float | None, typer.Option(help="Share of the data that is used. [default: the paper's]")] = None,
    cost: Annotated[
        str | None, typer.Option(metavar="W,W,...", help="Time rounds with this many features instead.")
    ] = None,
    turns: Annotated[int, typer.Option(help="With --cost: number of rounds that are timed.")] = 3,
    offline: Offline = False, **given: Any,
) -> None:  # fmt: skip
    """pFedVMP's Tables 1 and 2: accuracy where labels differ between clients."""
    from ..configure import parse_settings
    from ..papers.centroids.experiment import Wanted, run_table, write_costs

    extra, data = chosen(given, "data_root", "device"), given.pop("data", "fashion-mnist")
    options = {name: value for name, value in given.items() if name not in extra}
    wanted = Wanted.of(data, beta, keep, options, row, parse_settings(setting or []))
    if cost:
        typer.echo(write_costs(wanted, whole_numbers("--cost", cost), turns, extra, out))
    else:
        typer.echo(run_table(wanted, seeds, extra, out, collect))


@papers.command("synthetic")
def synthetic(
    out: Out,
    seeds: Annotated[int, typer.Option(help="Number of data sets, with seeds 0, 1, ...")] = 10,
    exact: Annotated[int, typer.Option(help="Number of data sets compared with the exact maximum.")] = 3,
    reading: Annotated[str, typer.Option(help="How the paper's noise is read: paper or code.")] = "paper",
) -> None:
    """FedPop's Figure 2: many small clients, a shared matrix and an effect of each."""
    from ..papers.synthetic import run_experiment

    typer.echo(run_experiment(seeds, exact, reading, out))
