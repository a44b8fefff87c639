"""Run: what came out of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hierfl.argument_types import typed_call
from hierfl.errors import UserError
from hierfl.plurals import counted

from ..calibration.answer import tempered_rows
from ..calibration.calibrate import Calibration, calibrated
from ..checks import check_draws
from ..engines.chunk_size import suitable_chunk
from ..evaluation.client_module import ClientModules
from ..evaluation.entropy import entropies
from ..evaluation.fitted import Fitted
from ..evaluation.inputs import client_row, raw_inputs
from ..evaluation.personal import evaluate_personal
from ..method.with_noise import plan_of
from ..options import Options
from ..state import State
from .coverage import Coverage
from .divergence import divergence
from .inference_data import inference_data
from .journal import Row
from .predicting import Predicting
from .rounds import Chosen, chosen_round
from .watched import Watched, Watching

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run(Predicting, ClientModules):
    """What a fit has left.

    Attributes:
        fitted: method, data and state, of the clients that are here.
        ids: the names of all clients, J of them.
        options: how it was run.
        evaluations: one dict per evaluation and split.
        seconds: spent in rounds (evaluation and writing left out).
        random: whether the guide has draws.
        tested: clients' metrics on test data after the last round, where it was evaluated: see :attr:`client_metrics`.
        summaries: what the method has of each client, by evaluated round; see :attr:`history`.
        status: (rounds, J) of :class:`~hierfl.inference.engines.base.ClientStatus`; see :attr:`participation`.
        calibration: a temperature and a threshold, where they were asked for.
        held_out: validation sums of each evaluated round, by which rounds are compared.
        coverage: of a regression's 90 % intervals on validation or training data.
        watch: what :attr:`watched` is, or what says it when it is asked for.
    """

    fitted: Fitted
    ids: Sequence[str]
    options: Options
    evaluations: list[Row]
    seconds: float
    random: bool
    tested: list[dict[str, np.ndarray]] | None = None
    summaries: Sequence[tuple[int, State]] = ()
    status: np.ndarray | None = None
    calibration: Calibration | None = None
    held_out: Sequence[tuple[int, Tensor]] = ()
    coverage: Coverage | None = None
    watch: Watched | Watching | None = None

    def __repr__(self) -> str:
        """What was fitted to what, not the data."""
        name = type(self.fitted.method).__name__
        return f"Run({name}, {counted(self.rounds, 'round')}, seed {self.options.seed}, {self.fitted.federation!r})"

    @property
    def rounds(self) -> int:
        """How many there were: fewer than asked for where the method was done before."""
        return 0 if self.status is None else len(self.status)

    @property
    def shared(self) -> State:
        """What the server owns, {name: (*shape)}."""
        return self.fitted.shared

    @property
    def personal(self) -> State:
        """The rows of the clients that are here, {name: (J, *shape)}."""
        return self.fitted.personal

    @cached_property
    def watched(self) -> Watched | None:
        """How each client's messages lie beside the others', where single messages were seen."""
        return self.watch.watched if isinstance(self.watch, Watching) else self.watch

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per evaluation and split."""
        from .tables import Table

        return Table(self.evaluations)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client that is here: sizes, test metrics of its personal model, and what the method has.

        Metrics are at the posterior mean; with ``draws_`` before their name, averaged over draws.
        """
        from .tables import clients_table

        return clients_table(self)

    @property
    def history(self) -> pd.DataFrame:
        """What the method has of each client over the evaluated rounds: round, client, and such as tau; or empty."""
        from .tables import history_table

        return history_table(self.summaries, self.ids)

    @property
    def participation(self) -> pd.DataFrame:
        """A row for each round, a column for each client: what it did.

        Numbers are those of :class:`~hierfl.inference.engines.base.ClientStatus`.
        """
        from .tables import participation_table

        return participation_table(self.status, self.ids)

    @cached_property
    def client_metrics(self) -> list[dict[str, np.ndarray]]:
        """Every client's metrics on its test data: at the posterior mean, and averaged over draws if there are any."""
        if self.tested is not None:
            return self.tested
        draws = (0, self.options.draws) if self.random else (0,)
        return evaluate_personal(self.fitted, "test", self._chunk, draws)

    @property
    def _chunk(self) -> int:
        """Clients at a time."""
        numbers = sum(v[0].numel() for v in {**self.fitted.copies, **self.fitted.personal}.values())
        return self.options.chunk or suitable_chunk(self.fitted.federation, numbers)

    def reliability(self, averaged: bool = False, tempered: bool = False) -> np.ndarray:
        """Counts of the clients' reliability diagrams on test data, (J, 15, 3); see :mod:`hierfl.metrics`.

        Args:
            averaged: of predictions averaged over draws, not at the posterior mean.
            tempered: at the temperature that a fit with ``calibrate="temperature"`` has found for them.

        Raises:
            UserError: for draws of a point guide, and a temperature where none was found.
        """
        if averaged and not self.random:
            raise UserError("the guide is a point: it has no draws to average over")
        if tempered:
            powers = calibrated(self.calibration).powers
            if powers is None:
                raise UserError("the fit has found no temperature: fit(..., calibrate='temperature')")
            draws = self.options.draws if averaged else 0
            return tempered_rows(self.fitted, draws, powers[int(averaged)], self._chunk)["bins"]
        return self.client_metrics[int(averaged)]["bins"]

    def entropies(self, x: Tensor | np.ndarray | None = None, draws: int = 0) -> list[np.ndarray]:
        """Every client's predictive entropy in nats: on its own test data, or on inputs (n, *event) from elsewhere.

        Args:
            x: raw inputs, as in the pool; None for everyone's own test data.
            draws: 0 predicts at the posterior mean, else averaged over so many draws.

        Raises:
            UserError: for a regression, or inputs of another shape.
        """
        check_draws(draws)
        if self.fitted.federation.task != "classification":
            raise UserError("predictive entropy is a classification's")
        return entropies(self.fitted, None if x is None else raw_inputs(self.fitted.federation, x), draws)

    def last(self, split: str = "test") -> Row:
        """The last evaluation; an empty dict if there was none on that split."""
        return next((row for row in reversed(self.evaluations) if row["split"] == split), {})

    @property
    def validated(self) -> Chosen | None:
        """What validation data say of rounds; None without any.

        Nor is there any for a method that samples its posterior after the last round alone: its rounds are of few
        draws, the last one of many, and they cannot be compared.
        """
        schedule, row = self.fitted.method.schedule(), self.last("validation")
        if row.get("pm_nll") is None or (schedule.final_steps and schedule.final_when == "end"):
            return None
        return chosen_round(self.held_out, row["round"])

    def best(self) -> Row:
        """The test metrics of the best round by validation: an earlier one only where it beats the last by more than
        chance (:mod:`.rounds`), else the last. Empty where rounds are not compared: see :attr:`validated`."""
        if (chosen := self.validated) is None:
            return {}
        return next((r for r in self.evaluations if r["split"] == "test" and r["round"] == chosen.round), {})

    @cached_property
    def noise(self) -> Any:
        """The :class:`~hierfl.inference.noise.plan.Plan` of what left the clients; None of a fit without noise."""
        return plan_of(self.fitted.method, self.options)

    @property
    def warnings(self) -> list[str]:
        """What a reader has to know of the fit, a line each."""
        diverged = divergence(self.fitted, self.evaluations, self.status, self.options)
        return [
            *filter(None, (diverged, self.coverage.warning if self.coverage else "")),
            *(self.watch.lines if self.watch else []),
        ]

    # -- ArviZ ------------------------------------------------------------------------------------------------------

    @typed_call
    def posterior(
        self, draws: int | None = None, clients: int | str | Sequence[int | str] | None = None, *,
        float32: bool = False, limit: float = 100e6, observed: bool = True, rows: bool = True,
    ) -> Any:  # fmt: skip
        """An ArviZ InferenceData with every client's posterior.

        Groups: posterior, and prior where it can be drawn from, (chain, draw, client, ...); log_likelihood and
        posterior_predictive of the training data, flat, with the client of each observation as a coordinate;
        sample_stats (chain, draw, client): lp, a guide's guide_lp, and what chains tell of their draws (step_size;
        Metropolis-adjusted ones acceptance_rate and diverging); observed_data; constant_data (sizes, the global
        latents, what the method has per client).

        Args:
            draws: how many; None for 200 (all that chains have kept), or as many as the limit allows.
            clients: only this one or these, by name or place; None for all.
            float32: half the size where the fit is in double precision (tables).
            limit: bytes, about, that the default number of draws must not exceed.
            observed: whether to hold the training data's responses; without them there is no observed_data, but
                log_likelihood and posterior_predictive stay.
            rows: whether to hold what has an entry for each training row; without there are none of observed_data,
                log_likelihood and posterior_predictive. The attribute ``rows`` says what is there.

        Raises:
            NotFinite: for a model that has diverged.
            UserError: for a client that does not exist, or is named twice.
        """
        everyone, federation = list(range(self.fitted.federation.clients)), self.fitted.federation
        named = [clients] if isinstance(clients, int | np.integer | str) else clients
        places = everyone if named is None else [client_row(federation, client) for client in named]
        if not places or len(set(places)) < len(places):
            raise UserError("posterior takes at least one client, and each once")
        return inference_data(self.fitted, draws, places, float32, limit, observed=observed and rows, by_row=rows)
