"""How many points a study may evaluate on one data set at a site."""

from __future__ import annotations

from collections.abc import Collection

from hierfl.inference.method.base import Method
from hierfl.inference.options import Options

from ..study import Study
from .budgets import default_budget
from .policy import Policy

#: the word that an approval needs for it, and the policy's entry
EXPLORATION = "exploration"


def may_explore(policy: Policy, allowed: Collection[str]) -> bool:
    """Whether a study may ask at many points at once.

    Args:
        policy: of the site.
        allowed: words that were said beyond it.
    """
    return policy.exploration == "allow" or (policy.exploration == "approve" and EXPLORATION in allowed)


def budget_of(study: Study, method: Method, options: Options, policy: Policy, allowed: Collection[str]) -> int:
    """Points that may be evaluated on the data of a study, in all studies together.

    Args:
        study: what was agreed on.
        method: the study's, made for this site.
        options: the study's.
        policy: of the site, which may have a number for the family or the method.
        allowed: words that were said beyond it.

    Raises:
        UserError: for a family whose need is not known.
    """
    for name in (study.table["data"].get("family", ""), study.loaded.name):
        if name in policy.budget:
            return policy.budget[name]
    return default_budget(method, options, exploration=may_explore(policy, allowed))
