"""Commands as functions of Python: ``hierfl.compare``, ``hierfl.report``, ``hierfl.ablate`` and ``hierfl.tune``.

Each has the name of its command, leaves the same files, and returns what the command prints. ``hierfl.table`` is in
:mod:`.papers.make_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.argument_types import typed_call
from hierfl.errors import UserError
from hierfl.files import user_path

from .compare.comparison import Comparison, compare_runs
from .configure import usual_data
from .methods import load


@typed_call
def compare(
    runs: Sequence[str | Path], *, loo: bool | None = None, out: str | Path | None = None, overwrite: bool = False
) -> Comparison:
    """Compares runs of the same data client by client, as ``hierfl compare`` does.

    Args:
        runs: folders of finished runs, those of the method in question first.
        loo: True insists on leave-one-out, False leaves it out, None has it where all runs have draws.
        out: the folder that tables, figures and the page are written to; None writes nothing.
        overwrite: whether a comparison in ``out`` is replaced.

    Returns:
        The comparison. Its frames are ``table`` (mean gains with intervals), ``gains`` (a row per client and seed),
        ``sizes`` and ``loo``.

    Raises:
        UserError: for runs that cannot be compared, or a folder that is not empty.
    """
    from .report.comparison import comparison_folder, write_comparison
    from .run_folder.layout import check_out

    folder = None if out is None else user_path(out)
    if folder is not None:
        check_out(folder, overwrite, "comparison.json", "comparison")
    compared = compare_runs([user_path(run) for run in runs], loo)
    if folder is not None:
        write_comparison(compared, comparison_folder(folder))
    return compared


@typed_call
def report(
    folder: str | Path, *, features: bool = True, rhat: bool = False, rows: bool = True, study: str = "",
    trust_code: bool = False, progress: bool = False, **location: Any,
) -> list[Path]:  # fmt: skip
    """Writes the page of a run, a comparison or a site's part of a study, as ``hierfl report`` does.

    Args:
        folder: of the run, the comparison or the site.
        features: whether a network's features of test data are drawn, which needs the data.
        rhat: insists on several chains and their R-hat.
        rows: whether single rows are shown.
        study: which one of a site's, by name; empty for the only one.
        trust_code: whether to run a method's file that this user has neither named nor run before.
        progress: whether to show what takes time.
        location: ``data`` and ``data_root``, for data that were moved.

    Returns:
        Paths of the page and of its figures.

    Raises:
        UserError: for a folder that has no page, or an unknown option.
    """
    from .report.write import write_report

    if strange := sorted(location.keys() - {"data", "data_root"}):
        raise UserError(f"report() takes no {strange[0]}; known: data, data_root")
    return write_report(user_path(folder), location, progress, features, rhat, trust_code, study, by_row=rows)


@typed_call
def ablate(
    method: str, data: str | Path | None = None, *, settings: Mapping[str, Any] | None = None, seeds: int = 5,
    choose_seeds: int | None = None, scales: Sequence[float] = (), out: str | Path | None = None,
    progress: bool = False, **run: Any,
) -> Comparison:  # fmt: skip
    """Runs every prior of a method, or every part taken out, and compares them, as ``hierfl ablate`` does.

    Args:
        method: a method's name, or the path of its file.
        data: a data set's name or a path; None for the method's usual data.
        settings: of the method, the same for all priors.
        seeds: number of runs of each prior, with seeds 0, 1, ...
        choose_seeds: number of seeds over which a scale is chosen; 0 takes the method's scale for these data, None is
            for three, or ``seeds`` where these are fewer.
        scales: candidates for the scale of a prior; empty for the method's own.
        out: the folder of all runs; None for ``runs/ablate-METHOD-DATA``.
        progress: whether to show the runs.
        run: run options (rounds, clients, network, data_root, group, y, ...).

    Returns:
        The comparison, as of :func:`compare`.

    Raises:
        UserError: for a method without priors or parts, and for options that do not belong to it.
    """
    from .search.ablate import ablate as run_priors
    from .search.ablate_parts import ablate_parts, has_parts

    source = str(usual_data(load(method).cls) if data is None else data)
    folder = user_path(out) if out is not None else Path("runs") / f"ablate-{load(method).name}-{Path(source).stem}"
    if has_parts(method):
        if choose_seeds is not None or scales:
            raise UserError(f"choose_seeds and scales are for priors: of {load(method).name} parts are taken out")
        return ablate_parts(method, source, run, dict(settings or {}), seeds, folder, progress)
    return run_priors(
        method,
        source,
        run,
        dict(settings or {}),
        seeds,
        folder,
        choose_seeds=choose_seeds,
        scales=scales,
        progress=progress,
    )


@typed_call
def tune(
    method: str, data: str | Path | None = None, *, grid: Mapping[str, Sequence[Any]] | None = None, budget: int = 6,
    seeds: int = 1, settle: int = 1, by: Sequence[str] = (), out: str | Path | None = None, progress: bool = False,
    **run: Any,
) -> dict[str, Any]:  # fmt: skip
    """Chooses a method's settings on validation data, as ``hierfl tune`` does. A stopped search goes on.

    Args:
        method: a method's name, or the path of its file.
        data: a data set's name or a path; None for the method's usual data.
        grid: candidates by setting, ``{"lr": [0.1, 0.01]}``; None for the published grid.
        budget: number of settings that are run.
        seeds: number of runs of each setting, with seeds 0, 1, ...
        settle: number of last evaluations over which metrics are averaged.
        by: metrics whose mean judges a setting; empty for the NLL of personal models on validation data.
        out: the json file of all settings that were run; None for ``runs/tune-METHOD-DATA.json``.
        progress: whether to say what is run.
        run: run options (rounds, clients, network, data_root, group, y, ...).

    Returns:
        The best cell, as ``hierfl tune --json`` prints it: ``settings`` are those of the grid, typed, ``all_settings``
        all of the method's, and beside them are the metrics.

    Raises:
        UserError: for a plain Pyro model, an empty budget, no grid, unknown metrics, or unknown options.
    """
    from .search.cells import parse_metrics
    from .search.tune import data_of
    from .search.tune import tune as climb

    source = data_of(method, None if data is None else str(data))
    values = {name: [str(value) for value in candidates] for name, candidates in (grid or {}).items()}
    where = None if out is None else user_path(out)
    metrics = parse_metrics(",".join(by))
    return climb(
        method, source, run, values, budget, where, seeds=seeds, settle=settle, by=metrics, progress=progress
    )  # fmt: skip
