"""`hierfl sbc`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .as_json import AsJson, print_json
from .options import Quiet, Settings, path_option
from .reading import with_reading


@with_reading(drop=False)
def sbc(
    model: Annotated[str, typer.Argument(metavar="FILE.py", help="A model file: a plain Pyro function of a batch.")],
    sites: Annotated[
        int | None, typer.Option(help="Clients of a replicate; with --data its first ones. [default: 20, or all]")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of a client; with --data its first ones. [default: 30, or all]")
    ] = None,
    replicates: Annotated[int, typer.Option(help="Data sets that are simulated and fitted.")] = 200,
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE.csv", help="Table of covariates; its responses are replaced by simulated ones."),
    ] = None,
    group: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of --data that names clients.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=V,V,...", help="Equally likely values of a simulated column; repeatable. "
            "[default: standard normal]",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--model", help="Name of the model, if the file has several.")] = None,
    setting: Settings = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    out: Annotated[
        Path | None,
        path_option("DIR", "Folder of its files. Replicates of the same calibration in it are kept, and the rest is "
                    "computed. [default: ./runs/sbc-MODEL]"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the calibration that is in --out.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    reading: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Simulation-based calibration: do intervals of a model cover what its own prior draws?"""
    from ..configure import parse_settings
    from ..search.sbc import sbc as run_sbc

    folder = out or Path("runs") / f"sbc-{Path(model).stem}{f'-{name}' if name else ''}"
    calibration = run_sbc(
        model, name, data=data, group=group, values=values or [], sites=sites, rows=rows, replicates=replicates,
        settings=parse_settings(setting or []), seed=seed, folder=folder, overwrite=overwrite,
        progress=not (quiet or as_json), reading=reading,
    )  # fmt: skip
    if as_json:
        print_json(
            {
                "folder": folder,
                "model": calibration.name,
                "quantities": calibration.rows(),
                "lines": calibration.lines(),
            }
        )
    elif not quiet:
        from .screen_models import print_calibration

        print_calibration(calibration, folder)
