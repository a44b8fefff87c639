"""A study in one process, with made-up sites: what it takes, and what would stop it, before anybody is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hierfl.errors import UserError
from hierfl.inference.engines.remote.points import points_of
from hierfl.inference.engines.remote.preparation import PreparedSite
from hierfl.inference.engines.remote.wire import decode

from .contributions import Recorded
from .made_up import make_up_files
from .server import fit_study
from .study import Study
from .study_site import Membership

#: rows of a made-up site, where the study asks for no more
ROWS = 40


@dataclass
class DryRun:
    """What a study has taken.

    Attributes:
        sites: on the roster.
        rows: of each.
        rounds, most_rounds: that were asked for, and that there may be.
        points: at which each site's data were evaluated.
        requests: to each site.
        bytes_to, bytes_from: of one site, in all.
        seconds: in this process.
        stopped: why it did not come to its end; empty where it did.
    """

    sites: int
    rows: int
    most_rounds: int
    rounds: int = 0
    points: int = 0
    requests: int = 0
    bytes_to: int = 0
    bytes_from: int = 0
    seconds: float = 0.0
    stopped: str = ""
    refusals: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """In words."""
        found = [
            f"{self.sites} made-up sites of {self.rows} rows each, drawn from the data dictionary: what is found in "
            "them means nothing, and nothing is kept",
            f"{self.rounds} rounds (at most {self.most_rounds}), {self.points} points, {self.requests} requests to a "
            "site",
            f"{self.bytes_to / 1e3:,.1f} kB to a site, and {self.bytes_from / 1e3:,.1f} kB from it",
            f"{self.seconds:.1f} s in this process, with all sites in it",
        ]  # fmt: skip
        found += [f"{name} refuses ({kind})" for name, kind in sorted(self.refusals.items())]
        return [*found, f"it would stop: {self.stopped}" if self.stopped else "it comes to its end"]


def dry_run(study: Study, rows: int = 0, say: Callable[[str], None] = lambda line: None) -> DryRun:
    """Fits a study to made-up sites, on plain bytes: without keys, policies and budgets, which are each site's own.

    Args:
        study: what was agreed on.
        rows: of each site; 0 for as many as the study asks of a site, and at least 40.
        say: is told what happens.
    """
    each = rows or max(ROWS, study.least_rows)
    found = DryRun(len(study.clients), each, int(study.table["run"]["rounds"]))
    begun = time.monotonic()
    with TemporaryDirectory(prefix="hierfl-dry-run-") as place:
        folder = Path(place)
        recorded = Recorded(folder, study.name, found.most_rounds, study.clients)
        try:
            say("making up the sites' files")
            sites = {}
            for name, path in make_up_files(study, folder, each).items():
                sites[name] = Membership(folder / name, study, name, path).site()
            recorded.ask = _InMemory(sites, found)
            say("asking them")
            fit_study(study, folder, recorded, progress=False)
        except UserError as error:
            found.stopped = str(error)
        found.refusals = {name: about["refused"] for name, about in recorded.status["refusals"].items()}
    found.seconds = time.monotonic() - begun
    return found


class _InMemory:
    """Asks sites in this process, and counts what the first of them is asked."""

    def __init__(self, sites: Mapping[str, PreparedSite], found: DryRun) -> None:
        self.sites, self.found = sites, found

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {name: self.sites[name].answer(request) for name, request in requests.items()}
        first = next(iter(self.sites))
        if first in answers:
            self._count(first, requests[first], answers[first])
        return answers

    def _count(self, name: str, request: bytes, answer: bytes) -> None:
        head, tensors = decode(request)
        found, site = self.found, self.sites[name].site
        found.requests += 1
        found.bytes_to, found.bytes_from = found.bytes_to + len(request), found.bytes_from + len(answer)
        if head["kind"] == "round":
            found.rounds = max(found.rounds, head["round"])
        found.points += points_of(site.method, head, tensors) if site is not None else 0
