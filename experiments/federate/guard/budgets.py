"""How many points a study may ask about one site's rows, where the site's policy says no other number.

Of mixed models that is what honest fits have been measured to need, by family (``budgets.toml``, written by
tests/support/honest_points.py) and by structure (``structures.toml``, tests/support/honest_structures.py), plus a
quarter. Of other methods the study says how many rounds and evaluations there
are, and it is these, plus a quarter. A plain model's settings say how many points it explores.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.method.capabilities import evaluated_points, has_fixed_sums, is_tabular, most_explored
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.schema import read_toml

#: what is given beyond need
MORE = 1.25
#: explored points of a study that a site has allowed to explore, beside the others, at least
EXPLORATION = 4096
#: sums at the end; questions of a calibration, at most
SUMS, QUESTIONS = 2, 64
#: rounds for each bound of a profile-likelihood interval
PROFILE_ROUNDS = 8
BUDGETS = Path(__file__).parent / "budgets.toml"
#: of structures that no family's fits have
STRUCTURES = Path(__file__).parent / "structures.toml"


def default_budget(method: Method, options: Options, *, exploration: bool = False) -> int:
    """Points of a data set.

    Args:
        method: the study's, at the site.
        options: the study's.
        exploration: whether the site has allowed the study to explore.

    Raises:
        UserError: for a family without a measured number.
    """
    evaluations = sum(options.evaluates(number) for number in range(1, options.rounds + 1))
    scored = len([split for split in options.splits if split != "train"])
    needed, more, exploration_points = options.rounds, 0, most_explored(method)
    if exploration_points is not None:
        more = exploration_points if exploration else 0
    elif is_tabular(method):
        measured = _measured(method)
        needed = int(measured["points"]) + PROFILE_ROUNDS * _ends(method) * int(measured.get("nodes", 1))
        if exploration and not has_fixed_sums(method):
            more = max(EXPLORATION, math.ceil(MORE * measured["explored"]))
        # A fit that is done is evaluated once more.
        evaluations = min(evaluations, int(measured["points"])) + 1
    needed += SUMS + evaluations * scored
    if options.calibrate != "none" or options.conformal:
        needed += QUESTIONS
    return math.ceil(MORE * needed) + more


def usual_need(method: Method, options: Options, *, explores: bool = False) -> int:
    """Points that a study is likely to ask about: of mixed models what 19 in 20 honest fits of the family have needed.

    Args:
        method: the study's, at the site.
        options: the study's.
        explores: whether the fit explores, for draws of the population.

    Raises:
        UserError: for a family without a measured number.
    """
    scored = len([split for split in options.splits if split != "train"])
    exploration_points = most_explored(method)
    if exploration_points is not None or not is_tabular(method):
        evaluations = sum(options.evaluates(number) for number in range(1, options.rounds + 1))
        return options.rounds + evaluations * scored + (exploration_points or 0)
    if options.dp != "none":
        return releases(method, options)
    measured = _measured(method)
    needed = int(measured.get("points_95", measured["points"])) + PROFILE_ROUNDS * _ends(method) * int(
        measured.get("nodes", 1)
    )
    if explores and not has_fixed_sums(method):
        needed += int(measured.get("explored_95", measured["explored"]))
    return needed + scored


def releases(method: Any, options: Options) -> int:
    """Messages of a formula's fit with noise: it asks nothing else."""
    return sum(part.releases for part in method.mechanisms(options))


def _measured(method: Any) -> dict[str, Any]:
    """What honest fits of the family have needed."""
    table, family = _table(), method.network.family
    if family not in table:
        raise UserError(f"no budget is known for the family {family}: give one in policy.toml, [budget] {family} = ...")
    own: dict[str, Any] = table[family]
    if method.network.spread:  # a search, whatever the response
        return _largest(own, _table(STRUCTURES)["own-spreads"])
    if not method.likelihood.searches_beta:  # in closed form a round is one point, whatever is above
        combined = method.inside or method.above or method.network.own or method.network.correlation
        return _largest(own, _table(STRUCTURES)["combined"]) if combined else own
    if not method.above:
        return own
    if not any(level.crossed for level in method.above):
        nodes: dict[str, Any] = own["regions"]  # nodes of groups of clients count
        return nodes
    # each round asks at all points of a stencil, of which there are more with more parameters; the family alone may
    # need more rounds than were measured with a factor that crosses the sites
    shared = method.shared(InitialWeights.for_network(method.network, 0))
    rounds, num_nodes = _largest(own, _table(STRUCTURES)["crossed"]), evaluated_points(method, shared)
    return {**rounds, **{name: rounds[name] * num_nodes for name in ("points", "points_95")}, "nodes": num_nodes}


def _largest(family: dict[str, Any], structure: dict[str, Any]) -> dict[str, Any]:
    """The larger of each number: not every family has been measured with every structure."""
    return {name: max(number, family.get(name, number)) for name, number in structure.items()}


@cache
def _table(path: Path = BUDGETS) -> dict[str, Any]:
    return read_toml(path, {"*": dict})


def _ends(method: Any) -> int:
    """Ends of profile-likelihood intervals."""
    return 2 * (method.parameters - len(method.network.fixed)) if method.settings.profile else 0
