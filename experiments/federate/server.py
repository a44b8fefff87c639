"""A study's server: asks the sites, adds up, and keeps what is everybody's."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch

from hierfl.arviz_io import NO_ROWS
from hierfl.errors import UserError
from hierfl.file_lock import locked
from hierfl.files import make_folder, write_whole
from hierfl.inference.engines.remote.engine import RemoteEngine
from hierfl.inference.engines.remote.files import FileCourier
from hierfl.inference.engines.remote.preparation import endings, numbered, prepare
from hierfl.inference.engines.remote.questions import Ask, Questions
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.result import Run
from hierfl.inference.state import StateForm
from hierfl.schema import read_toml

from ..run_folder.config_file import write_config
from ..run_folder.csv_files import write_frame
from ..run_folder.diagnostics import NO_CHAINS
from ..run_folder.files import write_metrics, write_text
from ..run_folder.summary import make_summary
from .contributions import Recorded
from .roster import change_roster
from .study import STUDY, Study
from .study_site import STUDY_COPY, as_numbers

#: what is said of a study that has come to its end
DONE = "all rounds are done"
#: makes what carries requests, given what is to be told who has yet to answer
AskMaker = Callable[[Recorded], Ask]


def serve(study: Study, folder: Path, ask: AskMaker, *, resume: bool = False, progress: bool = True) -> dict[str, Any]:
    """Fits a study, from its last checkpoint on where it is resumed.

    Args:
        study: what was agreed on.
        folder: the server's own.
        ask: what carries requests and answers.
        resume: whether it goes on.
        progress: whether a bar is shown.

    Returns:
        The summary.

    Raises:
        UserError: where there is a study, or none to go on with; and where sites are missing whose sums are needed.
    """
    check_folder(folder, resume)
    kept = folder / STUDY_COPY
    make_folder(folder)
    with locked(folder / ".lock", f"another server works in {folder}"):
        if resume:
            _go_on(study, folder)
        write_whole(kept, tomli_w.dumps(dict(study.table)).encode())
        recorded = Recorded(folder, study.name, int(study.table["run"]["rounds"]))
        recorded.ask = ask(recorded)
        try:
            run = _fit(study, folder, recorded, resume, progress)
            summary = _write_results(study, folder, run)
        except BaseException as error:
            if isinstance(error, UserError) and isinstance(recorded.ask, FileCourier):
                recorded.ask.leave(endings(study.clients, study.handshake, str(error)))
            recorded.end(str(error) or type(error).__name__)
            raise
        recorded.end(DONE)
        return summary


def check_folder(folder: Path, resume: bool) -> None:
    """Refuses a server's folder that is there already, or is not where it is to go on.

    Raises:
        UserError: for one.
    """
    if resume and not (folder / STUDY_COPY).is_file():
        raise UserError(f"{folder} is not the folder of a study's server: it has no {STUDY_COPY}")
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists; go on with it (--resume), or choose another --out")


def _go_on(study: Study, folder: Path) -> None:
    """Makes sure that it is the study that was begun; its roster may have changed."""
    kept = folder / STUDY_COPY
    before = Study.of(read_toml(kept, STUDY), study.path)
    if before.digest != study.digest:
        raise UserError(f"{kept} and {study.path} differ in more than their rosters: that is another study")
    if before.clients != study.clients and (folder / "checkpoint" / "checkpoint.json").is_file():
        change_roster(folder / "checkpoint", before.clients, study.clients)


def _fit(study: Study, folder: Path, ask: Ask, resume: bool, progress: bool) -> Run:
    questions = Questions(study.clients, ask, study.handshake, torch.device("cpu"))
    totals = prepare(questions, Summing(study), folder)
    outline, network = study.data.model(as_numbers(totals), study.loaded.cls.latent)
    engine = partial(
        RemoteEngine, clients=study.clients, ask=ask, handshake=study.handshake, new_clients=study.new_clients,
        greeting=numbered(totals),
    )  # fmt: skip
    ready = Fit(study.method(network), outline, study.options("cpu"), engine)
    write_config(folder, study.configuration(study.name, "cpu", len(study.clients)))
    begun = resume and (folder / "checkpoint" / "checkpoint.json").is_file()
    return ready.run(
        folder / "checkpoint", resume=begun, progress=progress, observe=lambda rows: write_metrics(folder, rows)
    )


class Summing:
    """See :class:`~hierfl.inference.engines.remote.preparation.Summing`."""

    def __init__(self, study: Study) -> None:
        self.data, self.steps = study.data, study.data.steps

    def form(self, before: Any) -> StateForm:
        return {name: (shape, torch.float64) for name, shape in self.data.form(as_numbers(before)).items()}


def _write_results(study: Study, folder: Path, run: Run) -> dict[str, Any]:
    """What the server may know; what is a client's own is in its site's folder."""
    write_metrics(folder, run.evaluations)
    write_frame(folder / "participation.csv", run.participation, "round")
    effects, numbers = run.fitted.method.population_summary(run.fitted)
    if effects is not None:
        write_frame(folder / "effects.csv", effects)
    nothing = {**NO_CHAINS, "ood": None, "ood_auroc": None, "ood_draws_auroc": None}
    summary = make_summary(run, study.loaded.name, numbers, nothing, NO_ROWS)
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary
