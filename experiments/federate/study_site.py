"""A site of a study: its own file, its own folder, and what it answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
import torch

from hierfl.data.federated.model_data import ModelData
from hierfl.data.federated.study_data import SiteData
from hierfl.data.federated.sums import NamedSums
from hierfl.data.federated.support import SUPPORT
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.file_lock import locked
from hierfl.files import make_folder, write_whole
from hierfl.inference.engines.remote.preparation import PreparedSite
from hierfl.inference.engines.remote.refusals import Refused
from hierfl.inference.engines.remote.site import Site
from hierfl.inference.state import State
from hierfl.plurals import counted
from hierfl.schema import read_toml

from ..messages import EscapedFormatter
from .guard.home import SITE, STUDY_COPY, home_of
from .public_sums import is_public, public_sums, same_sums
from .study import STUDY, Study
from .study_data import check_rows
from .study_rows import most_rows
from .support import Support

#: of a study's folder at a site
LOG = "site.log"


@dataclass(frozen=True)
class Membership:
    """Which site of which study a folder is of.

    Attributes:
        folder: the site's own.
        study: what was agreed on; its copy in the folder.
        client: the site's name.
        data: its own file.
        reading: what a table's file does not say of itself.
    """

    folder: Path
    study: Study
    client: str
    data: Path
    reading: Reading = field(default_factory=Reading)

    @classmethod
    def read(cls, folder: Path, *, trust_code: bool = False, finished: bool = True) -> Membership:
        """What the folder says. A method's file runs where it was approved in the folder's home.

        Args:
            folder: of the study, at the site.
            trust_code: whether to run a method's file that this user has neither named nor run before.
            finished: whether it is for predictions and reports alone, see :meth:`Study.read`.

        Raises:
            UserError: for a folder that is no site's.
        """
        if not (folder / SITE).is_file():
            raise UserError(f"{folder} is not the folder of a site: it has no {SITE}")
        entries = read_toml(folder / SITE, {"client": str, "data": str, "reading?": dict})
        home = home_of(folder)
        approval = home.approval_of(folder) if home else None
        approved = approval is not None and approval.method == read_toml(folder / STUDY_COPY, STUDY)["method_digest"]
        study = Study.read(folder / STUDY_COPY, trust_code=trust_code or approved, finished=finished)
        return cls(folder, study, entries["client"], Path(entries["data"]), Reading.from_table(entries.get("reading")))

    def keep(self) -> None:
        """Writes it down."""
        make_folder(self.folder)
        entries: dict[str, Any] = {"client": self.client, "data": str(self.data)}
        entries |= {"reading": reading} if (reading := self.reading.as_table()) else {}
        # Its method's file, too: the folder is complete by itself.
        if self.study.table["method"].endswith(".py"):
            write_whole(self.folder / self.study.table["method"], self.study.loaded.source.read_bytes())
        if name := self.study.table["data"].get("weights_file"):
            write_whole(self.folder / name, (self.study.path.parent / name).read_bytes())
        write_whole(self.folder / STUDY_COPY, tomli_w.dumps(dict(self.study.table)).encode())
        write_whole(self.folder / SITE, tomli_w.dumps(entries).encode(), mode=0o600)

    def site(self, device: str = "cpu", *, train_scores: bool = True, least_cell: int = 1) -> PreparedSite:
        """What answers for it.

        Args:
            device: that computes.
            train_scores: whether scores of training rows are sent.
            least_cell: rows in every cell of a count of rows that is not empty; else none are counted.

        Raises:
            UserError: for data that do not fit, or have changed.
        """
        study = self.study
        data = SiteRows(read_site_data(study, self.data, self.client, self.reading), study)

        def make(totals: Sequence[State]) -> Site:
            data.support.check(totals)
            if is_public(study) and not same_sums(totals, public_sums(study)):
                raise Refused(
                    "with noise the first sums are the dictionary's, and those that are told are not", "bounds"
                )
            named = as_numbers(totals)
            federation = data.site_data.federation(named)
            network = study.data.model(named, study.loaded.cls.latent)[1]
            method = study.method(study.data.own_network(network, federation))
            options = study.options(device)
            return Site(
                method, federation, options, self.folder, study.handshake, new_clients=study.new_clients,
                train_scores=train_scores, roster=study.clients, least_cell=least_cell,
            )  # fmt: skip

        steps = study.data.steps + data.support.steps
        return PreparedSite(self.client, study.handshake, self.folder, steps, data, make)


def read_site_data(study: Study, path: Path, client: str, reading: Reading | None = None) -> SiteData:
    """A site's own file, checked.

    Raises:
        UserError: where it does not fit what was agreed on; the line holds none of its values.
    """
    try:
        site_data = study.data.site(path, client, reading)
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    if site_data.rows < study.least_rows:
        raise UserError(
            f"{path} has {counted(site_data.rows, 'row')}, fewer than the {study.least_rows} that the study "
            "asks of a site"
        )
    if site_data.rows > (most := most_rows(study.table["privacy"])) > 0:
        raise UserError(
            f"{path} has {counted(site_data.rows, 'row')}, more than the {most} that the study allows (most_rows)"
        )
    if isinstance(study.data, ModelData):
        check_rows(study.loaded.cls, study.data.design, site_data, path)
    return site_data


def as_numbers(totals: Sequence[State]) -> list[NamedSums]:
    """Sums as the preparation takes them, without those of :mod:`.support`."""
    return [{name: value.cpu().numpy() for name, value in sums.items()} for sums in totals if SUPPORT not in sums]


@dataclass(frozen=True)
class SiteRows:
    """See :class:`~hierfl.inference.engines.remote.preparation.SiteSums`."""

    site_data: SiteData
    study: Study

    @cached_property
    def support(self) -> Support:
        """What is counted first."""
        return Support(self.study)

    def sums(self, before: Sequence[State]) -> State:
        if is_public(self.study):
            raise Refused("sums of its rows are asked for, which have no share of epsilon", "policy")
        self.support.check(before)
        first = len(before) < self.support.steps
        sums: dict[str, Any] = self.support.sums(self.site_data) if first else self.site_data.sums(as_numbers(before))
        return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in sums.items()}

    def digest(self) -> str:
        # The rows themselves: constants of the preparation are not known yet.
        return self.site_data.digest()


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """One process at a time works in a site's folder, and writes to its log there."""
    make_folder(folder)
    logger = logging.getLogger("hierfl")
    level = logger.level
    with locked(folder / ".lock", f"another process works in {folder}"):
        handler = logging.FileHandler(folder / LOG)
        handler.setFormatter(EscapedFormatter("%(asctime)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            handler.close()
