"""Steps on what is a client's own in PFedHB: posteriors of its head, features and adapters, and of what labels mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hierfl.inference.local.at_prediction import AtPrediction
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.cut import Cut
from hierfl.inference.local.without_fold import SwitchedOn, WithoutFold
from hierfl.inference.server.rules.base import AggregationRule

from .adapters import Adapted
from .heads import Heads
from .rho_nodes import NODES, DrawsOfNodes, RhoNodes, at_nodes
from .turns import InTurns, Restart


def client_steps(method: Any, final: bool = False) -> list[LocalStep]:
    """The steps, each as if its part were in the model; none of a part that stays out.

    Args:
        method: PFedHB.
        final: whether they are the last ones, after the rounds.
    """
    steps: list[LocalStep] = []
    for name, part in own_parts(method).items():
        own: list[LocalStep] = [part.step(final)]
        if isinstance(part, Heads):
            away = "w_j_away" if method.settings.points > 1 else ""
            newton = part.step(final)
            own = [Restart(newton, "heads.restart", "mu", away, "w")]
            own += [DrawsOfNodes(newton) if final else at_nodes(newton)] if method.nodes else []
        for step in own:
            step = SwitchedOn(step, f"parts.{name}") if name in method.auto else step
            step = Cut(method.plain, step) if method.plain is not method else step
            if method.adapters and name != "adapters":
                step = Adapted(method.adapters, step, "parts.adapters" if "adapters" in method.auto else "")
            step = _kept_apart(method, step, final)
            turns = method.turns(name)
            steps.append(InTurns(step, replace(turns, every=1) if final else turns))
    return [*steps, *([_kept_apart(method, method.confusion.step(final), final)] if method.confusion else [])]


def own_parts(method: Any) -> dict[str, Any]:
    """What has posteriors at clients by steps, and spreads by scoring, in the order in which they move."""
    parts = {name: getattr(method, name) for name in ("heads", "features", "outcome", "adapters")}
    return {name: part for name, part in parts.items() if part}


def own_rules(method: Any) -> dict[str, AggregationRule]:
    """How their spreads are learned, and that over which draws of small heads are averaged; none of a fixed prior."""
    if method.settings.prior == "fixed":
        return {}
    rules: dict[str, AggregationRule] = {
        name: part.rule(method.turns(name)) for name, part in own_parts(method).items()
    }  # fmt: skip
    return {**rules, **({NODES: RhoNodes(method.settings.rho_scale, method.turns("heads"))} if method.nodes else {})}


def _kept_apart(method: Any, step: LocalStep, final: bool) -> LocalStep:
    """The step at the weights that predict; while parts are judged, without the rows that judge them."""
    step = AtPrediction(step)
    return WithoutFold(step, method.settings.judged) if method.auto and not final else step
