"""That a site takes part in a study: who decided it, when, and on what exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from hierfl.files import make_folder, write_whole
from hierfl.schema import Schema, read_toml

#: of a site's home
APPROVALS = "approvals"
APPROVAL: Schema = {
    "study": str, "name": str, "roster": str, "method": str, "code": str, "policy": str, "data": str, "client": str,
    "by": str, "when": str, "allowed": [str], "rules": {"*": str}, "purpose?": str,
}  # fmt: skip
#: what each digest of an approval is of
WORDS = {
    "study": "study.toml", "roster": "the roster or a key on it", "method": "the method's code",
    "code": "the version of hierfl here", "policy": "policy.toml",
}  # fmt: skip


@dataclass(frozen=True)
class Approval:
    """What was approved.

    Attributes:
        study, roster, method, code, policy: digests of the study, of its roster and keys, of the method's code, of
            hierfl's own files, and of the policy.
        name: of the study.
        data: the row set, as the ledger names it.
        client: the site's name in the study.
        by, when: who approved it, and when.
        allowed: words that were said beyond the policy.
        rules: each rule of the policy, and its margin in words.
        purpose: what the study is for, as it was said when it was approved; empty where nothing was.
    """

    study: str
    roster: str
    method: str
    code: str
    policy: str
    name: str
    data: str
    client: str
    by: str
    when: str
    allowed: tuple[str, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    purpose: str = ""

    @classmethod
    def read(cls, home: Path, study: str) -> Approval | None:
        """That of a study; None where there is none.

        Args:
            home: the site's own folder.
            study: digest of the study.

        Raises:
            UserError: for a damaged file.
        """
        path = path_of(home, study)
        if not path.is_file():
            return None
        entries: dict[str, Any] = read_toml(path, APPROVAL)
        return cls(**{**entries, "allowed": tuple(entries["allowed"])})

    def write(self, home: Path) -> Path:
        """Puts it on record; its file."""
        path = path_of(home, self.study)
        make_folder(path.parent)
        table = {**asdict(self), "allowed": list(self.allowed), "rules": dict(self.rules)}
        write_whole(path, tomli_w.dumps(table).encode(), mode=0o600)
        return path

    def outdated(self, now: Mapping[str, str]) -> str:
        """What has changed since it was given, in words; empty where it is in force.

        Args:
            now: digests by the names of :data:`WORDS`.
        """
        changed = [WORDS[name] for name, value in now.items() if getattr(self, name) != value]
        return f"{' and '.join(changed)} changed since {self.by} approved it on {self.when}" if changed else ""


def path_of(home: Path, study: str) -> Path:
    """The path of a study's approval."""
    return home / APPROVALS / f"{study}.toml"
