"""A study's server: asks the sites, adds up, and keeps what all clients share."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch

from hierfl.arviz_io import NO_ROWS, write
from hierfl.errors import UserError
from hierfl.file_lock import locked
from hierfl.files import make_folder, shown, write_whole
from hierfl.inference.engines.remote.engine import RemoteEngine
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.offers import Offers
from hierfl.inference.engines.remote.preparation import endings, numbered, prepare
from hierfl.inference.engines.remote.questions import Ask, Questions
from hierfl.inference.engines.remote.sealed_ask import SealedAsk
from hierfl.inference.method.capabilities import joint_posterior
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.result import Run
from hierfl.inference.state import StateForm
from hierfl.schema import Number, read_json, read_toml

from ..run_folder.config_file import write_config
from ..run_folder.csv_files import write_frame
from ..run_folder.diagnostics import NO_CHAINS
from ..run_folder.files import write_metrics, write_text
from ..run_folder.results import write_watched
from ..run_folder.summary import make_summary
from .contributions import CONTRIBUTIONS, Recorded, who_finished
from .masks import masked_sums, of_all
from .public_sums import is_public, kept_public_sums
from .roster import change_roster
from .roster_keys import check_server
from .row_bounds import declared_rows, row_bounds
from .study import STUDY, Study
from .study_site import STUDY_COPY, as_numbers
from .support import Support

log = logging.getLogger("hierfl")
#: of a server's folder: how often it was restarted
RESTARTS = "restarts.json"
#: that a server works in its folder
LOCK = ".lock"
#: what is said of a study that has come to its end
DONE = "all rounds are done"
#: makes what carries requests, given what is to be sent who has yet to answer
AskMaker = Callable[[Recorded], Ask]


def serve(
    study: Study, folder: Path, ask: AskMaker, identity: Identity, *, earlier: Sequence[Identity] = (),
    resume: bool = False, restart: bool = False, progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Fits a study, from its last checkpoint on where it is resumed.

    Args:
        study: what was agreed on.
        folder: the server's own.
        ask: what carries requests and answers.
        identity: the server's; the study names its card.
        earlier: its keys before rotations: sites send again what they have stored.
        resume: whether it goes on.
        restart: whether sites may evaluate again what they have answered: a record that they count; with ``resume``.
        progress: whether a bar is shown.

    Returns:
        The summary.

    Raises:
        UserError: where there is a study, or none to go on with; where cards are missing, or the server's is another;
            and where sites are missing whose sums are needed.
    """
    check_folder(folder, resume)
    if resume:
        _begun(study, folder)
    if resume and has_ended(folder, study.clients):
        raise UserError(f"{folder}: the study has ended, all its sites have heard it, and its results are there")
    if restart and not resume:
        raise UserError("--restart is for a study that goes on: say --resume, too")
    check_server(study.keys, study.clients, identity, study.path)
    kept = folder / STUDY_COPY
    make_folder(folder)
    with locked(folder / LOCK, f"another server works in {folder}"):
        if resume:
            _go_on(study, folder)
        write_whole(kept, tomli_w.dumps(dict(study.table)).encode())
        recorded = Recorded(
            folder, study.name, int(study.table["run"]["rounds"]), study.clients,
            ends_early=hasattr(study.loaded.cls, "finished"),
        )  # fmt: skip
        recorded.ask = courier = SealedAsk(ask(recorded), identity, study.keys, folder, earlier)
        if hasattr(courier.ask, "of_all"):
            courier.ask.of_all = of_all(study)
        try:
            more = restarts_of(folder, more=restart)
            run, offers = fit_study(study, folder, recorded, restarts=more, resume=resume, progress=progress)
            summary = _write_results(study, folder, run, offers, recorded.status["again"])
        except BaseException as error:
            reason = str(error) if isinstance(error, UserError) else f"it has stopped ({type(error).__name__})"
            _leave(courier, endings(recorded.status["known"], study.handshake, reason))
            recorded.end(str(error) or type(error).__name__)
            raise
        recorded.end(DONE)
        _leave(courier, endings(recorded.without_end, study.handshake, DONE, done=True))
        return summary


def _leave(courier: SealedAsk, requests: dict[str, bytes]) -> None:
    """Tells sites that their server has ended, as far as they can be reached now."""
    if requests:
        try:
            courier.leave(requests)
        except (OSError, UserError, RuntimeError) as error:  # the connection itself may be why it ends
            log.warning("the sites have not heard that the server has ended: %s", shown(error))


def check_folder(folder: Path, resume: bool) -> None:
    """Refuses a server's folder that is there already, or is not where it is to go on.

    Raises:
        UserError: for one.
    """
    if resume and not (folder / STUDY_COPY).is_file():
        raise UserError(f"{folder} is not the folder of a study's server: it has no {STUDY_COPY}")
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists; go on with it (--resume), or choose another --out")


