"""`hierfl report`: one page of a finished run or a comparison."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.run.progress import working
from hierfl.schema import read_json

from ..columns import NETWORK
from ..compare.comparison import compare_runs
from ..declared import PYTHON
from ..federate.guard.home import Home
from ..federate.site_results import site_run, write_site_results
from ..federate.study_site import Membership
from ..run_folder.config_file import read_config
from ..run_folder.summary import read_summary
from .comparison import write_comparison
from .draw import draw_features, draw_posterior
from .run_page import write_run_page


def write_report(
    folder: Path, location: Mapping[str, Any], progress: bool, features: bool = True, rhat: bool = False,
    trust_code: bool = False, study: str = "", *, by_row: bool = True,
) -> list[Path]:  # fmt: skip
    """One page of a finished run, a comparison or a site's part of a study, ``report.html``.

    Of a run with a network its features are drawn, too.

    Args:
        folder: the run's, comparison's or site's.
        location: where the data are, if elsewhere: data, data_root.
        progress: whether to show what takes its time.
        features: whether to draw them, which needs the data.
        rhat: insists on several chains.
        trust_code: whether to run a method's file that this user has neither named nor run before.
        study: which one of a site's, by name; empty for the only one.
        by_row: whether it has, and of a site its results have, anything with an entry for each row. A run of
            ``--no-rows`` has none either way.

    Returns:
        The page, and what was drawn for it, in ``figures``.

    Raises:
        UserError: for a folder that is neither; where features are to be drawn, for a method's file that has changed,
            data that are not there, or too few of them; for one chain where R-hat was asked for.
    """

    if (folder / "comparison.json").is_file():
        if rhat:
            raise UserError(f"{folder} is a comparison: R-hat is a run's")
        if location or trust_code:
            raise UserError(f"{folder} is a comparison: where data are, and whom to trust, are a run's")
        record = read_json(folder / "comparison.json", {"runs": {"*": {"*": str}}})
        runs = [folder / run for runs in record["runs"].values() for run in runs.values()]
        compared = compare_runs([Path(os.path.normpath(run)) for run in runs])
        return [folder / "report.html", *write_comparison(compared, folder)]
    home = Home(folder)
    if home.is_site_home:
        member = Membership.read(home.study_folder(study), trust_code=trust_code)
        if location:
            raise UserError(f"{folder} is a site's: where its data are is said to hierfl federate approve")
        with working("drawing from the posterior, writing results", progress):
            results = write_site_results(member, site_run(member), by_row=by_row)
        drawn = draw_posterior(results, progress, rhat, f"{member.client} of {member.study.name}")
        return [write_run_page(results, by_row=by_row), *drawn]
    if study:
        raise UserError(f"{folder} is no site's folder: --study is for a site of several studies")
    config = read_config(folder)
    read_summary(folder)  # not finished? say so first
    by_row &= config.run.rows
    wanted = features and by_row and config.run.network not in ("design", NETWORK)
    wanted &= not config.run.data.startswith(PYTHON)  # whose data were the program's
    if (location or trust_code) and not wanted:
        raise UserError("data and method are needed for features, which are not drawn here")
    drawn = draw_posterior(folder, progress, rhat, by_row=by_row)
    drawn += draw_features(folder, config, location, progress, trust_code) if wanted else []
    return [write_run_page(folder, by_row=by_row), *drawn]
