"""The account's ledger and the audit file of a home hold each other's heads: neither loses lines unnoticed.

The ledger has the head of each home's audit file and, beside it, what its own files had then. Each line of the audit
file has the heads of the ledger's files. A count that was cut, deleted or taken from an older backup would let studies
spend points and epsilon again. Without its record of masks a server could ask for a sum once more without this site,
and the difference of the two sums is this site's part. A home that is new sees what the ledger says of itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.inference.engines.remote.keys import Identity

from .approval import APPROVALS
from .audit import Audit
from .claims import CLAIMS
from .epsilon import EPSILON, EpsilonLedger
from .home import WITHDRAWN
from .ledger import POINTS, ROWS, Ledger
from .lines import Lines
from .seen import HEADS, Head, Seen

#: folders of the ledger whose files are counted, and what one file is
FOLDERS = {ROWS: "row sets", WITHDRAWN: "withdrawals"}
#: what follows from a loss, by the folder or file that has lost something
FOLLOWS = {
    CLAIMS: "a sum could be asked for again without this site", WITHDRAWN: "a study that was left would be answered",
    HEADS: "an older copy of this home would go on unnoticed",
}  # fmt: skip
BUDGETS = "budgets would count from less"


class Heads:
    """Checks and records both.

    Args:
        ledger: of the account.
        audit: of the home.
        key: fingerprint of the home's key.
        earlier: those of the keys that rotations have moved aside.
    """

    def __init__(self, ledger: Ledger, audit: Audit, key: str, earlier: Sequence[str] = ()) -> None:
        self.ledger, self.audit, self.key, self._epsilon = ledger, audit, key, EpsilonLedger(ledger)
        self._keys = [key, *earlier]
        self.seen = Seen(ledger.folder)
        self._masks: dict[str, Lines] = {}
        self._whole: bool | None = None  # not checked yet

    @classmethod
    def of_home(cls, ledger: Ledger, audit: Audit, identity: Identity) -> Heads:
        """Those of a home by its keys, of which some may have been moved aside.

        Args:
            ledger: of the account.
            audit: of the home.
            identity: the home's keys.
        """
        earlier = [rotated.card.fingerprint for rotated in Identity.earlier(audit.path.parent)]
        return cls(ledger, audit, identity.card.fingerprint, earlier)

    def last_audit_head(self) -> Head | None:
        """The head of the audit file that the account has last seen, under whichever of the home's keys."""
        heads = [head for key in self._keys if (head := self.seen.last_audit_head(key)) is not None]
        return max(heads, default=None)

    def check(self) -> None:
        """Refuses an audit file or a ledger that lacks what the other, or the ledger itself, has seen of it.

        Audit files of versions before this check say nothing of the ledger, and pass.

        Raises:
            UserError: for lines that are gone or others, and for files that are gone.
        """
        self._whole = False
        for loss in self.losses():
            raise UserError(loss)
        self._whole = True

    def losses(self) -> Iterator[str]:
        """Whatever was seen and is gone, each in one line."""
        home = self.audit.path.parent
        accept = f"put the loss on record: hierfl federate audit {shown(home)} --accept NAME"
        try:
            self.audit.check(self.last_audit_head())
        except UserError as error:
            yield str(error)
        if not self.audit.head[0] and any((home / APPROVALS).glob("*.toml")):
            yield f"{shown(self.audit.path)} has no line, and studies were approved here: it was deleted: {accept}"
        for name, heads in self._expected().items():
            try:
                for head in heads:
                    self._check(name, head)
            except UserError as error:
                follows = FOLLOWS.get(name.partition("/")[0], BUDGETS)
                remedy = f"take the account's ledger ({shown(self.ledger.folder)}) from a backup"
                yield f"{error}, and {follows}: {remedy}, or {accept}"

    def _expected(self) -> dict[str, set[Head]]:
        """Heads of each file that there must be: those of the audit file, and the furthest that the ledger has."""
        expected = {name: {head} for name, head in self.audit.spent.items()}
        for name, head in self.seen.furthest().items():
            expected.setdefault(name, set()).add(head)
        return expected

    def _check(self, name: str, head: Head) -> None:
        if name == HEADS:
            if head[0] and self.last_audit_head() is None:
                raise UserError(f"{shown(self.ledger.folder / HEADS)} has no line about {shown(self.audit.path)}")
        elif name in FOLDERS:
            if (num_files := self._files(name)) < head[0]:
                path = shown(self.ledger.folder / name)
                raise UserError(f"{path} has {num_files} {FOLDERS[name]}, and it had {head[0]}")
        else:
            Lines(self.ledger.folder / name).check(head)

    def _files(self, name: str) -> int:
        return len(self.ledger.row_sets()) if name == ROWS else len(list((self.ledger.folder / name).glob("*.toml")))

    def append(self, entries: Mapping[str, Any], *, accept: bool = False) -> None:
        """Adds a line to the audit file, with the ledger's heads; both files are on the disk when this returns.

        After a loss that no one has accepted, the line has no heads, and the earlier ones stay: a withdrawal, which is
        always possible, does not hide the loss.

        Args:
            entries: as of :meth:`.audit.Audit.append`.
            accept: whether a loss is accepted: the heads are those of what is left.
        """
        if self._whole is None:
            with contextlib.suppress(UserError):  # it is reported where the site starts
                self.check()
        self._whole = whole = self._whole or accept
        if not whole:
            self.audit.append({**entries, "spent": {}})
            return
        counts, before = self._counts(accept), self.audit.spent
        # a line of each masked study of the account in each line would make the file long
        now = {k: v for k, v in counts.items() if not k.startswith(f"{CLAIMS}/") or before.get(k) != v}
        now[HEADS] = int(self.last_audit_head() is not None), ""
        head = self.audit.append({**entries, "spent": {name: list(head) for name, head in now.items()}})
        self.seen.see(self.key, head, counts)
        if accept:
            self.seen.recount(counts)

    def _counts(self, accept: bool) -> dict[str, Head]:
        """Heads of the ledger as it is now."""
        counts = {name: (self._files(name), "") for name in FOLDERS}
        counts |= {POINTS: self.ledger.head, EPSILON: self._epsilon.head}
        names = {f"{CLAIMS}/{path.name}" for path in (self.ledger.folder / CLAIMS).glob("*.jsonl")}
        if accept:
            names |= {name for name in self._expected() if name.startswith(f"{CLAIMS}/")}
        return counts | dict(self._mask_heads(names))

    def _mask_heads(self, names: Iterable[str]) -> Iterator[tuple[str, Head]]:
        for name in names:
            lines = self._masks.setdefault(name, Lines(self.ledger.folder / name))
            lines.catch_up()
            yield name, lines.head
