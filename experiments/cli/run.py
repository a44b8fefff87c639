"""`hierfl run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierfl.data.reading.remedies import option_flags
from hierfl.errors import UserError

from ..config import flag, options
from .as_json import AsJson, print_json
from .options import Offline, Quiet, Settings, TrustCode, path_option, with_run_options
from .reading import with_reading

if TYPE_CHECKING:
    from hierfl.inference.run.fit import EngineMaker


@with_reading()
@with_run_options("run")
def run(
    method: Annotated[
        str, typer.Argument(help="A method (see hierfl methods), or FILE.py that defines one of your own.")
    ] = "",
    prior: Annotated[
        str | None,
        typer.Option(
            help="Prior of the clients' models: hierarchical (learned from all clients), fixed (never moved) or flat "
            "(none). [default: the method's]"
        ),
    ] = None,
    setting: Settings = None,
    out: Annotated[
        Path | None, path_option("DIR", "Folder that the run is written to. [default: a new one in ./runs]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in --out.")] = False,
    resume: Annotated[
        Path | None,
        path_option("DIR", "Continue the run in DIR from its last checkpoint; the numbers are those of a run that was "
                    "never stopped."),
    ] = None,
    config: Annotated[
        Path | None, path_option("FILE", "Repeat the run of this config.toml in a new folder, to the bit.")
    ] = None,
    offline: Offline = False,
    trust_code: TrustCode = False,
    engine: Annotated[
        str,
        typer.Option(
            help="Where the clients are: plate (all in this process) or distributed (shared by --ranks processes, one "
            "for each device; under torchrun by its own). Numbers differ by rounding alone.",
            show_default="plate",
        ),
    ] = "",
    ranks: Annotated[
        int,
        typer.Option(
            metavar="N", help="Processes of --engine distributed.", show_default="one for each GPU, or two"
        ),
    ] = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:  # fmt: skip
    """Fit a method to a federation, and keep everything in a run folder."""
    from hierfl.inference.engines.ranks import follows

    from ..launch import engine_of, launch, launches

    if launches(engine, ranks):
        raise typer.Exit(launch(ranks, sys.argv[1:]))
    where, quiet = engine_of(engine), quiet or as_json or follows()
    if resume is not None:
        more = {"out": out, "overwrite": overwrite or None, "prior": prior, "set": setting or None, "config": config}
        more = {**given, **{k: v for k, v in more.items() if v is not None}}
        folder, summary = resume, _continue(resume, more, method, trust_code, not quiet, where)
    elif config is not None:
        more = {"method": method or None, "prior": prior, "set": setting or None}
        more = {**given, **{k: v for k, v in more.items() if v is not None}}
        folder, summary = _repeat(config, more, out, overwrite, trust_code, not quiet, where) or (Path(), None)
    else:
        if not method:
            from hierfl.models import METHODS

            raise UserError(f"which method? known: {', '.join(METHODS)}; or FILE.py")
        if overwrite and out is None:
            raise UserError("--overwrite replaces the run in --out; say which")
        if trust_code:
            raise UserError("--trust-code is for --resume and --config: a method that is named here is run")
        from ..configure import configure, parse_settings
        from ..run_folder.start import start

        configuration = configure(method, given.pop("data", None), given, parse_settings(setting or [], prior))
        folder, summary = start(configuration, out, overwrite, not quiet, where) or (Path(), None)
    if as_json and summary is not None:
        print_json({"folder": folder, **summary})
    if not quiet and summary is not None:
        from .screen import print_summary

        print_summary(summary, folder)


def _repeat(
    path: Path, given: dict[str, Any], out: Path | None, overwrite: bool, trust_code: bool, progress: bool,
    engine: EngineMaker,
) -> tuple[Path, dict[str, Any]] | None:  # fmt: skip
    """Repeats a run; its folder and summary, where this process leads."""
    from ..run_folder.resume import repeat

    if more := _contradicting(given):
        raise UserError(
            f"--config repeats what the file says, without {more}; a run whose data were moved takes --data and "
            "--data-root, another machine --device"
        )
    return repeat(path, given, out, overwrite, progress, trust_code=trust_code, engine=engine)


def _contradicting(given: dict[str, Any]) -> str:
    """An option that says something else than a run that is there; empty for none."""
    if more := [name for name in given if name not in options() or not options()[name].moves]:
        return option_flags(given["reading"])[0] if more[0] == "reading" else flag(more[0])
    return ""


def _continue(
    folder: Path, given: dict[str, Any], method: str, trust_code: bool, progress: bool, engine: EngineMaker
) -> dict[str, Any] | None:
    """Continues a run; its summary, where this process leads."""
    from ..run_folder.resume import resume

    if more := _contradicting(given):
        raise UserError(
            f"--resume goes on with what the run's folder says, without {more}; a run that was moved takes "
            "--data, --data-root, --network-weights and FILE.py, another machine --device"
        )
    return resume(folder, progress, given, method=method, trust_code=trust_code, engine=engine)
