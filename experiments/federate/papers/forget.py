"""Retention: what an ended study has left at a site is deleted.

The audit file, the counts of the ledger and the digests of the approval stay: a budget is not given back.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hierfl.errors import UserError
from hierfl.files import sync_folder
from hierfl.inference.engines.remote.site_state import STATE_FILE

from ..guard.audit import Audit
from ..guard.home import Home, has_ended
from ..guard.ledger import Ledger
from ..guard.withdrawal import withdrawal_of
from .withdraw import alone, digests_of, note, study_entries

#: of a home: studies that are being deleted
GOING = ".forgotten"


@dataclass(frozen=True)
class Forgotten:
    """What was deleted.

    Attributes:
        name: of the study.
        ended: when it had ended for this site.
        files: how many were deleted.
    """

    name: str
    ended: str
    files: int


def forget(home: Home, study: str, days: float | None, ledger: Ledger) -> list[Forgotten]:
    """Forgets ended studies.

    Args:
        home: the site's own folder.
        study: name of one; empty for all that have ended.
        days: those alone that ended so many days ago; None for all.
        ledger: of this account.

    Raises:
        UserError: for one that has not ended.
        Busy: where a process answers for one.
    """
    home.check_current()
    _clear(home)
    folders = [home.study_folder(study)] if study else home.studies()
    forgotten = []
    for folder in folders:
        ended = when_ended(home, folder, ledger)
        if ended is None:
            if study:
                raise UserError(
                    f"{study} has not ended for this site: hierfl federate withdraw {home.folder} --study {study} "
                    "takes the site out"
                )
            continue
        age = (datetime.now(UTC) - datetime.fromisoformat(ended)).total_seconds() / 86400
        if days is None or age >= days:
            forgotten.append(_forget(home, folder, ended, ledger))
    return forgotten


def when_ended(home: Home, folder: Path, ledger: Ledger) -> str | None:
    """The time at which a study ended for a site, by its own clock; None where it has not.

    Args:
        home: the site's own folder.
        folder: of the study in it.
        ledger: of this account.
    """
    member = study_entries(home, folder)
    if (left := withdrawal_of(home, member["study"], member["client"], ledger)) is not None:
        return left.when
    if not has_ended(folder):
        return None
    lines = [line for line in Audit(home.folder).lines if line.get("study") == member["study"]]
    finished = [line["when"] for line in lines if line.get("kind") == "finish" and not line.get("refused")]
    if finished:
        return str(finished[-1])
    written = (folder / STATE_FILE).stat().st_mtime
    return datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")


def _forget(home: Home, folder: Path, ended: str, ledger: Ledger) -> Forgotten:
    member = study_entries(home, folder)
    with alone(folder, member["study"], member["client"], ledger):
        approval = home.approval_of(folder)
        assert approval is not None  # as of study_entries
        files = digests_of(folder)
        note(home, member["study"], member["client"], "forget", {"ended": ended, "deleted": files}, ledger)
        # Margins say something of the rows.
        dataclasses.replace(approval, rules=dict.fromkeys(approval.rules, "forgotten")).write(home.folder)
    # Renamed at once: what a killed process leaves of it is no study any more.
    going = home.folder / GOING
    going.mkdir(mode=0o700, exist_ok=True)
    folder.rename(going / f"{folder.name}-{secrets.token_hex(4)}")
    sync_folder(folder.parent)
    _clear(home)
    return Forgotten(member["name"], ended, len(files))


def _clear(home: Home) -> None:
    """Deletes what was being deleted."""
    if (home.folder / GOING).exists():
        shutil.rmtree(home.folder / GOING)
        sync_folder(home.folder)
