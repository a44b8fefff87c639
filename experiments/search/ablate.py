"""`hierfl ablate`: does a method's hierarchical prior earn its keep?

Runs of a method with each of its priors, everything else equal, over seeds; each prior with a scale of its own, chosen
on validation data; then :mod:`hierfl.experiments.compare.comparison`. Everything is in one folder, and what is
there is not run again:

    choose-PRIOR.json     the search for the prior's scale
    PRIOR-SEED/           runs, on all training data
    comparison/           hierarchical against the others
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hierfl.data.tables import is_table
from hierfl.errors import UserError
from hierfl.files import check_writable
from hierfl.inference.method.settings import applicable, scale_setting

from ..compare.comparison import Comparison, compare_runs
from ..configure import configure
from ..grid import Cell, check_cell, run_cells
from ..messages import to_stderr
from ..methods import load
from ..report.comparison import comparison_folder, write_comparison
from ..run_folder.config_file import read_config
from .scales import TEST_FRACTION, chosen_scale, priors_of

#: with one seed a few validation rows have chosen scales that are worse on test data than the method's own
CHOOSE_SEEDS = 3


def _cell(method: str, data: str, given: Mapping[str, Any], settings: Mapping[str, Any], seed: int) -> Cell:
    """A prior's run with a seed: all training data."""
    prior = str(settings["prior"])
    given = {"validation_fraction": 0.0, **given}
    return Cell(f"{prior}-{seed}", f"{prior} prior, seed {seed}", prior, method, data, given, settings, seed)


def ablate(
    method: str, data: str, given: Mapping[str, Any], settings: Mapping[str, Any], seeds: int, out: Path, *,
    choose_seeds: int | None = None, scales: Sequence[float] = (), progress: bool = True,
) -> Comparison:  # fmt: skip
    """Chooses, runs and compares; see the module.

    Args:
        method, data: what is fitted to what.
        given: run options.
        settings: of the method, the same for every prior.
        seeds: runs of each prior.
        out: the folder of all of it.
        choose_seeds: seeds over which a scale is chosen; 0 takes the scale that the method has for these data, None is
            for :data:`CHOOSE_SEEDS`, or ``seeds`` where these are fewer.
        scales: what is tried.
        progress: whether to show the runs.

    Raises:
        UserError: for a method without priors, or ``prior`` among the settings.
    """
    if "prior" in settings:
        raise UserError("the prior is what ablate varies")
    choose_seeds = min(CHOOSE_SEEDS, seeds) if choose_seeds is None else choose_seeds
    if seeds < 1 or choose_seeds < 0:
        raise UserError("ablate needs at least one seed, and no less than 0 to choose by")
    if scales and not choose_seeds:
        raise UserError("--scales are to be chosen among, and --choose-seeds 0 chooses none")
    priors, settings_of = priors_of(method), dict[str, dict[str, Any]]()
    if is_table(data):
        given = {"test_fraction": TEST_FRACTION, **given}
        if not given["test_fraction"]:
            raise UserError("priors are compared on test data: --test-fraction above 0")
    names = {name for prior in priors if (name := scale_setting(load(method).cls, prior))}
    if scales and (fixed := sorted(names & settings.keys())):
        raise UserError(f"{fixed[0]} is given by --set, so that --scales changes nothing")
    for prior in priors:
        settings_of[prior] = {**applicable(load(method).cls, settings, {"prior": prior}), "prior": prior}
        configure(method, data, given, settings_of[prior])  # cannot be? say so before anything is run
    whole = {k: v for k, v in given.items() if k not in ("seed", "validation_fraction")}
    location = {k: given[k] for k in ("data_root", "device") if k in given}
    check_writable(out / "ablation")
    for prior in priors:  # a folder of another ablation? say so before anything is run
        name = scale_setting(load(method).cls, prior)
        for seed in range(seeds):
            cell = _cell(method, data, whole, settings_of[prior], seed)
            if (out / cell.name / "config.toml").is_file():
                settings_kept = read_config(out / cell.name).settings
                scale_kept = {} if name is None or not choose_seeds else {name: settings_kept.get(name)}
                check_cell(replace(cell, settings={**scale_kept, **settings_of[prior]}), out / cell.name, location)
    for prior in priors if choose_seeds else ():
        own = {k: v for k, v in settings_of[prior].items() if k != "prior"}
        settings_of[prior] |= chosen_scale(method, data, prior, given, own, out, choose_seeds, scales, progress)
    cells = [_cell(method, data, whole, settings_of[prior], seed) for seed in range(seeds) for prior in priors]
    run_cells(cells, out, location, say=to_stderr(progress), progress=progress)
    order = [out / cell.name for cell in sorted(cells, key=lambda cell: priors.index(cell.row))]
    result = compare_runs(order)
    write_comparison(result, comparison_folder(out / "comparison"))
    return result
