"""What clients are asked for when a fit is calibrated. Whatever they answer adds up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch

from hierfl.errors import UserError, unknown

from ..checks import check_number
from ..options import Options
from ..state import StateForm

About = Literal["temperature", "scores", "test"]


@dataclass(frozen=True)
class Question:
    """One round of sums.

    Attributes:
        about: "temperature": likelihoods of validation labels, and derivatives; "scores": counts of how strange these
            are; "test": how tempered predictions and sets do on test data.
        draws: of each kind of prediction, 0 at the posterior mean; of scores one kind.
        powers: 1 / T of each kind; of scores 1.
        low, high: between which scores are counted.
        threshold: of the sets; None without.
    """

    about: About
    draws: tuple[int, ...]
    powers: tuple[float, ...]
    low: float = 0.0
    high: float = 1.0
    threshold: float | None = None

    @property
    def split(self) -> str:
        """The split of the data that is evaluated."""
        return "test" if self.about == "test" else "validation"

    def table(self) -> dict[str, Any]:
        """The question as an entry of a request."""
        return {**asdict(self), "draws": list(self.draws), "powers": list(self.powers)}

    @classmethod
    def from_request(cls, request: object, options: Options) -> Question:
        """What a request says, where it asks for what a fit with these options needs.

        Raises:
            UserError: where it asks for anything else.
        """
        request = request if isinstance(request, Mapping) else {}
        purpose, draws, powers, threshold = (request.get(name) for name in ("about", "draws", "powers", "threshold"))
        if purpose not in get_args(About):
            raise unknown("question of a calibration", str(purpose), get_args(About))
        if (purpose == "temperature" and options.calibrate == "none") or (
            purpose == "scores" and not options.conformal
        ):
            raise UserError(f"the fit has no {purpose} to ask for")
        if options.calibrate == "none" and not options.conformal:
            raise UserError("the fit is not calibrated")
        kinds = ([0], [options.draws]) if purpose == "scores" else ([0], [0, options.draws])
        if draws not in kinds or not isinstance(powers, list) or len(powers) != len(draws):
            raise UserError("other draws than the fit's")
        low, high = request.get("low"), request.get("high")
        for name, value in (("a power", p) for p in powers):
            check_number(name, value)
            if not 0 < value < math.inf:
                raise UserError(f"{name} is none")
        check_number("low", low)
        check_number("high", high)
        if not 0 <= low < high <= 1:  # type: ignore[operator]  # check_number has made them numbers
            raise UserError("scores lie between 0 and 1")
        if threshold is not None:
            check_number("threshold", threshold)
        if (threshold is not None) != (purpose == "test" and options.conformal > 0):
            raise UserError("sets of a fit that has none, or none of one that has")
        return cls(purpose, tuple(draws), tuple(powers), low, high, threshold)  # type: ignore[arg-type]


def questions_of(options: Options, *, random: bool) -> list[Question]:
    """One question of each kind that a fit with these options asks."""
    draws = (0, options.draws) if random else (0,)
    ones = (1.0,) * len(draws)
    questions = [] if options.calibrate == "none" else [Question("temperature", draws, ones)]
    if options.conformal:
        questions.append(Question("scores", draws[-1:], ones[-1:]))
    if questions and "test" in options.splits:
        questions.append(Question("test", draws, ones, threshold=1.0 if options.conformal else None))
    return questions


def calibrated_form(options: Options, *, random: bool) -> StateForm:
    """The form of what clients get in the end, see
    :attr:`~hierfl.inference.calibration.calibrate.Calibration.tensors`.
    """
    kinds = 2 if random else 1
    form: StateForm = {} if options.calibrate == "none" else {"powers": ((kinds,), torch.float64)}
    return {**form, **({"threshold": ((), torch.float64)} if options.conformal else {})}
