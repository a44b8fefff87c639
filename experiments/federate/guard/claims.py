"""What masks of this account have covered, what it has signed and opened: said once, whatever home it is asked in.

A mask that covers two different messages shows their difference. A home that was restored from a backup, or copied, has
the keys and lacks the newest record. So the record is the account's, which no copy of a home takes back.
"""

from __future__ import annotations

import hashlib
import hmac

from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.inference.engines.remote.refusals import Refused

from .ledger import Ledger
from .lines import Lines, waiting_lock

#: of the ledger's folder
CLAIMS = "masks"


class AccountClaims:
    """See :class:`~hierfl.inference.engines.remote.masks.claims.Claims`; kept in the account's ledger.

    Args:
        ledger: of the account.
        study: digest of the study.
        client: the site's name in it.
    """

    def __init__(self, ledger: Ledger, study: str, client: str) -> None:
        self.ledger = ledger
        self.path = ledger.folder / CLAIMS / f"{study}-{client}.jsonl"
        self._lines, self._values = Lines(self.path), dict[str, str]()

    def claim(self, what: str, value: str) -> None:
        """Notes a value, on the disk before it returns; the same again is no second one. The file has a keyed digest.

        Args:
            what: 1 to 200 printable ASCII characters.
            value: a digest.

        Raises:
            Refused: "answered", where another value is noted.
            UserError: for a damaged file.
        """
        keyed = hmac.new(self.ledger.secret, f"{what}\n{value}".encode(), hashlib.sha256).hexdigest()
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with waiting_lock(self.path.with_suffix(".lock")):
            self._catch_up()
            if (before := self._values.get(what)) is None:
                self._lines.append({"what": what, "value": keyed})
                self._values[what] = keyed
            elif before != keyed:
                raise Refused(f"another value is on record for {what.partition(' ')[0]}", "answered")

    def _catch_up(self) -> None:
        for line in self._lines.catch_up():
            try:
                self._values[str(line["what"])] = str(line["value"])
            except KeyError as error:
                raise UserError(f"{shown(self.path)} is damaged: a line lacks {error}") from error
