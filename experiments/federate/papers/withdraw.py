"""A site leaves a study: what it has stored is deleted, and later requests are refused.

That it has left stands in its home and in its account's ledger, so that an older copy of the home does not answer
either. The audit file keeps a digest of every deleted file.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.file_lock import locked
from hierfl.files import shown, sync_folder

from ..contributions import now
from ..guard.audit import Audit
from ..guard.heads import Heads
from ..guard.home import SITE, STUDY_COPY, Home
from ..guard.ledger import Ledger
from ..guard.withdrawal import Withdrawal, withdrawal_of

#: files of a study's folder that say which study it was, and what went on in it
KEPT = (SITE, STUDY_COPY, "site.log", ".lock")


def withdraw(home: Home, folder: Path, by: str, ledger: Ledger) -> tuple[Withdrawal, int]:
    """Leaves a study. Called again it deletes what a killed process has left.

    Args:
        home: the site's own folder.
        folder: of the study in it.
        by: who decided it.
        ledger: of this account.

    Returns:
        What is on record, and how many files were deleted.

    Raises:
        UserError: for a folder without a home; where no one is named.
        Busy: where a process answers for this site.
    """
    member = study_entries(home, folder)
    if not by.strip():
        raise UserError("say who decides it: --by 'NAME'")
    with alone(folder, member["study"], member["client"], ledger):
        withdrawal = withdrawal_of(home, member["study"], member["client"], ledger)
        withdrawal = withdrawal or Withdrawal(**member, by=by.strip(), when=now())
        withdrawal.write(home, ledger)
        keep = (*KEPT, *(path.name for path in folder.glob("*.py")))
        deleted = digests_of(folder, keep)
        note(home, withdrawal.study, withdrawal.client, "withdraw", {"by": withdrawal.by, "deleted": deleted}, ledger)
        _delete(folder, keep)
    return withdrawal, len(deleted)


def study_entries(home: Home, folder: Path) -> dict[str, str]:
    """Digest and name of a study, and the site's name in it, as a study's folder in a home has them.

    Raises:
        UserError: for a folder from before homes, or one without an approval.
    """
    approval = home.approval_of(folder)
    if folder == home.folder or approval is None:
        raise UserError(f"{shown(folder)} has no approval: it takes part in no study, and can be deleted as it is")
    return {"study": approval.study, "name": approval.name, "client": approval.client}


@contextmanager
def alone(folder: Path, study: str, client: str, ledger: Ledger) -> Iterator[None]:
    """Holds a site's locks, so that no process answers for it meanwhile.

    Raises:
        Busy: where one does.
    """
    words = f"a process answers for {client} in {folder}: stop it first"
    with ExitStack() as stack:
        stack.enter_context(locked(ledger.lock_of(study, client), words))
        stack.enter_context(locked(folder / ".lock", words))
        yield


def digests_of(folder: Path, keep: tuple[str, ...] = (".lock",)) -> dict[str, str]:
    """Digests of a folder's files, 64 hexadecimal digits, by their positions in it.

    Args:
        folder: of a study.
        keep: names in it that are left out.
    """
    digests = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and relative.parts[0] not in keep:
            digests[relative.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def _delete(folder: Path, keep: tuple[str, ...]) -> None:
    for path in sorted(folder.iterdir()):
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    sync_folder(folder)


def note(home: Home, study: str, client: str, kind: str, entries: Mapping[str, Any], ledger: Ledger) -> None:
    """A line of the audit file for what was done at the site itself."""
    heads = Heads.of_home(ledger, Audit(home.folder), home.identity)
    heads.append({"study": study, "client": client, "kind": kind, **entries})
