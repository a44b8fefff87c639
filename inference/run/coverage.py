"""Whether a regression's 90 % intervals cover 90 % of the responses that a fit has seen."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..engines.base import Broadcast, Engine
from ..evaluation.fitted import Fitted
from ..method.capabilities import is_tabular
from ..options import Options
from .evaluated import metrics_row
from .journal import Journal


class Warned(Protocol):
    """What has warnings."""

    @property
    def warnings(self) -> list[str]:
        """A line each."""
        ...


Some = TypeVar("Some", bound=Warned)
log = logging.getLogger("hierfl")
#: what the intervals should cover
WANTED = 0.9
#: a coverage is far from that by more than this, and by more than three standard errors
MIN_DISTANCE, MIN_STANDARD_ERRORS = 0.05, 3.0
#: the same where it is not known how many examples it is of
MIN_DISTANCE_UNKNOWN = 0.1
#: draws that coverage of training data is averaged over at most; and of how many examples: a posterior that has seen
#: more is narrow, and an average over its draws takes as long as the fit
TRAINING_DRAWS, MOST_AVERAGED = 20, 20_000
KINDS = {"pm": "at the posterior mean", "pm_draws": "averaged over draws"}


@dataclass(frozen=True)
class Coverage:
    """Coverage of the central 90 % intervals of the clients' own models, a mean over clients.

    Attributes:
        split: "validation", or "train" where nothing is held out for it.
        found: by kind of prediction, "pm" and "pm_draws".
        examples: how many they are of; 0 where that is not known.
        given: the response's standard deviation where it was given; None where it is learned.
    """

    split: str
    coverages: Mapping[str, float]
    examples: int
    given: float | None

    @property
    def numbers(self) -> dict[str, float]:
        """The coverages for summary.json."""
        return {f"{kind}_{self.split}_coverage90": value for kind, value in self.coverages.items()}

    @property
    def warning(self) -> str:
        """One line where it is far from 90 %; empty where it is not."""
        kind = max(self.coverages, key=lambda k: abs(self.coverages[k] - WANTED), default="")
        if not kind or self._is_near(self.coverages[kind]):
            return ""
        value, data = self.coverages[kind], "training" if self.split == "train" else self.split
        if self.given is not None:
            remedy = f'the response\'s sd was given as {self.given:g}: learn it (noise="shared", --learn-sd shared)'
        elif value < WANTED:
            remedy = "a learned sd does not help here: fewer weights, or a method with a posterior"
        else:
            remedy = "fit more rounds (rounds=, --rounds)"
            if kind == "pm_draws" and self._is_near(mean := self.coverages.get("pm", 0.0)):
                remedy = f"predict at the posterior mean (draws=0, --draws 0), where they cover {mean:.1%}, or {remedy}"
        width = "too narrow" if value < WANTED else "too wide"
        return (
            f"90 % intervals of responses {KINDS[kind]} cover {value:.1%} of the {data} responses: these intervals are "
            f"{width}; {remedy}"
        )

    def _is_near(self, coverage: float) -> bool:
        """Whether a coverage is as near to 90 % as its number of examples lets one expect."""
        noise = (
            MIN_STANDARD_ERRORS * (WANTED * (1 - WANTED) / self.examples) ** 0.5
            if self.examples
            else MIN_DISTANCE_UNKNOWN
        )
        return abs(coverage - WANTED) <= max(MIN_DISTANCE, noise)


def interval_coverage(
    engine: Engine, fitted: Fitted, broadcast: Broadcast, options: Options, journal: Journal, *, random: bool
) -> Coverage | None:
    """The coverage at the fit's end, by the last evaluation on validation data or else by a pass over training data.

    Sites are asked for nothing more than they are asked for anyway. None for what has no such intervals.
    """
    method: Any = fitted.method
    network = method.network
    federation = fitted.federation
    if engine.task != "regression" or is_tabular(method) or not journal.round:
        return None
    row, split = journal.last("validation"), "validation"
    if row is None or row["round"] != journal.round:
        # What is conditioned on the training data says nothing by how it predicts them.
        if federation.outline or engine.has_data("validation") or method.conditions:
            return None
        split = "train"
        few = sum(federation.sizes(split)) <= MOST_AVERAGED
        draws = (0, min(options.draws, TRAINING_DRAWS)) if random and few else (0,)
        row = metrics_row(engine.scores(broadcast, split, draws), engine.task)
    by_kind = {kind: value for kind in KINDS if (value := row.get(f"{kind}_coverage90")) is not None and value == value}
    given = None if network.learned else network.noise
    return Coverage(split, by_kind, 0 if federation.outline else sum(federation.sizes(split)), given)


def warned(run: Some) -> Some:
    """The same, after its warnings are logged."""
    for line in run.warnings:
        log.warning(line)
    return run
