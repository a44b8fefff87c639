"""Predictions of a fit: arrays in, tensors out; tables in, tables out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from hierfl.calls import checked_call
from hierfl.data.frames import is_table
from hierfl.errors import UserError

from ..calibration.calibrate import Calibration, calibrated
from ..checks import check_draws
from ..evaluation.fitted import Fitted
from ..evaluation.inputs import Inputs, client_row
from ..method.capabilities import is_tabular, prediction_draws
from ..options import Options
from .labelled import Source, of_clients, of_new_client
from .predictions import Examples, predicted, predicted_log_probs, predicted_new_client

if TYPE_CHECKING:
    import pandas as pd


class Predicting:
    """What a :class:`~hierfl.inference.run.result.Run` is asked of new inputs; its attributes are of that class."""

    fitted: Fitted
    options: Options
    random: bool
    calibration: Calibration | None

    @property
    def _source(self) -> Source:
        return Source(self.fitted, self.calibration, self.options.seed, self.random)

    @checked_call
    def predict(
        self, x: Inputs, client: int | str | None = None, draws: int | None = None, *, tempered: bool | None = None,
        interval: float | None = 0.9, frame: bool | None = None, shares: str = "",
    ) -> Any:  # fmt: skip
        """What clients' own models say of new inputs.

        Args:
            x: raw inputs, (n, *event), as in the pool, in any type; or a table with the input columns, in any order.
            client: its name, or its position where no name is a number. A table's rows may be of many clients, which
                its column of clients names; ``client=None`` reads it.
            draws: 0 predicts at the posterior mean; None at the mean, but over all draws of a mixed-effects model.
            tempered: at the temperature that a fit with ``calibrate="temperature"`` has found for this kind; None does
                so for tables, where there is one.
            interval: of a table's regression, in both intervals; None for none.
            frame: whether a table is answered; None says yes for a table.
            shares: of a method with label shares: "own", "test" (estimated from x), "uniform" or "pooled".

        Returns:
            For arrays class probabilities (n, C), in the order of the labels (``federation.about["labels"]``, sorted,
            where they are not 0, 1, ...), or for regression mean and standard deviation (n, 2).

            For a table a frame with its index: ``client``; of a classification ``label``, a column ``p(NAME)`` for each
            class and, of a fit with ``conformal=ALPHA``, ``set``, the labels that are not ruled out, as ``a|b``; of a
            regression ``mean``, where the guide has draws ``lower`` and ``upper`` of the mean (over 200 draws, or
            ``draws``), and ``response_lower`` and ``response_upper`` of one response. Of a mixed model an array is
            answered: its own ``predict`` gives the frame.

        Raises:
            UserError: for a client that does not exist or inputs of another shape; where there is no temperature.
        """
        if is_table(x) and not is_tabular(self.fitted.method) if frame is None else frame:
            source = replace(self._source, shares=shares)
            return of_clients(source, cast("pd.DataFrame", x), client, draws, interval, tempered)
        if client is None:
            raise UserError("whose model? An array's rows are of one client: predict(x, client=NAME)")
        row = client_row(self.fitted.federation, client)
        draws = prediction_draws(self.fitted.method) if draws is None else draws
        check_draws(draws)
        return predicted(self.fitted, row, x, draws, shares, calibrated(self.calibration) if tempered else None)

    @checked_call
    def predict_new_client(
        self, x: Inputs, draws: int = 100, given: Examples | pd.DataFrame | None = None, rounds: int = 1,
        interval: float | None = 0.9,
    ) -> Any:  # fmt: skip
        """What the federation says to a client that was never seen.

        Without examples of its own that is what the population says: predictions averaged over draws of the prior. With
        a few, it finds its own posterior first, by the chains (or the personal part of the local steps) that the
        method has; the shared values stay, and nothing is sent.

        Args:
            x: raw inputs, (n, *event), or a table. Its column of clients may name several new ones; if all of them
                were fitted, the rows are answered as those of one new client.
            draws: of the personal latents, from their prior or posterior; 0 puts them at its mean.
            given: examples of the client, inputs (m, *event) and targets (m,), with labels as the federation's; or for
                a table a table with responses, in which each new client's rows are found by the column of clients.
            rounds: how often it goes through those steps; 0 leaves it where a new client begins.
            interval: of a table's regression, as of :meth:`predict`.

        Returns:
            As :meth:`predict`, of a table with ``client`` where it names them.

        Raises:
            UserError: for examples that do not fit, a table of fitted and other clients, or a method in which a
                client learns nothing of its own.
        """
        if is_table(x) and not is_tabular(self.fitted.method):
            return of_new_client(self._source, cast("pd.DataFrame", x), draws, given, rounds, interval)
        return predicted_new_client(self.fitted, x, draws, cast("Examples | None", given), rounds)

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
        calibration, row = calibrated(self.calibration), client_row(self.fitted.federation, client)
        return calibration.sets(predicted_log_probs(self.fitted, row, x, calibration.draws))
