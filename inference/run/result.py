"""Run: what came out of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hierfl.argument_types import typed_call
from hierfl.calls import checked_call
from hierfl.errors import UserError

from ..calibration.calibrate import Calibration, calibrated
from ..checks import check_whole
from ..engines.chunk_size import suitable_chunk
from ..evaluation.client_module import ClientModules
from ..evaluation.entropy import entropies
from ..evaluation.fitted import Fitted
from ..evaluation.inputs import Inputs, client_row, raw_inputs
from ..evaluation.personal import evaluate_personal
from ..method.capabilities import prediction_draws
from ..method.with_noise import plan_of
from ..options import Options
from ..state import State
from .coverage import Coverage
from .inference_data import inference_data
from .journal import Row
from .predictions import Examples, predicted, predicted_log_probs, predicted_new_client
from .rounds import Chosen, chosen_round
from .watched import Watched

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run(ClientModules):
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
        watched: how each client's messages lie beside the others', where single messages were seen.
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
    watched: Watched | None = None

    def __repr__(self) -> str:
        """What was fitted to what, not the data."""
        name = type(self.fitted.method).__name__
        return f"Run({name}, {self.rounds} rounds, seed {self.options.seed}, {self.fitted.federation!r})"

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
        numbers = sum(v[0].numel() for v in {**self.fitted.copies, **self.fitted.personal}.values())
        chunk = self.options.chunk or suitable_chunk(self.fitted.federation, numbers)
        return evaluate_personal(self.fitted, "test", chunk, draws)

    def reliability(self, averaged: bool = False) -> np.ndarray:
        """Counts of the clients' reliability diagrams on test data, (J, 15, 3); see :mod:`hierfl.metrics`.

        Args:
            averaged: of predictions averaged over draws, not at the posterior mean.

        Raises:
            UserError: for draws of a point guide.
        """
        if averaged and not self.random:
            raise UserError("the guide is a point: it has no draws to average over")
        return self.client_metrics[int(averaged)]["bins"]

    def entropies(self, x: Tensor | np.ndarray | None = None, draws: int = 0) -> list[np.ndarray]:
        """Every client's predictive entropy in nats: on its own test data, or on inputs (n, *event) from elsewhere.

        Args:
            x: raw inputs, as in the pool; None for everyone's own test data.
            draws: 0 predicts at the posterior mean, else averaged over so many draws.

        Raises:
            UserError: for a regression, or inputs of another shape.
        """
        check_whole("draws", draws, 0)
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
        found = [self.coverage.warning] if self.coverage and self.coverage.warning else []
        return [*found, *(self.watched.lines if self.watched else [])]

    # -- predictions ------------------------------------------------------------------------------------------------

    @checked_call
    def predict(
        self, x: Inputs, client: int | str, draws: int | None = None, *, tempered: bool = False, shares: str = ""
    ) -> Tensor:
        """What a client's own model says of new inputs.

        Args:
            x: raw inputs, (n, *event), as in the pool, in any type; for a federation from a table also a table.
            client: its name; its place will do where no name is a number.
            draws: 0 predicts at the posterior mean; None at the mean, but over all draws of a mixed-effects model.
            tempered: at the temperature that a fit with ``calibrate="temperature"`` has found for this kind.
            shares: of a method with label shares: "own", "test" (estimated from x), "uniform" or "pooled".

        Returns:
            Class probabilities (n, C), in the order of the labels (``federation.about["labels"]``, sorted, where they
            are not 0, 1, ...), or for regression mean and standard deviation (n, 2).

        Raises:
            UserError: for a client that does not exist or inputs of another shape; where there is no temperature.
        """
        row = client_row(self.fitted.federation, client)
        draws = prediction_draws(self.fitted.method) if draws is None else draws
        check_whole("draws", draws, 0)
        return predicted(self.fitted, row, x, draws, shares, calibrated(self.calibration) if tempered else None)

    @checked_call
    def predict_new_client(self, x: Inputs, draws: int = 100, given: Examples | None = None, rounds: int = 1) -> Tensor:
        """What the federation says to a client that was never seen.

        Without examples of its own that is what the population says: predictions averaged over draws of the prior. With
        a few, it finds its own posterior first, by the chains (or the personal part of the local steps) that the
        method has; the shared values stay, and nothing is sent.

        Args:
            x: raw inputs, (n, *event).
            draws: of the personal latents, from their prior or posterior; 0 puts them at its mean.
            given: examples of the client, inputs (m, *event) and targets (m,), with labels as the federation's.
            rounds: how often it goes through those steps; 0 leaves it where a new client begins.

        Returns:
            As :meth:`predict`.

        Raises:
            UserError: for examples that do not fit, or a method in which a client learns nothing of its own.
        """
        return predicted_new_client(self.fitted, x, draws, given, rounds)

    @checked_call
    def prediction_sets(self, x: Inputs, client: int | str) -> Tensor:
        """Labels that a client's own model does not rule out: of a fit with ``conformal=ALPHA``.

        Args:
            x, client: as for :meth:`predict`.

        Returns:
            Whether each label is in the set, (n, C): which misses the true one with probability ALPHA at most, over
            clients and examples such as those of the validation data (docs: calibration).

        Raises:
            UserError: as :meth:`predict`; where the fit has no sets.
        """
        found, row = calibrated(self.calibration), client_row(self.fitted.federation, client)
        return found.sets(predicted_log_probs(self.fitted, row, x, found.draws))

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
            observed: whether to hold the training data's responses; without them there is no observed_data. (What
                log_likelihood and posterior_predictive say of them stays.)
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
