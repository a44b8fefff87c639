"""fit(): rounds of a method on a federation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor

from hierfl.calls import checked_call
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.nn.precision import precision
from hierfl.rng import client_keys

from ..calibration.calibrate import calibrate, check_calibration
from ..engines.base import Broadcast, Engine
from ..engines.masking import least_reporting
from ..engines.plate import PlateEngine
from ..evaluation.fitted import Fitted
from ..method.base import Method
from ..method.capabilities import Converges, has_converged, needs_everyone
from ..method.initial import InitialWeights
from ..method.of_options import of_options
from ..method.population_numbers import population_numbers
from ..options import Options
from ..server.exchange import Exchange
from ..server.participation import check_participation, draw_participants
from ..server.robust.usable import check_robust
from ..server.robust.watch import Watch
from ..server.server import Server
from ..state import State, form_of_state
from ..tracking.of_fit import tracked_fit
from .arguments import check_fitted, check_values, folder_of, initial_values
from .coverage import interval_coverage, warned
from .evaluated import metrics_row
from .journal import Journal, Row
from .keeper import CheckpointKeeper
from .network_check import check_network
from .pace import Pace
from .progress import Bar, warn_diverged
from .restore import identity_of, load_checked, numbers_of
from .result import Run
from .watched import announce, watching
from .weighted import check_weighted

log = logging.getLogger("hierfl")
#: from a method, its data and options to where its clients are
EngineMaker = Callable[[Method, Federation, Options], Engine]


@checked_call
def fit(
    method: Method,
    federation: Federation,
    rounds: int = 30,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    observe: Callable[[list[Row]], None] | None = None,
    track: str | Sequence[str] | None = None,
    engine: EngineMaker = PlateEngine,
    **options: Any,
) -> Run:
    """Fits a method to a federation.

    Args:
        method: what to fit.
        federation: to what.
        rounds: T.
        folder: where to keep checkpoints; None for none.
        resume: go on from the checkpoint in ``folder``. The result is the one an uninterrupted fit would have given.
        progress: a bar on standard error, if it takes longer than two seconds.
        observe: called with all metrics rows after each evaluation.
        track: trackers, such as ``"csv,tensorboard"``, in which the run is called as ``folder``; docs: running.
        engine: where the clients are; see :class:`~hierfl.inference.engines.base.Engine`.
        **options: fields of :class:`~hierfl.inference.options.Options`.

    Raises:
        UserError: for options out of range, or a checkpoint that cannot be used.
    """
    ready = Fit(method, federation, Options.for_method(method, rounds=rounds, **options), engine)
    with tracked_fit(ready, track, folder, observe, resumed=resume) as observed:
        return warned(ready.run(folder, resume=resume, progress=progress, observe=observed))


class Fit:
    """A fit, checked and ready to run: what cannot work is said before anything is written.

    Args:
        method, federation: what to fit to what.
        options: how.
        engine: where the clients are.

    Raises:
        UserError: for a method whose parts do not fit together.
    """

    def __init__(
        self, method: Method, federation: Federation, options: Options, engine: EngineMaker = PlateEngine
    ) -> None:
        check_fitted(method, federation)
        if method.network.encoder is not None and not method.latent:
            name = method.name or type(method).__name__
            raise UserError(f"{name} has no latent features: architecture(spec, federation), without latent=True")
        method, federation = of_options(options, method, federation)
        self.options, self.method = options, method
        self.folder: Path | None = None
        self.observe: Callable[[list[Row]], None] | None = None
        self.engine = engine(method, federation, options)
        if options.quorum > (clients := len(self.engine.ids)):
            raise UserError(f"a quorum of {options.quorum} cannot be reached by {clients} clients")
        whole = method.name * needs_everyone(method)
        check_participation(clients, options.participation, least_reporting(options), whole)
        self.keys = client_keys(self.engine.ids)
        shared, self.initial = self._initial(federation)
        check_weighted(method, federation, options, {**shared, **self.initial})
        exchange = Exchange(method.exchange(), method.pipeline(), method.expand, shared)
        template, least = self.engine.template(), least_reporting(options)
        self.server = Server(method, exchange, template, self.initial, clients, least, options.seed)
        self.state = self.server.begin(shared)
        self.schedule = method.schedule().at_least(options.absent_clients)
        self.engine.begin(shared, self.initial, exchange)
        check_calibration(self.engine, options)
        self.journal = Journal()
        self.watch = Watch.for_fit(options, exchange)
        check_robust(options, exchange, clients)
        #: whose messages of the last round were used, (J,); None before the first
        self.used: Tensor | None = None
        begun = self.engine.fitted(Broadcast(0, shared))
        self.random = begun.trace.random
        #: the clients' data that are here
        self.federation = begun.federation
        method.check_sizes(self.federation.sizes())
        if method.has_global_model:
            begun.global_sites(template)

    def _initial(self, federation: Federation) -> tuple[State, State]:
        """What server and clients begin with."""
        method, start = self.method, InitialWeights.for_network(self.method.network, self.options.seed)
        check_network(method, federation, self.engine.template(), start.base)
        shared, personal = (
            {k: v.detach().to(self.engine.device, self.options.dtype, copy=True) for k, v in values.items()}
            for values in initial_values(method, start)
        )
        check_values(method, shared, personal)
        return shared, personal

    def _broadcast(self) -> Broadcast:
        """What clients learn after the round that has ended."""
        number = self.journal.round
        final = self.schedule.is_final(number, number if self.finished else self.options.rounds)
        return Broadcast(number, self.state.shared, self.used, final, self.state.replies)

    @property
    def finished(self) -> bool:
        """Whether no round is left, or nothing to find."""
        return self.journal.round >= self.options.rounds or has_converged(self.method, self.state.shared)

    def fitted(self) -> Fitted:
        """The state so far; where the schedule says so with what the final steps make of it."""
        return self.engine.fitted(self._broadcast())

    def run(
        self,
        folder: str | Path | None = None,
        *,
        resume: bool = False,
        progress: bool = True,
        observe: Callable[[list[Row]], None] | None = None,
    ) -> Run:
        """Runs the rounds; arguments as for :func:`fit`."""
        self.folder, self.observe = folder_of(folder), observe
        with torch.no_grad(), pyro.get_param_store().scope():
            return self._run(resume, progress)

    def _run(self, resume: bool, progress: bool) -> Run:
        options, keeper = self.options, CheckpointKeeper(self.folder)
        if resume:
            self._restore()
        elif self.engine.agree(self.folder is not None):
            self._keep(keeper)
        journal = self.journal
        if options.rounds == 0 and not journal.evaluations:
            self.evaluate()
        pace = Pace(options.evaluates, isinstance(self.method, Converges))
        with Bar(options.rounds, journal.round, pace, journal.evaluations, show=progress and self.engine.leads) as bar:
            while not self.finished:
                self.step()
                evaluated = options.evaluates(journal.round) or self.finished
                if evaluated:
                    self.evaluate()
                due = self.finished or self.engine.every_round or keeper.due()
                if self.engine.agree(self.folder is not None and due):
                    self._keep(keeper)
                bar.advance(journal.last("test") if evaluated else None)
            bar.end(has_converged(self.method, self.state.shared))
        calibration = calibrate(self.engine, self._broadcast(), options, random=self.random)
        fitted = self.engine.result(self._broadcast(), calibration.tensors if calibration else None)
        coverage = interval_coverage(self.engine, fitted, self._broadcast(), options, journal, random=self.random)
        return Run(
            fitted, self.engine.ids, options, journal.evaluations, journal.seconds, self.random, journal.tested_now,
            journal.summaries, journal.statuses, calibration, journal.held_out, coverage,
            watching(self.watch, self.engine.ids),
        )  # fmt: skip

    @torch.no_grad()
    @precision("full")
    def step(self) -> None:
        """One round: all clients' local steps, messages, the server's update."""
        options, start, number = self.options, time.perf_counter(), self.journal.round + 1
        self.journal.round = number  # which is what is said where it fails
        reporting = draw_participants(self.keys, number, options.seed, options.asked, least_reporting(options))
        personal = bool(self.initial or self.method.local_copies)
        plan = self.schedule.plan(reporting, len(self.keys), evaluated=options.evaluates(number), personal=personal)
        broadcast = Broadcast(number, self.state.shared, self.used, replies=self.state.replies)
        reports = self.engine.round(broadcast, plan)
        self.state = self.server(self.state, self.watch.after_round(reports.sums, reports.singles, broadcast.shared))
        self.used = reports.used & ~self.state.last_skipped
        self.journal.add(reports)
        diverged = int(reports.sums.diverged)  # the only value of a round that the host waits for
        self.journal.seconds += time.perf_counter() - start
        self.journal.diverged += diverged
        warn_diverged(number, reports.diverged, self.engine.ids, diverged * self.engine.leads)

    @torch.no_grad()
    @precision("full")
    def evaluate(self) -> None:
        """Adds a row of metrics for each split, where it has data."""
        for split in self.options.splits:
            if self.engine.has_data(split):
                self.journal.evaluations.append(self._evaluated(split))
        if own := self.engine.client_summary(self._broadcast()):
            self.journal.summaries.append((self.journal.round, {k: own[k].cpu() for k in sorted(own)}))
        if self.engine.every_round:
            announce(self.watch, self.engine.ids)
        self._show()

    def _show(self) -> None:
        if self.observe is not None and self.engine.leads:
            self.observe(self.journal.evaluations)

    def _evaluated(self, split: str) -> Row:
        scores = self.engine.scores(self._broadcast(), split, (0, self.options.draws) if self.random else (0,))
        self.journal.note(split, scores)
        row: Row = {"round": self.journal.round, "split": split, **metrics_row(scores, self.engine.task)}
        row |= {
            "rejected": self.journal.rejected,
            "skipped": int(self.state.skipped),
            "bytes": self.state.bytes,
            "diverged": self.journal.diverged,
            **{f"update_norm_{group}": float(value) for group, value in self.state.update_norm.items()},
        }
        return {**row, **population_numbers(self.method, self.state.shared), "seconds": round(self.journal.seconds, 3)}

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _keep(self, keeper: CheckpointKeeper) -> None:
        tensors = self._tensors()
        if self.engine.leads:
            keeper.save(tensors, self._record())

    def _tensors(self) -> State:
        return {
            **{f"server/{k}": v for k, v in self.state.tensors().items()},
            **{f"engine/{k}": v for k, v in self.engine.state(self._broadcast()).items()},
            **{f"journal/{k}": v for k, v in {**self.journal.tensors(), **self.watch.tensors()}.items()},
        }

    def _record(self) -> dict[str, Any]:
        identity = {"fit": identity_of(self.method, self.options), "federation": self.engine.digest()}
        return {**self.journal.record(), **identity, "dtype": numbers_of(self.options)}

    def _restore(self) -> None:
        if self.folder is None:
            raise UserError("to resume, say where the checkpoint is")
        forms = {"server": form_of_state(self.state.tensors()), "engine": self.engine.form()}
        form = {f"{part}/{k}": v for part, values in forms.items() for k, v in values.items()}
        tensors, record = load_checked(self.folder, form, self._record(), self.options.rounds)

        def under(prefix: str) -> State:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.state = self.state.restored({k: v.to(self.engine.device) for k, v in under("server/").items()})
        self.engine.load(under("engine/"))
        self.journal = Journal.restored(under("journal/"), record, self.engine.device)
        self.watch.restore(under("journal/"), self.journal.round)
        self._show()
