"""`hierfl predict`: what a finished run, or a site's own model, says of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.plurals import counted

from .as_json import AsJson, print_json
from .federate.options import StudyName
from .options import TrustCode, path_argument, path_option
from .reading import with_reading

if TYPE_CHECKING:
    import pandas as pd


@with_reading(columns=("type",), drop=False)
def predict(
    folder: Annotated[Path, path_argument("RUN|DIR", "A finished run, or a site's own folder.")],
    data: Annotated[
        Path, path_option("FILE", "New rows: FILE.csv, FILE.npz with x (and client), a picture or a folder of them.")
    ],
    client: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Client whose model predicts. [default: by the column of clients, or "
                     "client of an .npz]"),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="The rows are of clients that were never seen.")] = False,
    given: Annotated[
        Path | None,
        path_option("FILE", "The new clients' rows with responses, or pictures in CLIENT/LABEL/, to learn from first."),
    ] = None,
    interval: Annotated[
        float | None, typer.Option(help="Probability of the intervals of numbers.", show_default="0.9")
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(min=0, help="Average over this many posterior draws; 0: predict at the posterior mean.",
                     show_default="0; for a response of numbers the run's number"),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the table that names the clients.",
                                 show_default="the run's")
    ] = None,
    shares: Annotated[
        str,
        typer.Option(metavar="NAME", help="Label shares that a method with such shares assumes: own, test (estimated "
                     "from these rows), uniform or pooled.", show_default="own"),
    ] = "",
    out: Annotated[Path | None, path_option("FILE", "A csv file to write to. [default: the screen]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    as_json: AsJson = False,
    study: StudyName = "",
    trust_code: TrustCode = False,
    reading: Any = None,
) -> None:  # fmt: skip
    """Predict new rows with a finished run, or at a site with its own model. The training data are not needed."""
    from ..run_folder.csv_files import write_frame
    from ..run_folder.kept_model import MODEL

    if out is not None and out.suffix.lower() in (".npz", ".parquet", ".xlsx", ".json"):
        raise UserError(f"--out writes csv, and {out.name} is called {out.suffix}: say FILE.csv (or --json for json)")
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    if folder.is_file():
        raise UserError(f"{folder} is a file: hierfl predict takes the folder of a finished run, or a site's own")
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: hierfl predict takes a finished run's, or a site's own")
    how = Reading.from_table(reading) if reading else None
    if (folder / "config.toml").is_file():
        if study:
            raise UserError("--study is of a site's own folder, and this is a run's")
        from ..predict.answers import Question

        asked = Question(data, client, new, given, interval, draws, group, how, shares)
        answers, response = _of_run(folder, asked, trust_code=trust_code)
        if response:
            typer.echo(f"the formula's response is {response}: all numbers are in its units", err=True)
    else:
        given_options = {"--client": client, "--new": new, "--given": given, "--interval": interval, "--group": group}
        from hierfl.inference.engines.remote.keys import KEY_FILE

        from ..federate.guard.home import SITE, STUDIES
        from ..run_folder.other_folders import what_it_is
        from .federate.site import predict_at_site

        if (folder / MODEL).is_dir():
            raise UserError(
                f"{folder} has {MODEL}/, as a run has, and no config.toml: copy the whole folder of the run"
            )
        if not any((folder / name).exists() for name in (KEY_FILE, SITE, STUDIES)):
            other = what_it_is(folder)
            other = f": it {other}" if other else ", which has config.toml, and none of a site"
            raise UserError(f"{folder} is no folder of a finished run{other}")
        if of_runs := [name for name, value in given_options.items() if value]:
            raise UserError(f"{of_runs[0]} is for the folder of a run, and {folder} is a site's own")
        if how is not None and how.types:
            raise UserError(f"--type is for the folder of a run, and {folder} is a site's own: types are in study.toml")
        answers = predict_at_site(folder, data, study, draws or 0, how, shares, trust_code=trust_code)
    if as_json:
        print_json(answers)
    elif out is None:
        typer.echo(answers.to_csv(index=False, lineterminator="\n"), nl=False)
    if out is not None:
        write_frame(out, answers)
        typer.echo(f"{counted(len(answers), 'row')} in {out}", err=True)


def _of_run(folder: Path, asked: Any, *, trust_code: bool) -> tuple[pd.DataFrame, str]:
    """The answers, and a response that a formula transforms; empty for another."""
    from hierfl.data.formula.transformed import transformed_response

    from ..predict.answers import answered
    from ..predict.ready import ready

    loaded, run = ready(folder, trust_code=trust_code)
    return answered(loaded, run, asked), transformed_response(run.formula or "", run.family or "gaussian")
