"""A site that has left its study: it opens what its server asks, and refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..masks import forget_masks
from ..study_site import Membership
from .audit import Audit
from .gate import ENDED, Gate
from .home import Home
from .ledger import Ledger
from .replies import Asked, Refused
from .withdrawal import Withdrawal, withdrawal_of

#: the request that ends a study for a site
FINISH = "finish"


class WithdrawnGate(Gate):
    """See :class:`~.gate.Gate`; it needs neither data nor state.

    Args:
        home: the site's own folder.
        folder: of the study in it.
        left: that the site has left.
        ledger: of this account.
    """

    patient = True

    def __init__(self, home: Home, folder: Path, left: Withdrawal, ledger: Ledger) -> None:
        self.left, self._over = left, any(_heard_end(line, left) for line in Audit(home.folder).lines)
        super().__init__(home, folder, ledger=ledger)

    def _load(self) -> None:
        self.member = Membership.read(self.folder, finished=False)

    @property
    def ended(self) -> bool:
        """Whether the study has, so that nothing more is to be refused."""
        return self._over

    @property
    def closed(self) -> str:
        """Why it takes no part in the end."""
        return f"{self.left.by} has withdrawn on {self.left.when}"

    def _answer(self, asked: Asked) -> bytes:
        _, head, _ = self._opened(asked)
        self._over = head.get("kind") == ENDED
        raise Refused("withdrawn", self.closed)


def _heard_end(line: Mapping[str, Any], left: Withdrawal) -> bool:
    """Whether a line of the audit file is the end of the study, which is not said twice."""
    request = line.get("study"), line.get("client"), line.get("kind")
    return request == (left.study, left.client, FINISH) and line.get("refused") in ("", "withdrawn")


def gate_of(home: Home, folder: Path, ledger: Ledger, device: str = "cpu") -> Gate:
    """What answers for a site in a study, or refuses.

    Args:
        home: the site's own folder.
        folder: of the study in it.
        ledger: of this account.
        device: that computes.

    Raises:
        UserError: as :class:`~.gate.Gate`.
    """
    approval = home.approval_of(folder)
    left = approval and withdrawal_of(home, approval.study, approval.client, ledger)
    if left:
        return WithdrawnGate(home, folder, left, ledger)
    gate = Gate(home, folder, ledger=ledger, device=device)
    if gate.ended:  # killed as it ended, it may have keys still
        forget_masks(folder)
    return gate
