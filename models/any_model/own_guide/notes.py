"""What a reader has to know of a fit with a user's guide, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierfl.inference.evaluation.fitted import Fitted

from ..names import BOUND, PHASE, Phase
from ..verdict import Verdict

if TYPE_CHECKING:
    from .guided import Guided


def notes(method: Guided, fitted: Fitted, rounds: int) -> list[str]:
    """Whether a fit of so many rounds has arrived, and whether its guide is near to the posterior."""
    shared, settings = fitted.shared, method.settings
    phase = Phase(int(shared[PHASE]))
    if phase <= Phase.FINE:
        return [f"not arrived: its {rounds} rounds ended while the guide's parameters still moved: say more rounds"]
    found = [f"draws are the guide's: its bound is {float(shared[BOUND]):,.1f}, and its parameters are steady"]
    verdict = Verdict.read(shared)
    if verdict.points:
        return [*found, *verdict.lines()]
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
            f"its {rounds} rounds ended before"
        )  # fmt: skip
    return [*found, f"not checked: how near the guide is to the posterior, since {why}"]
