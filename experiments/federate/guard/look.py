"""A look at a site's audit file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hierfl.errors import UserError
from hierfl.files import shown

from .audit import ACCEPTED, Audit
from .heads import Heads
from .home import Home
from .ledger import Ledger


def audited(home: Home, accept: str = "", ledger: Ledger | None = None) -> Audit:
    """The audit file of a home, verified.

    Args:
        home: the site's own folder.
        accept: who accepts that lines of the audit file or of the ledger were lost; empty where none may be.
        ledger: of this account.

    Raises:
        UserError: for a gap, an edit, or lines of the audit file or the ledger that were seen and are gone.
    """
    audit = Audit(home.folder)
    heads = Heads.of_home(ledger or Ledger(), audit, home.identity)
    last_seen = heads.last_audit_head()
    if not accept:
        heads.check()
    elif losses := list(heads.losses()):
        entries = {"kind": ACCEPTED, "by": accept, "reason": "; ".join(losses), "seen": list(last_seen or ())}
        heads.append(entries, accept=True)
    else:
        raise UserError(f"{home.folder} has lost no line: there is nothing to accept")
    return audit


def lines_of(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each in one line of text."""
    for line in lines:
        parts = [str(line.get("line")), str(line.get("when")), str(line.get("kind"))]
        if line.get("kind") == "approval":
            parts.append(f"study {str(line.get('study'))[:8]} by {line.get('by')}")
        elif line.get("kind") == ACCEPTED:
            parts.append(f"by {line.get('by')}: {line.get('reason')}")
        elif "deleted" in line:  # a withdrawal, or what was forgotten
            by = f" by {line['by']}" if "by" in line else ""
            parts.append(f"study {str(line.get('study'))[:8]}{by}: {len(line['deleted'])} files")
        else:
            how = f"refused ({line['refused']}): {line.get('reason')}" if line.get("refused") else "answered"
            again = ", as before" if line.get("again") else ""
            parts += [
                f"study {str(line.get('study'))[:8]}",
                f"round {line.get('round')}",
                f"{how}{again}",
                f"{line.get('points', 0)} points",
            ]
            parts.append(f"request {str(line.get('request'))[:16]} reply {str(line.get('reply'))[:16]}")
        yield shown("  ".join(parts))
