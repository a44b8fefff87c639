"""What can and what cannot be taken back of a study, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hierfl.plurals import counted

from ..guard.audit import Audit
from ..guard.home import Home
from ..guard.withdrawal import Withdrawal
from ..guard.withdrawn import FINISH
from ..study import Study
from .memory import kept_by_server


def answered(home: Home, study: str) -> list[dict[str, Any]]:
    """The audit file's lines of replies to a study's server, refusals among them."""
    return [line for line in Audit(home.folder).lines if line.get("study") == study and "reply" in line]


def words_of(left: Withdrawal, deleted: int, study: Study, sent: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was taken back, what was not, and what the server keeps; a line each.

    Args:
        left: the withdrawal.
        deleted: how many files were.
        study: what was agreed on.
        sent: lines of :func:`answered`.
    """
    given = [line for line in sent if not line["refused"] and not line.get("again")]
    rounds = sorted({int(line["round"]) for line in given if line["kind"] == "round"})
    over = any(line["kind"] == FINISH for line in given)
    design = getattr(study.data, "design", None)
    span = f", of rounds {rounds[0]} to {rounds[-1]}" if rounds else ""
    return [
        f"{left.client} has left {left.name}: decided by {left.by} on {left.when}.",
        "Taken back:",
        f"  Deleted here: {counted(deleted, 'file')} of this study; the audit file keeps their digests.",
        "  Whatever is asked from now on is refused (withdrawn), signed, while hierfl federate site runs.",
        "  An older copy of this folder refuses, too, on this account.",
        "Not taken back:",
        f"  {counted(len(given), 'answer', 'has', 'have')} left{span}. They are in sums, and sums cannot be undone.",
        "  The server may have kept each of them, and copies of the folders they went through have them, sealed.",
        f"  What the server's rules keep of them ({study.loaded.name}):",
        *(f"    {line}" for line in kept_by_server(study.loaded, study.table["settings"], design)),
        "  Sums before the first round (means, X'X) hold this site's rows for the rest of the study.",
        "  Points that were evaluated stay used: the budget of these rows is not given back.",
        "The study has ended. Ask the coordinator to delete the answers of this site."
        if over
        else "Ask the coordinator to take this site off the roster. The others approve that study.toml, and the server "
        "goes on with --resume.",
    ]
