"""How many points a study may evaluate on one data set at a site."""

from __future__ import annotations

from collections.abc import Collection

from hierfl.data.disclosure.rule import Rule
from hierfl.data.federated.study_data import SiteData
from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.options import Options
from hierfl.models import METHODS
from hierfl.responses.registry import RESPONSES

from ..study import Study
from ..study_data import MODEL
from .budgets import default_budget, usual_need
from .ledger import Ledger
from .policy import PLAIN, POLICY, Policy
from .rows import used

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
    for name in entries_of(study):
        if name in policy.budget:
            return policy.budget[name]
    return default_budget(method, options, exploration=may_explore(policy, allowed))


def entries_of(study: Study) -> list[str]:
    """Names that a policy's budget may have for a study: the family of a formula, the method; "model" of plain ones."""
    if study.table["data"]["kind"] == MODEL:
        return [PLAIN]
    names = study.table["data"].get("family", ""), study.loaded.name
    return [name for name in names if name in RESPONSES or name in METHODS]


def need_of(study: Study, method: Method, options: Options) -> int:
    """Points that a study is likely to ask about, see :func:`.budgets.usual_need`."""
    settings = study.table["settings"]
    return usual_need(method, options, explores=bool(settings.get("draws") or settings.get("population") == "bayes"))


def budget_rule(
    study: Study, rows: SiteData, policy: Policy, allowed: Collection[str], ledger: Ledger, client: str
) -> Rule:  # fmt: skip
    """Whether enough points are left of the data: a fit that runs out of them in the middle has spent them in vain.

    Args:
        study: what was agreed on.
        rows: the site's, read for it.
        policy: of the site.
        allowed: words that were said beyond it.
        ledger: of the account.
        client: the site's name in the study. What the study itself has used is a part of its need.
    """
    try:
        network = study.data.form_model(rows, study.loaded.cls.latent)[1]
        method, options = study.method(network), study.options("cpu")
        budget, need = budget_of(study, method, options, policy, allowed), need_of(study, method, options)
    except UserError as error:
        return Rule("budget", False, str(error))
    spent = used(rows, ledger)
    need = max(1, need - sum(charge.points for charge in ledger.asked(study.digest, client)))
    margin = f"{spent} of {budget} points were evaluated on these rows, in all studies; this study may need {need}"
    if spent + need <= budget:
        return Rule("budget", True, margin)
    ways = [f": {name} = {spent + need} in [budget] of {POLICY} allows it" for name in entries_of(study)]
    return Rule("budget", False, f"{margin}{ways[0] if ways else ''}")
