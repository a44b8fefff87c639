"""A site's one folder, its home: keys, policy, pinned cards, audit file, approvals, and a folder for each study."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from hierfl.errors import UserError, unknown
from hierfl.files import make_folder, shown, write_whole
from hierfl.inference.engines.remote.keys import KEY_FILE, Identity, PublicCard
from hierfl.inference.engines.remote.preparation import CLOSED_FILE
from hierfl.inference.engines.remote.site_state import STATE_FILE
from hierfl.inference.engines.remote.wire import Unreadable, header
from hierfl.schema import read_toml

from .approval import APPROVALS, Approval

if TYPE_CHECKING:
    from ..study import Study

#: of a home
KNOWN, STUDIES, WITHDRAWN = "known.toml", "studies", "withdrawn"
#: of a study's folder in it
SITE, STUDY_COPY = "site.toml", "study.toml"


class Home:
    """A site's own folder.

    Args:
        folder: of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def identity(self) -> Identity:
        """The site's keys.

        Raises:
            UserError: where there are none.
        """
        return Identity.load(self.folder)

    def check_keys(self) -> None:
        """Refuses a folder without keys.

        Raises:
            UserError: for one.
        """
        Identity.load(self.folder)

    @property
    def is_site_home(self) -> bool:
        """Whether the folder is a site's, also one from before homes."""
        return (self.folder / SITE).is_file() or (self.folder / KEY_FILE).is_file()

    # -- pinned cards -------------------------------------------------------------------------------------------

    def known(self) -> dict[str, PublicCard]:
        """Cards that were pinned here, by name.

        Raises:
            UserError: for a damaged file.
        """
        path = self.folder / KNOWN
        if not path.is_file():
            return {}
        cards = {name: PublicCard.read(text) for name, text in read_toml(path, {"*": str}).items()}
        if strange := [name for name, card in cards.items() if card.name != name]:
            raise UserError(f"{path} is damaged: the card of {strange[0]} has another name")
        return cards

    def known_with(self, cards: Iterable[PublicCard]) -> dict[str, PublicCard]:
        """Pinned cards with more of them, and with the site's own, which it may have rotated.

        Raises:
            UserError: for a name that is pinned with other keys.
        """
        own = self.identity.card
        others = {name: card for name, card in self.known().items() if name != own.name}
        return pinned_with(others, (*cards, own))

    def pin(self, cards: Iterable[PublicCard]) -> None:
        """Pins cards, beside those that are.

        Raises:
            UserError: for a name that is pinned with other keys.
        """
        pinned = self.known_with(cards)
        text = tomli_w.dumps({name: card.text for name, card in sorted(pinned.items())})
        write_whole(self.folder / KNOWN, text.encode(), mode=0o600)

    # -- studies ------------------------------------------------------------------------------------------------

    def folder_of(self, study: Study) -> Path:
        """The folder of a study in this home, whether it is there or not."""
        return self.folder / STUDIES / f"{re.sub(r'[^A-Za-z0-9_-]', '_', study.name)[:60]}-{study.digest[:8]}"

    def studies(self) -> list[Path]:
        """Folders of all studies that were approved here, whatever has become of them."""
        return sorted(path.parent for path in (self.folder / STUDIES).glob(f"*/{SITE}"))

    def study_folder(self, study: str = "") -> Path:
        """The folder of a study, to predict from and to report.

        Args:
            study: its name, or that of its folder; empty for the only one.

        Raises:
            UserError: where there is none, or there are several; a folder from before homes is its own study's.
        """
        if (self.folder / SITE).is_file():
            return self.folder
        return self._single_study(
            self.studies(), study, f"{self.folder} has no study: none was approved here, or it was forgotten"
        )

    def running(self, study: str = "") -> Path:
        """The folder of an approved study that has not ended, to take part in; where all have, of one that has.

        Args:
            study: its name, or that of its folder; empty for the only one.

        Raises:
            UserError: as for :meth:`study_folder`; for a folder from before homes.
        """
        self.check_current()
        going = [path for path in self.studies() if not has_ended(path) and not self.has_left(path)]
        if not self.studies():
            self.check_keys()  # a folder of another name is a slip, and has none
        lacking = (
            f"no study is approved in {self.folder}: hierfl federate approve {self.folder} --study study.toml --data "
            "FILE --by NAME"
        )
        return self._single_study((going or self.studies()) if not study else self.studies(), study, lacking)

    def check_current(self) -> None:
        """Refuses a folder from before homes.

        Raises:
            UserError: for one.
        """
        if (self.folder / SITE).is_file():
            raise UserError(
                f"{self.folder} is from before sites had keys: it predicts and reports. To take part, begin a new "
                "folder: hierfl federate keys DIR --name NAME"
            )

    def has_left(self, folder: Path) -> bool:
        """Whether this site has withdrawn from a study, as its home says."""
        approval = self.approval_of(folder)
        return approval is not None and (self.folder / WITHDRAWN / f"{approval.study}.toml").is_file()

    def _single_study(self, folders: list[Path], study: str, lacking: str) -> Path:
        if not folders:
            raise UserError(lacking)
        names = {path: _name_of(path) for path in folders}
        if study:
            folders = [path for path in folders if study in (names[path], path.name)]
            if not folders:
                raise unknown(f"study in {self.folder}:", study, sorted({*names.values()}))
        if len(folders) > 1:
            choices = ", ".join(path.name if study else shown(names[path]) for path in folders)
            raise UserError(f"{self.folder} has several studies; say --study NAME: {choices}")
        return folders[0]

    def approval_of(self, folder: Path) -> Approval | None:
        """The approval of a study by its folder in this home; None where there is none."""
        digest = folder.name.rpartition("-")[2]
        files = sorted((self.folder / APPROVALS).glob(f"{digest}*.toml"))
        return Approval.read(self.folder, files[0].stem) if len(digest) == 8 and len(files) == 1 else None

    def __repr__(self) -> str:
        return f"Home({str(self.folder)!r})"


def home_of(folder: Path) -> Home | None:
    """The home that a study's folder is in; None for a folder from before homes."""
    absolute = folder.absolute()
    return Home(absolute.parents[1]) if absolute.parent.name == STUDIES else None


def pinned_with(before: Mapping[str, PublicCard], cards: Iterable[PublicCard]) -> dict[str, PublicCard]:
    """Cards with more of them.

    Raises:
        UserError: for a name that is pinned with other keys.
    """
    pinned = dict(before)
    for card in cards:
        if pinned.get(card.name, card) != card:
            raise UserError(
                f"{card.name} is pinned with other keys ({pinned[card.name].fingerprint}): ask whether it has changed "
                f"them; if so, remove it from {KNOWN} and pin the new card"
            )
        pinned[card.name] = card
    return pinned


def has_ended(folder: Path) -> bool:
    """Whether a study has ended for its site."""
    path = folder / STATE_FILE
    if (folder / CLOSED_FILE).is_file():  # without this site
        return True
    if not path.is_file():
        return False
    try:
        return header(path.read_bytes()).get("ended") is True
    except Unreadable as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _name_of(folder: Path) -> str:
    table: dict[str, Any] = read_toml(folder / STUDY_COPY, {"name": str})
    return str(table["name"])


def private_home(folder: Path) -> None:
    """Makes a home, into which this user alone may look."""
    make_folder(folder)
    folder.chmod(0o700)
