"""What a question costs, and its position in the account's ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hierfl.inference.engines.remote.points import points_of
from hierfl.inference.engines.remote.site import Site
from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.state import State

from ..study import Study
from ..study_site import Membership
from .answers import Slot
from .ledger import Charge, Ledger
from .replies import Refused
from .slots import values_of

#: bytes of the largest request, and the largest number of a restart record
LARGEST = 2**31
#: kind of the request that ends a study for its site
FINISH = "finish"


def takes_part(head: Mapping[str, Any], member: Membership) -> bool:
    """Whether a site's rows are evaluated for a question: under masks all are asked, and some of them for zeros.

    Args:
        head: of the request.
        member: which site of which study is asked.
    """
    entry = {"round": "training", "scores": "adding", "calibration": "adding"}.get(str(head.get("kind")), "")
    names = head.get(entry) if member.study.options("cpu").masked else None
    return not isinstance(names, list) or member.client in names


def charge_of(
    question: str, head: Mapping[str, Any], slot: Slot, tensors: State, member: Membership, data: str,
    site: Site | None,
) -> Charge:  # fmt: skip
    """A question as the ledger has it.

    Args:
        question: digest of it.
        head, tensors: of the request, of the right form.
        slot: its position in the study.
        member: which site of which study is asked.
        data: the row set, as the ledger names it.
        site: what answers; None before it knows what all have agreed on.

    Raises:
        Refused: for a restart record that is none.
    """
    restart = head.get("restart", 0)
    if not isinstance(restart, int) or isinstance(restart, bool) or not 0 <= restart < LARGEST:
        raise Refused("bounds", "its restart record is no number")
    points = 0
    if site is not None and takes_part(head, member):
        points = points_of(site.method, head, tensors)
    values = values_of(slot, tensors)
    return Charge(data, member.study.digest, member.client, slot.text, question, restart, values, points)


def charged(ledger: Ledger, charge: Charge, budget: int, study: Study) -> int:
    """Takes a question up; the points that it costs.

    The end of a study costs nothing once. Asked for again with other values it costs a point: where it is refused for
    its values, that says something of the rows.

    Args:
        ledger: of the account.
        charge: the question.
        budget: points that may be evaluated on its data.
        study: that it is of.

    Raises:
        AnsweredBefore: where another question has its position.
        OverBudget: where less is left.
    """
    kind = charge.slot.partition(" ")[0]
    mine = ledger.asked(charge.study, charge.client)
    if kind == FINISH and any(earlier.slot.startswith(f"{FINISH} ") for earlier in mine):
        charge = replace(charge, points=1)
    # A formula's message depends on nothing but the broadcast.
    return ledger.charge(charge, budget, free=kind == "round" and is_tabular(study.loaded.cls))
