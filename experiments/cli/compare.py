"""`hierfl compare`, `hierfl ablate`, `hierfl ablation-table`: models fitted in one way against others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.errors import UserError

from .as_json import AsJson, comparison, print_json
from .options import Offline, Quiet, Settings, decimals, path_argument, path_option, with_run_options
from .reading import with_reading


def compare(
    runs: Annotated[list[Path], path_argument("RUN RUN...", "Finished runs; the first is compared with the others.")],
    loo: Annotated[
        bool | None,
        typer.Option(help="Leave-one-out log predictive densities (PSIS). [default: where all runs have draws]"),
    ] = None,
    out: Annotated[
        Path | None, path_option("DIR", "Folder that the comparison is written to. [default: a new one in ./runs]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the comparison that is in --out.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs of the same data client by client: gains with intervals, who gains, leave-one-out."""
    from ..compare.comparison import compare_runs
    from ..report.comparison import comparison_folder, write_comparison
    from ..run_folder.layout import check_out

    check_out(out, overwrite, "comparison.json", "comparison")
    compared = compare_runs(runs, loo)
    folder = comparison_folder(out)
    write_comparison(compared, folder)
    if as_json:
        print_json(comparison(compared, folder))
    elif not quiet:
        from .screen import print_comparison

        print_comparison(compared, folder)


@with_reading()
@with_run_options("ablate")
def ablate(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD | A.py B.py...",
            help="A method with priors (see hierfl methods NAME), or FILE.py; or alternatives of one model.",
        ),
    ],
    setting: Settings = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of runs of each prior, with seeds 0, 1, ...", show_default="5")
    ] = None,
    choose_seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds over which a prior's scale is chosen on validation data; 0 keeps the "
                     "method's.", show_default="3, or --seeds where these are fewer"),
    ] = None,
    scales: Annotated[
        str | None,
        typer.Option(metavar="V,V,...", help="Scales that are tried. [default: 0.1 to 10 times the method's]"),
    ] = None,
    out: Annotated[
        Path | None, path_option("DIR", "Folder of all its runs. [default: ./runs/ablate-METHOD-DATA, or -A-B-DATA]")
    ] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:  # fmt: skip
    """Does the hierarchical prior earn its keep? Runs every prior, each with its own scale, and compares.

    Of a method with parts (pfedhb) it runs the whole, and each part taken out or added.
    Of several model files each is fitted to the same table, and compared by leave-one-out, or on --test-fraction.
    """
    if len(methods) > 1:
        _ablate_files(methods, setting, {"seeds": seeds, "choose_seeds": choose_seeds, "scales": scales}, out, given,
                      quiet=quiet, as_json=as_json)  # fmt: skip
        return
    from ..configure import parse_settings, usual_data
    from ..methods import load
    from ..search.ablate import ablate as run_priors
    from ..search.ablate_parts import ablate_parts, has_parts

    (method,) = methods
    loaded = load(method)
    data = given.pop("data", None) or usual_data(loaded.cls)
    folder = out or Path("runs") / f"ablate-{loaded.name}-{Path(data).stem}"
    if has_parts(method):
        if choose_seeds is not None or scales:
            raise UserError(f"--choose-seeds and --scales are for priors: of {loaded.name} parts are taken out")
        compared = ablate_parts(
            method, data, given, parse_settings(setting or []), 5 if seeds is None else seeds, folder,
            not (quiet or as_json),
        )  # fmt: skip
    else:
        compared = run_priors(
            method, data, given, parse_settings(setting or []), 5 if seeds is None else seeds, folder,
            choose_seeds=choose_seeds,
            scales=decimals("--scales", scales) if scales else (), progress=not (quiet or as_json),
        )  # fmt: skip
    if as_json:
        print_json(comparison(compared, folder))
    elif not quiet:
        from .screen import print_comparison

        print_comparison(compared, folder)


def _ablate_files(
    files: list[str], setting: list[str] | None, of_priors: dict[str, Any], out: Path | None, given: dict[str, Any],
    *, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Alternatives of a model, by their files."""
    from ..config import flag
    from ..configure import parse_settings
    from ..search.ablate_files import ablate_files

    if given_for_priors := [name for name, value in of_priors.items() if value is not None]:
        raise UserError(f"{flag(given_for_priors[0])} is for a method's priors: model files are fitted once each")
    data = given.pop("data", None)
    folder = out or Path("runs") / "-".join(["ablate", *(Path(file).stem for file in files), Path(data or "").stem])
    differences, scored = ablate_files(
        files, data, given, parse_settings(setting or []), folder, not (quiet or as_json)
    )
    if as_json:
        print_json(comparison(differences, folder))
    elif not quiet:
        from .screen_models import print_alternatives

        print_alternatives(differences, scored, folder, held_out=bool(given.get("test_fraction")))


def ablation_table(
    folders: Annotated[list[Path], path_argument("FOLDER...", "Folders of hierfl ablate.")],
    out: Annotated[Path | None, path_option("FILE", "A markdown file to write the tables to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Several ablations in one table: where the hierarchical prior helps, and for which clients."""
    from ..run_folder.files import write_text
    from ..search.ablation_table import markdown, read

    ablations = [read(folder) for folder in folders]
    text = markdown(ablations)
    if out is not None:
        write_text(out, text)
    if as_json:
        print_json(ablations)
        return
    typer.echo(text)
