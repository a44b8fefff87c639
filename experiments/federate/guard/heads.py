"""The account's ledger and the audit file of a home hold each other's heads: neither loses lines unnoticed.

The ledger has the head of the audit file, and each line of the audit file the heads of the ledger's counts. A count
that was cut, deleted or taken from an older backup would let studies spend points and epsilon again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from hierfl.errors import UserError
from hierfl.files import shown

from .audit import Audit
from .epsilon import EPSILON, EpsilonLedger
from .ledger import POINTS, ROWS, Ledger
from .lines import Lines


class Heads:
    """Checks and records both.

    Args:
        ledger: of the account.
        audit: of the home.
        key: fingerprint of the home's key.
    """

    def __init__(self, ledger: Ledger, audit: Audit, key: str) -> None:
        self.ledger, self.audit, self.key, self._epsilon = ledger, audit, key, EpsilonLedger(ledger)
        self._whole: bool | None = None  # not checked yet

    def check(self) -> None:
        """Refuses an audit file or a ledger that lacks what the other has seen of it.

        Audit files of versions before this check say nothing of the ledger, and pass.

        Raises:
            UserError: for lines that are gone or others, and for row sets that are gone.
        """
        self._whole = False
        self.audit.check(self.ledger.last_audit_head(self.key))
        for name, head in self.audit.spent.items():
            try:
                self._check_rows(head[0]) if name == ROWS else Lines(self.ledger.folder / name).check(head)
            except UserError as error:
                raise UserError(
                    f"{error}, and budgets would count from less: take the account's ledger "
                    f"({shown(self.ledger.folder)}) from a backup, or put the loss on record: hierfl federate audit "
                    f"{shown(self.audit.path.parent)} --accept NAME"
                ) from error
        self._whole = True

    def _check_rows(self, count: int) -> None:
        if (there := len(self.ledger.row_sets())) < count:
            raise UserError(f"{shown(self.ledger.folder / ROWS)} has {there} row sets, and it had {count}")

    def append(self, entries: Mapping[str, Any], *, accept: bool = False) -> None:
        """Adds a line to the audit file, with the ledger's heads; both files are on the disk when this returns.

        After a loss that nobody has accepted, the line repeats the earlier heads: a withdrawal, which is always
        possible, does not hide the loss.

        Args:
            entries: as of :meth:`.audit.Audit.append`.
            accept: whether a loss is accepted: the heads are those of what is left.
        """
        if self._whole is None:
            with contextlib.suppress(UserError):  # it is reported where the site starts
                self.check()
        self._whole = whole = self._whole or accept
        rows = len(self.ledger.row_sets()), ""
        now = {POINTS: self.ledger.head, EPSILON: self._epsilon.head, ROWS: rows} if whole else self.audit.spent
        head = self.audit.append({**entries, "spent": {name: list(head) for name, head in now.items()}})
        if whole:
            self.ledger.see(self.key, head)
