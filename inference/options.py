"""How a fit is run: everything that is not the method's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from hierfl.errors import UserError, unknown


def suitable_chunk(clients: int, device: torch.device) -> int:
    """Rows in one plate where nothing is said.

    On a CPU a plate's memory is bounded, and its steps should be few. Measured for 100 clients of Fashion-MNIST:
    pFedVEM takes half as long with 10 rows as with one, and as long with 50 or 100; FedRep, with more and smaller
    steps, is a fifth faster with 50 than with 10, and no slower with 100. Elsewhere all that there are.
    """
    return min(100, clients) if device.type == "cpu" else clients


@dataclass(frozen=True)
class Options:
    """How a fit is run; everything that is not the method's.

    Attributes:
        rounds: T.
        seed: of initial values, participation, minibatches and noise.
        participation: the probability with which each client reports in a round.
        quorum: a round with fewer valid messages changes nothing.
        evaluate_every: evaluation after rounds 1, 1 + k, 1 + 2k, ... and the last.
        idle: what clients do in a round in which they do not report: "train", so that their own state is always fresh;
            "rest" until the next evaluation (of which the last round always is one); "never" train then, so that they
            are looked at as they last reported.
        draws: of the posterior, for predictions averaged over draws.
        chunk: rows in one plate; 0 for what suits the device.
        device, dtype: where and in what the fit is computed.
        splits: on what it is evaluated; whoever chooses settings leaves "test" out.
    """

    rounds: int = 30
    seed: int = 0
    participation: float = 1.0
    quorum: int = 1
    evaluate_every: int = 1
    idle: Literal["train", "rest", "never"] = "train"
    draws: int = 20
    chunk: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    splits: tuple[str, ...] = ("validation", "test")

    def __post_init__(self) -> None:
        for name, least in (
            ("rounds", 0),
            ("seed", 0),
            ("quorum", 1),
            ("evaluate_every", 1),
            ("draws", 1),
            ("chunk", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 < self.participation <= 1:
            raise UserError(f"participation must lie in (0, 1], not {self.participation}")
        if self.idle not in (ways := ("train", "rest", "never")):
            raise unknown("way to be idle", self.idle, ways)
        check_device(self.device)

    def evaluates(self, number: int) -> bool:
        """Whether round ``number`` is one of those after which everything is evaluated."""
        return number == self.rounds or (number - 1) % self.evaluate_every == 0


def check_draws(draws: object, least: int) -> None:
    """Raises a UserError for a number of draws that is none."""
    if not isinstance(draws, int) or draws < least:
        raise UserError(f"draws must be a whole number of at least {least}, not {draws!r}")


def check_device(name: str) -> None:
    """Raises a UserError for a device that does not exist here."""
    try:
        torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        raise UserError(f"device {name!r} is not there; available: {', '.join(there)}") from error
