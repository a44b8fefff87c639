"""What an account has last seen of the audit file of each of its homes, and what its ledger's own files had then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.files import write_whole
from hierfl.schema import Schema, read_json

#: of the ledger's folder
HEADS = "heads"
#: how many lines a file has, and the digest of the last; of a folder how many files it has
Head = tuple[int, str]
HEAD: Schema = {"lines": int, "head": str, "counts?": {"*": list}}


class Seen:
    """Heads of audit files, in the account's ledger.

    Args:
        folder: of the ledger.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / HEADS

    def last_audit_head(self, key: str) -> Head | None:
        """The head of an audit file that this account has last seen; None for none.

        Args:
            key: the fingerprint of the home's key.

        Raises:
            UserError: for a damaged file.
        """
        path = self._head_of(key)
        if not path.is_file():
            return None
        last_seen: dict[str, Any] = read_json(path, HEAD)
        return last_seen["lines"], last_seen["head"]

    def see(self, key: str, head: Head, counts: Mapping[str, Head]) -> None:
        """Remembers a head, and what the ledger's own files have; it is on the disk when this returns."""
        path = self._head_of(key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        entries = {"lines": head[0], "head": head[1], "counts": counts}
        write_whole(path, json.dumps(entries).encode(), mode=0o600)

    def furthest(self) -> dict[str, Head]:
        """The most that the ledger's files had, as any home has seen them; earlier versions noted nothing.

        Raises:
            UserError: for a damaged file.
        """
        furthest: dict[str, Head] = {}
        for path in sorted(self.folder.glob("*.json")):
            for name, (count, digest) in read_json(path, HEAD).get("counts", {}).items():
                if int(count) > furthest.get(name, (0, ""))[0]:
                    furthest[name] = int(count), str(digest)
        return furthest

    def recount(self, counts: Mapping[str, Head]) -> None:
        """Takes these counts for what every home has seen: a person has accepted that lines were lost."""
        for path in sorted(self.folder.glob("*.json")):
            entries = read_json(path, HEAD)
            self.see(path.stem, (entries["lines"], entries["head"]), counts)

    def _head_of(self, key: str) -> Path:
        return self.folder / f"{key.replace(' ', '')}.json"
