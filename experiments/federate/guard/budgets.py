"""How many points a study may ask about one site's rows, where the site's policy says no other number.

Of mixed models that is what honest fits have been measured to need, by family (``budgets.toml``, written by
tests/support/honest_points.py), plus a quarter. Of other methods the study says how many rounds and evaluations there
are, and it is these, plus a quarter.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.method.capabilities import has_fixed_sums, is_tabular
from hierfl.inference.options import Options
from hierfl.schema import read_toml

#: what is given beyond need
MORE = 1.25
#: explored points of a study that a site has allowed to explore, beside the others
EXPLORATION = 4096
#: sums at the end; questions of a calibration, at most
SUMS, QUESTIONS = 2, 64
#: rounds for each bound of a profile-likelihood interval
PROFILE_ROUNDS = 8
BUDGETS = Path(__file__).parent / "budgets.toml"


def default_budget(method: Method, options: Options, *, exploration: bool = False) -> int:
    """Points of a data set.

    Args:
        method: the study's, at the site.
        options: the study's.
        exploration: whether the site has allowed the study to explore.

    Raises:
        UserError: for a family without a measured number.
    """
    rounds = _measured(method) if is_tabular(method) else options.rounds
    evaluations = sum(options.evaluates(number) for number in range(1, options.rounds + 1)) + 1
    needed = min(rounds, options.rounds) + SUMS
    if is_tabular(method):
        needed = rounds + SUMS
        evaluations = min(evaluations, rounds)
    needed += evaluations * len([split for split in options.splits if split != "train"])
    if options.calibrate != "none" or options.conformal:
        needed += QUESTIONS
    more = EXPLORATION if exploration and not has_fixed_sums(method) else 0
    return math.ceil(MORE * needed) + more


def _measured(method: Any) -> int:
    """Points with derivatives that a fit of the family needs, bounds of intervals among them."""
    table, family = read_toml(BUDGETS, {"*": dict}), method.network.family
    if family not in table:
        raise UserError(f"no budget is known for the family {family}: give one in policy.toml, [budget] {family} = ...")
    held = table[family]
    if method.above and not has_fixed_sums(method):  # (nodes of the groups of clients count)
        held = held.get("regions", held)
    ends = 2 * (method.parameters - len(method.network.fixed)) if method.settings.profile else 0
    return int(held["points"]) + PROFILE_ROUNDS * ends * _nodes(held)


def _nodes(held: dict[str, Any]) -> int:
    return int(held.get("nodes", 1))
