"""Noise at a site's gate and in its policy: what a study spends, and what is left of it for these rows."""

from __future__ import annotations

from collections.abc import Iterator

from hierfl.data.disclosure.row_hashes import row_hashes
from hierfl.data.disclosure.rule import Rule
from hierfl.data.federated.study_data import SiteData
from hierfl.errors import UserError
from hierfl.inference.engines.remote.site import Site

from ...run_folder.dp_lines import MOST_DELTA
from ..public_sums import noisy_plan
from ..study import Study
from .answers import Slot
from .epsilon import ROUNDING, ComputedBefore, EpsilonLedger
from .ledger import Charge, Ledger, OverBudget
from .policy import POLICY, Policy
from .replies import Refused


def charge_noise(ledger: Ledger, asked: Charge, slot: Slot, site: Site | None, policy: Policy, clients: int) -> None:
    """Charges a round of a study with noise, before it is computed; other questions have no noise, or no answer.

    Args:
        ledger: of the account.
        asked: the question.
        slot: its position in the study.
        site: what answers; None before it knows what all have agreed on.
        policy: of the site.
        clients: on the roster.

    Raises:
        Refused: where the plan or the budget has no more.
    """
    if site is None or slot.kind != "round" or site.plate.privacy is None:
        return
    options, plan = site.options, site.plate.privacy.plan
    units = sum(site.plate.federation.sizes()) if options.dp == "site" else clients
    book, at, most = EpsilonLedger(ledger), site.state.round, MOST_DELTA / max(1, units)
    try:
        book.charge(asked, plan, options.rounds, policy.largest_epsilon, at=at, largest_delta=most)
    except OverBudget as error:
        raise Refused("budget", str(error)) from error
    except ComputedBefore as error:
        raise Refused("answered", str(error)) from error


def note_answered(ledger: Ledger, study: Study, client: str, slot: Slot) -> None:
    """Puts on record that a round's reply is on the disk: it is on record when this returns."""
    if slot.kind == "round" and study.options("cpu").dp != "none":
        EpsilonLedger(ledger).answered(study.digest, client, slot.text)


def noise_rules(study: Study, site: SiteData, policy: Policy, ledger: Ledger, client: str) -> Iterator[Rule]:
    """Whether the epsilon of a study with noise is left for these rows; none for a study without.

    Args:
        study: what was agreed on.
        site: the site's rows, read for it.
        policy: of the site.
        ledger: of the account.
        client: the site's name in the study.
    """
    options = study.options("cpu")
    try:
        plan = noisy_plan(study)
    except UserError as error:
        yield Rule("epsilon", False, str(error))
        return
    if plan is None:
        return
    rows = site.rows if options.dp == "site" else len(study.clients)
    spent, deltas = EpsilonLedger(ledger).spent(row_hashes(site, ledger.secret), but=(study.digest, client))
    holds = (deltas + plan.delta) * rows <= MOST_DELTA * (1 + ROUNDING)
    others = f" and {deltas:g} in other studies of them" if deltas else ""
    yield Rule("delta", holds, f"{plan.delta:g}{others}, for each of {rows}: at most {MOST_DELTA:g} in all")
    largest = policy.largest_epsilon
    margin = f"{spent:.3g} of {largest:g} is spent on these rows, in all studies; this study spends {plan.epsilon:.3g}"
    holds = spent + plan.epsilon <= largest * (1 + ROUNDING)
    yield Rule("epsilon", holds, margin if holds else f"{margin}: largest_epsilon of {POLICY} has to allow it")
