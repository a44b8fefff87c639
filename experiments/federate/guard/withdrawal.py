"""That a site has left a study: on record in its home, and in its account's ledger."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from hierfl.files import make_folder, write_whole
from hierfl.schema import Schema, read_toml

from .home import WITHDRAWN, Home
from .ledger import Ledger

WITHDRAWAL: Schema = {"study": str, "name": str, "client": str, "by": str, "when": str}


@dataclass(frozen=True)
class Withdrawal:
    """That a site has left a study.

    Attributes:
        study: digest of the study.
        name: of the study.
        client: the site's name in it.
        by, when: who decided it, and when.
    """

    study: str
    name: str
    client: str
    by: str
    when: str

    def write(self, home: Home, ledger: Ledger) -> None:
        """Puts it on record; it is on the disk when this returns. An older copy of the home does not escape it."""
        for path in reversed(_places(home, self.study, self.client, ledger)):
            make_folder(path.parent)
            write_whole(path, tomli_w.dumps(asdict(self)).encode(), mode=0o600)


def withdrawal_of(home: Home, study: str, client: str, ledger: Ledger) -> Withdrawal | None:
    """That a site has left a study; None where it has not.

    Args:
        home: the site's own folder.
        study: digest of the study.
        client: the site's name in it.
        ledger: of this account.

    Raises:
        UserError: for a damaged file.
    """
    for path in _places(home, study, client, ledger):
        if path.is_file():
            return Withdrawal(**read_toml(path, WITHDRAWAL))
    return None


def _places(home: Home, study: str, client: str, ledger: Ledger) -> list[Path]:
    return [home.folder / WITHDRAWN / f"{study}.toml", ledger.folder / WITHDRAWN / f"{study}-{client}.toml"]