def has_ended(folder: Path, clients: Sequence[str]) -> bool:
    """Whether a server's study has its results, and all of a roster know it: no one would answer any more."""
    if not (folder / "summary.json").is_file() or not (folder / CONTRIBUTIONS).is_file():
        return False
    return set(clients) <= set(who_finished(folder))


def _begun(study: Study, folder: Path) -> Study:
    """The study as it was begun.

    Raises:
        UserError: where it is another one.
    """
    kept = folder / STUDY_COPY
    before = Study.from_table(read_toml(kept, STUDY), study.path)
    if before.digest != study.digest:
        raise UserError(f"{kept} and {study.path} differ in more than their rosters: that is another study")
    return before


def _go_on(study: Study, folder: Path) -> None:
    """Takes over a roster that has changed."""
    before = _begun(study, folder)
    if before.clients != study.clients and (folder / "checkpoint" / "checkpoint.json").is_file():
        change_roster(folder / "checkpoint", before.clients, study.clients)


def restarts_of(folder: Path, *, more: bool = False) -> int:
    """How often a server's study was restarted: sites that see a higher number evaluate a round again.

    Args:
        folder: the server's.
        more: whether it is restarted once more; that is on the disk before anything is asked.
    """
    path = folder / RESTARTS
    count = read_json(path, {"restarts": Number(int, 0)})["restarts"] if path.is_file() else 0
    if more:
        count += 1
        write_whole(path, json.dumps({"restarts": count}).encode())
    return int(count)


def fit_study(
    study: Study, folder: Path, ask: Ask, *, restarts: int = 0, resume: bool = False, progress: bool = True
) -> tuple[Run, Offers]:
    """The preparation and the fit, without what its server writes of them, and what sites answer about.

    See :func:`serve`.
    """
    questions = Questions(study.clients, ask, study.handshake, torch.device("cpu"), restarts)
    masks, summing, bounds = masked_sums(study, questions, folder), Summing(study), row_bounds(study)
    if is_public(study):
        totals = kept_public_sums(study, folder)
    else:
        totals = prepare(questions, summing, folder, masks, bounds)
    summing.support.check(totals)
    outline, network = study.data.model(as_numbers(totals), study.loaded.cls.latent)
    engine = partial(
        RemoteEngine, clients=study.clients, ask=ask, handshake=study.handshake, new_clients=study.new_clients,
        greeting=numbered(totals), restarts=restarts, masks=masks, rows=declared_rows(study, bounds),
    )  # fmt: skip
    ready = Fit(study.method(network), outline, study.options("cpu"), engine)
    ready.watch.before = tuple(bounds.unlike) if bounds else ()
    write_config(folder, study.configuration(study.name, "cpu", len(study.clients)))
    begun = resume and (folder / "checkpoint" / "checkpoint.json").is_file()
    run = ready.run(
        folder / "checkpoint", resume=begun, progress=progress, observe=lambda rows: write_metrics(folder, rows)
    )
    assert isinstance(ready.engine, RemoteEngine)  # as of above
    return run, ready.engine.offers


class Summing:
    """See :class:`~hierfl.inference.engines.remote.preparation.Summing`."""

    def __init__(self, study: Study) -> None:
        self.data, self.support = study.data, Support(study)
        self.steps = study.data.steps + self.support.steps

    def form(self, before: Any) -> StateForm:
        self.support.check(before)
        first = len(before) < self.support.steps
        form = self.support.form() if first else self.data.form(as_numbers(before))
        return {name: (shape, torch.float64) for name, shape in form.items()}


def _write_results(study: Study, folder: Path, run: Run, offers: Offers, again: int) -> dict[str, Any]:
    """What the server may know; what is a client's own is in its site's folder."""
    write_metrics(folder, run.evaluations)
    write_frame(folder / "participation.csv", run.participation, "round")
    write_watched(folder, run)
    effects, numbers = run.fitted.method.population_summary(run.fitted)
    if effects is not None:
        write_frame(folder / "effects.csv", effects)
    nothing = {**NO_CHAINS, "ood": None, "ood_auroc": None, "ood_draws_auroc": None}
    summary = make_summary(run, study.loaded.name, numbers, nothing, NO_ROWS, simulated=False, again=again)
    if (joint := joint_posterior(run.fitted.method, run.fitted)) is not None:
        write_frame(folder / "globals.csv", joint.globals_table())
        write(joint.inference_data(rows=False, observed=False), folder / "posterior.nc")
        summary["warnings"] = [*summary["warnings"], *joint.notes(run.rounds)]
    # With noise metrics are null anyway, and summary.json says why.
    if not summary.get("dp") and "train" in study.options("cpu").splits and (words := offers.silence(len(run.ids))):
        summary["warnings"] = [*summary["warnings"], words]
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary
