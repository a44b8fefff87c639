"""A configuration becomes a finished run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hierfl.data import tables
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.run.fit import EngineMaker, Fit
from hierfl.inference.run.journal import Row
from hierfl.inference.run.progress import working
from hierfl.plurals import counted

from .. import methods
from ..build import build, ood_inputs
from ..config import Configuration, RunConfig
from ..own_table import described
from .files import write_metrics
from .kept_model import keep_weights
from .layout import check_out, create_run_folder
from .results import write_results
from .track import tracked_run


def start(
    config: Configuration, out: Path | None, overwrite: bool, progress: bool, engine: EngineMaker = PlateEngine,
    loaded: methods.Loaded | None = None,
) -> tuple[Path, dict[str, Any]] | None:  # fmt: skip
    """Runs a configuration into a fresh folder.

    Args:
        config: what is run; with a federation's fingerprint, on the same data and split alone.
        out: the folder; None for a new numbered one.
        overwrite: whether it may be replaced.
        progress: whether to show it.
        engine: where the clients are.
        loaded: the method, where it was not named in this command.

    Returns:
        The folder and its summary; None in a process that does not lead.
    """
    check_out(out, overwrite)
    with working("loading data", progress):
        ready, name = build(config, loaded, engine=engine)
    if config.run.federation not in (None, ready.engine.digest()):
        raise UserError(f"{config.run.data} holds other data than the run to repeat was on, or splits them otherwise")
    if not ready.engine.leads:
        ready.run()
        return None
    facts = ready.federation.about
    config = config.with_run(
        redraws=int(facts["redraws"]), federation=ready.engine.digest(), data_origin=facts.get("origin") or None
    )
    with create_run_folder(out, overwrite, f"{name}-{facts['data']}", config) as folder:
        keep_weights(folder, config)
        return folder, fit_and_write(ready, folder, name, progress, config.run, resume=False)


def few_validation_rows(federation: Federation, run: RunConfig) -> str:
    """A line where a split by classes leaves less than a third of the validation data that were asked for, else empty.

    Args:
        federation: of the run.
        run: its options.
    """
    if not (run.validation_fraction and run.validation_of == "classes" and federation.task == "classification"):
        return ""
    number, left = (sum(federation.sizes(split)) for split in ("validation", "train"))
    wanted = run.validation_fraction * (number + left)
    if 3 * number >= wanted or max(federation.sizes()) < 3:
        return ""
    return (
        f"validation data: {counted(number, 'row')} of {number + left:,}, since only clients with ten rows of a class "
        f"give some; --validation-of clients takes about {wanted:.0f}"
    )


def fit_and_write(
    ready: Fit, folder: Path, name: str, progress: bool, run: RunConfig, *, resume: bool
) -> dict[str, Any]:
    """Fits, from the last checkpoint on where the run is resumed, and writes everything into the run's folder."""

    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    if not resume:
        say(f"writing to {folder}")
        if run.y is not None:
            say(described(ready.federation))
        if run.settings_chosen is None and (run.y is not None or not tables.is_table(run.data)):
            say(f"settings: {name}'s defaults, where --set says nothing (hierfl tune {name} chooses others)")
        if line := few_validation_rows(ready.federation, run):
            say(line)
    try:
        with tracked_run(folder, run.track, resumed=resume) as tracking:

            def observe(rows: list[Row]) -> None:
                write_metrics(folder, rows)
                tracking.observe(rows)

            fitted = ready.run(folder / "checkpoint", resume=resume, progress=progress, observe=observe)
            with working("drawing from the posterior, writing results", progress):
                strange = ood_inputs(run, ready.federation)
                kept = {"observed": run.observed_data, "by_row": run.rows}
                summary = write_results(folder, fitted, name, run.ood, strange, **kept)
            tracking.finish(fitted.rounds, summary, sorted((folder / "figures").glob("*.png")))
        return summary
    except KeyboardInterrupt:
        say(f"stopped; go on with: hierfl run --resume {folder}")
        raise
    except Exception as error:
        if run.method in methods.METHODS or isinstance(error, UserError | OSError):
            raise
        source = Path(run.method)
        rounds = f"round {ready.journal.round} of {ready.options.rounds}"
        what = f"{source} failed at {rounds}: {methods.blame(source, error)}"
        raise UserError(what) from error
