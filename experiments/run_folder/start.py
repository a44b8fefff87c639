"""A configuration becomes a finished run folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl import tables
from hierfl.errors import UserError
from hierfl.inference.progress import working
from hierfl.inference.run import Fit

from .. import methods
from ..build import build, ood_inputs
from .files import write_metrics
from .layout import check_out, create_run_folder
from .results import write_results


def start(config: dict[str, Any], out: Path | None, overwrite: bool, progress: bool) -> tuple[Path, dict[str, Any]]:
    """Runs a configuration into a fresh folder; returns the folder and its summary."""
    check_out(out, overwrite)
    with working("loading data", progress):
        ready, name = build(config)
    about = ready.federation.about
    config["run"] |= {"redraws": int(about["redraws"]), "federation": ready.federation.digest()}
    if about.get("origin"):
        config["run"]["data_origin"] = about["origin"]
    with create_run_folder(out, overwrite, f"{name}-{about['data']}", config) as folder:
        return folder, fit_and_write(ready, folder, name, progress, config["run"], resume=False)


def fit_and_write(
    ready: Fit, folder: Path, name: str, progress: bool, config: Mapping[str, Any], *, resume: bool
) -> dict[str, Any]:
    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    if not resume:
        say(f"writing to {folder}")
        if "settings_chosen" not in config and not tables.is_table(config["data"]):
            say(f"no settings ship for {name} on {config['data']}: its defaults, where nothing was said")
    try:
        run = ready.run(
            folder / "checkpoint",
            resume=resume,
            progress=progress,
            observe=lambda rows: write_metrics(folder, rows),
        )
        with working("drawing from the posterior, writing results", progress):
            strange = ood_inputs(config, ready.federation)
            return write_results(folder, run, name, config["ood"], strange, config["observed_data"])
    except KeyboardInterrupt:
        say(f"stopped; go on with: hierfl run --resume {folder}")
        raise
    except Exception as error:
        if config["method"] in methods.METHODS or isinstance(error, UserError | OSError):
            raise
        source = Path(config["method"])
        what = f"{source} failed at round {ready.round} of {ready.options.rounds}: {methods.blame(source, error)}"
        raise UserError(what) from error
