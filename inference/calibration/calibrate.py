"""A fit is calibrated: after its last round, by validation data; what that is worth is said on test data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.metrics.calibration import from_set_sums, label_scores, tempered
from hierfl.metrics.pooling import MetricSums, from_client_sums

from ..engines.base import Broadcast, Engine
from ..evaluation.fitted import Fitted
from ..options import Options
from ..state import State
from .answer import Answer, answer
from .question import Question
from .search import find_powers, find_threshold

#: kinds of prediction as metrics call them: at the posterior mean, averaged over draws
KINDS = ("pm", "pm_draws")
#: what holds out validation data
HOLD_OUT = "validation_fraction=0.1 (--validation-fraction 0.1)"
#: what is said of tempered predictions; their accuracy is what it was
TEMPERED = ("nll", "brier", "ece", "ece_pooled")


@dataclass(frozen=True)
class Calibration:
    """What was found, and how it does on test data.

    Attributes:
        powers: 1 / T of each kind of prediction: at the posterior mean; averaged over draws, if there are any. None
            where no temperature was asked for.
        alpha: how often a set may miss the label; None where no sets were asked for.
        threshold: of :func:`~hierfl.metrics.calibration.label_scores`: a set holds the labels at or below it.
        draws: of the predictions that sets are made from.
        examples: of all clients' validation data.
        metrics: on test data, {name as in summary.json: value}.
        clients: columns of clients.csv, {name: (J,)}; empty where they stay with the clients.
    """

    powers: tuple[float, ...] | None
    alpha: float | None
    threshold: float | None
    draws: int
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    clients: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def temperatures(self) -> dict[str, float]:
        """T of each kind of prediction, {"pm": ..., "pm_draws": ...}."""
        return {kind: 1 / power for kind, power in zip(KINDS, self.powers or (), strict=False)}

    @property
    def numbers(self) -> dict[str, float]:
        """What summary.json says."""
        numbers = {f"{kind}_temperature": value for kind, value in self.temperatures.items()}
        if self.alpha is not None and self.threshold is not None:
            numbers |= {"set_alpha": self.alpha, "set_threshold": self.threshold}
        return {**numbers, "calibration_examples": self.examples, **self.metrics}

    @property
    def tensors(self) -> State:
        """What a client needs to predict with it on its own."""
        tensors = {} if self.powers is None else {"powers": torch.tensor(self.powers, dtype=torch.float64)}
        if self.threshold is not None:
            tensors["threshold"] = torch.tensor(self.threshold, dtype=torch.float64)
        return tensors

    def tempered(self, log_probs: Tensor, draws: int) -> Tensor:
        """Log probabilities (..., C) at the temperature of their kind.

        Raises:
            UserError: where no temperature was asked for.
        """
        if self.powers is None:
            raise UserError("the fit has no temperature: fit(..., calibrate='temperature')")
        return tempered(log_probs, self.powers[-1 if draws else 0])

    def test(self, draws: tuple[int, ...]) -> Question:
        """Asks how it does on test data."""
        return Question("test", draws, self.powers or (1.0,) * len(draws), threshold=self.threshold)

    def tested(self, answer: Answer) -> Calibration:
        """The calibration with the metrics that the answer to :meth:`test` has."""
        return replace(self, metrics=_metrics(answer.sums, self.powers is not None), clients=answer.clients)

    def sets(self, log_probs: Tensor) -> Tensor:
        """Which labels are in the sets, (..., C) bool, of log probabilities from :attr:`draws` draws.

        Raises:
            UserError: where no sets were asked for.
        """
        if self.threshold is None:
            raise UserError("the fit has no sets: fit(..., conformal=0.1)")
        return label_scores(log_probs) <= self.threshold


def calibration_of_client(fitted: Fitted, options: Options, tensors: State, *, random: bool) -> Calibration | None:
    """What a calibration of all clients is to one of them, by its own test data; None for none.

    Args:
        fitted: of that client alone.
        options: of the fit.
        tensors: :attr:`Calibration.tensors`.
        random: whether there are draws to average over.
    """
    if not tensors:
        return None
    draws = (0, options.draws) if random else (0,)
    powers = tuple(tensors["powers"].tolist()) if "powers" in tensors else None
    threshold = float(tensors["threshold"]) if "threshold" in tensors else None
    n = sum(fitted.federation.sizes("validation"))
    mine = Calibration(powers, options.conformal or None, threshold, draws[-1], n)
    return mine.tested(answer(fitted, mine.test(draws), 1)) if any(fitted.federation.sizes("test")) else mine


def calibrated(calibration: Calibration | None) -> Calibration:
    """What was found.

    Raises:
        UserError: where nothing was asked for.
    """
    if calibration is None:
        raise UserError("the fit was not calibrated: fit(..., calibrate='temperature', conformal=0.1)")
    return calibration


def check_calibration(engine: Engine, options: Options) -> None:
    """Refuses what cannot be calibrated, before the first round.

    Raises:
        UserError: for a regression, or where there are no validation data.
    """
    # A study's sites have no --validation-of.
    few = "if no client has ten rows of a class, validation_of=clients (--validation-of clients) in a simulation"
    remedy = f"{HOLD_OUT}; {few}"
    check_wanted(options, engine.task, engine.has_data("validation"), remedy)


def check_wanted(options: Options, task: str, validation: bool, remedy: str = HOLD_OUT) -> None:
    """Refuses the same before there is an engine.

    Args:
        options: of the fit.
        task: "classification" or "regression".
        validation: whether there are validation data.
        remedy: the options that hold out validation data.

    Raises:
        UserError: likewise.
    """
    wanted = [name for name, on in _wanted(options).items() if on]
    if not wanted:
        return
    if task != "classification":
        raise UserError(f"{wanted[0]} is of class probabilities, and this is a regression")
    if not validation:
        raise UserError(f"{wanted[0]} is by validation data, and there are none: {remedy}")


def _wanted(options: Options) -> dict[str, bool]:
    return {"calibrate=temperature": options.calibrate != "none", "conformal": options.conformal > 0}


def calibrate(engine: Engine, broadcast: Broadcast, options: Options, *, random: bool) -> Calibration | None:
    """Finds what the options ask for; None where they ask for nothing.

    Test data are looked at once, after everything was chosen, and only where the fit is tested at all.

    Args:
        engine: where the clients are.
        broadcast: of the round that was the last.
        options: of the fit.
        random: whether there are draws to average over.
    """
    if not any(_wanted(options).values()):
        return None
    draws = (0, options.draws) if random else (0,)

    def ask(question: Question) -> dict[str, MetricSums]:
        return engine.calibration(broadcast, question).sums

    powers, threshold, n = None, None, 0
    if options.calibrate != "none":
        powers, n = find_powers(ask, draws)
    if options.conformal:
        threshold, n = find_threshold(ask, draws[-1], options.conformal)
    calibration = Calibration(powers, options.conformal or None, threshold, draws[-1], n)
    if "test" not in options.splits or not engine.has_data("test"):
        return calibration
    return calibration.tested(engine.calibration(broadcast, calibration.test(draws)))


def _metrics(sums: Mapping[str, MetricSums], with_temperature: bool) -> dict[str, float]:
    """How tempered predictions and sets do, under the names of summary.json."""
    metrics: dict[str, float] = {}
    for kind, name in enumerate(KINDS if with_temperature else ()):
        if str(kind) in sums:
            own = from_client_sums(sums[str(kind)], "classification")
            metrics |= {f"{name}_tempered_{metric}": own[metric] for metric in TEMPERED if metric in own}
    return {**metrics, **(from_set_sums(sums["sets"]) if "sets" in sums else {})}
