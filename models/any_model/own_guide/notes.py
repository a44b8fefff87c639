"""What a reader has to know of a fit with a user's guide, a line each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from hierfl.inference.evaluation.fitted import Fitted
from hierfl.plurals import counted

from ..names import BOUND, PHASE, TRACE, Phase
from ..verdict import Verdict
from .names import RATE

if TYPE_CHECKING:
    from .guided import Guided

#: rounds in a half of which a mean bound has a standard error
FEWEST = 10


def _what(method: Guided, fitted: Fitted, phase: Phase) -> str:
    """What is not at its end."""
    if phase == Phase.FINE:
        return "its last iterates were being averaged"
    first, rate = method.settings.rate, float(fitted.shared[RATE])
    halved = round(math.log2(first / rate))
    times = "not halved yet" if not halved else "halved once" if halved == 1 else f"halved {halved} times"
    return f"the guide's parameters still moved, by steps of {rate:.2g} ({times})"


def _how_far(trace: Tensor) -> list[str]:
    """How much the bound has risen in the last rounds, with a standard error as of rounds that are independent."""
    bounds = trace[(trace[:, 0] > 0) & (trace[:, 1] <= Phase.FINE), 2]
    half = len(bounds) // 2
    if half < FEWEST:
        return []
    first, last = bounds[-2 * half : -half], bounds[-half:]
    risen, error = float(last.mean() - first.mean()), float(((first.var() + last.var()) / half).sqrt())
    how = "rose" if risen > 0 else "fell"
    still = "" if risen > 2 * error else ", no more than by chance"
    return [
        f"the bound {how} by {abs(risen):.2g} ± {error:.1g} between the halves of the last {2 * half} rounds, to "
        f"{float(last.mean()):,.1f}{still}"
    ]


def notes(method: Guided, fitted: Fitted, rounds: int) -> list[str]:
    """Whether a fit of so many rounds has arrived, and whether its guide is near to the posterior."""
    shared, settings = fitted.shared, method.settings
    phase = Phase(int(shared[PHASE]))
    if phase <= Phase.FINE:
        return [
            f"not arrived: its {counted(rounds, 'round')} ended while {_what(method, fitted, phase)}: say more rounds",
            *_how_far(shared[TRACE]),
        ]
    lines = [f"draws are the guide's: its bound is {float(shared[BOUND]):,.1f}, and its parameters are steady"]
    verdict = Verdict.read(shared)
    if verdict.points:
        return [*lines, *verdict.lines()]
    if not settings.check:
        why = "check=False"
    elif not method.p:
        why = "there are no globals to weigh"
    elif method.p > settings.most_globals:
        why = f"{method.p} globals are more than {settings.most_globals}"
    elif not method.checks:
        why = f"a client has {method.q} numbers"
    else:
        why = "some client was missing in each of the rounds that would have done it" if phase == Phase.DONE else (
            f"its {counted(rounds, 'round')} ended before"
        )  # fmt: skip
    return [*lines, f"not checked: how near the guide is to the posterior, since {why}"]
