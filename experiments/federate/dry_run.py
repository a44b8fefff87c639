"""A study in one process, with made-up sites: what it takes, and what would stop it, before anybody is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hierfl.errors import UserError
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.masks.site import MaskedSite
from hierfl.inference.engines.remote.points import points_of
from hierfl.inference.engines.remote.preparation import PreparedSite
from hierfl.inference.engines.remote.wire import decode

from .contributions import Recorded
from .guard.policy import Policy
from .made_up import make_up_files
from .masks import MASK_KINDS, masked_site
from .roster_keys import SERVER
from .server import fit_study
from .study import Study
from .study_rows import most_rows
from .study_site import Membership
from .support import Support

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
        masks: how many of these a study without masks would not have; 0 without masks.
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
    masks: int = 0
    bytes_to: int = 0
    bytes_from: int = 0
    seconds: float = 0.0
    stopped: str = ""
    refusals: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The results in words."""
        of_masks = f", {self.masks} of them for masks" if self.masks else ""
        lines = [
            f"{self.sites} made-up sites of {self.rows} rows each, drawn from the data dictionary: what is found in "
            "them means nothing, and nothing is kept",
            f"{self.rounds} round{'s' * (self.rounds != 1)} (at most {self.most_rounds}), {self.points} "
            f"point{'s' * (self.points != 1)}, {self.requests} requests to a site{of_masks}",
            f"{self.bytes_to / 1e3:,.1f} kB to a site, and {self.bytes_from / 1e3:,.1f} kB from it",
            f"{self.seconds:.1f} s in this process, with all sites in it",
        ]  # fmt: skip
        lines += [f"{name} refuses ({kind})" for name, kind in sorted(self.refusals.items())]
        return [*lines, f"it would stop: {self.stopped}" if self.stopped else "it comes to its end"]


def dry_run(study: Study, rows: int = 0, say: Callable[[str], None] = lambda line: None) -> DryRun:
    """Fits a study to made-up sites, on plain bytes: without keys, policies and budgets, which are each site's own.

    Whether scores of training rows are answered is as of the policy that a site begins with: they are not.

    Args:
        study: what was agreed on.
        rows: of each site; 0 for as many as the study asks of a site, and at least 40 where it allows so many.
        say: receives a line for each step.
    """
    most = most_rows(study.table["privacy"])
    rows_each = rows or max(min(ROWS, most or ROWS), study.least_rows)
    identities = {name: Identity.make(name) for name in study.clients} if study.options("cpu").masked else {}
    if identities:  # those of the roster are at their own places
        study = with_keys(study, identities)
    outcome = DryRun(len(study.clients), rows_each, int(study.table["run"]["rounds"]))
    begun = time.monotonic()
    with TemporaryDirectory(prefix="hierfl-dry-run-") as scratch:
        folder = Path(scratch)
        recorded = Recorded(folder, study.name, outcome.most_rounds, study.clients)
        try:
            say("making up the sites' files")
            sites = {}
            for name, path in make_up_files(study, folder, rows_each).items():
                site = Membership(folder / name, study, name, path).site(**Policy().answers)
                sites[name] = masked_site(study, site, identities.get(name))
            recorded.ask = _InMemory(sites, outcome, Support(study).steps)
            say("asking them")
            fit_study(study, folder, recorded, progress=False)
        except UserError as error:
            outcome.stopped = str(error)
        outcome.refusals = {name: refusal["refused"] for name, refusal in recorded.status["refusals"].items()}
    outcome.seconds = time.monotonic() - begun
    return outcome


def with_keys(study: Study, identities: Mapping[str, Identity]) -> Study:
    """A study whose sites have these keys; the server's stays."""
    keys = {SERVER: study.table["keys"][SERVER], **{name: own.card.text for name, own in identities.items()}}
    return replace(study, table={**study.table, "keys": keys})


class _InMemory:
    """Asks sites in this process, and counts what the first of them is asked.

    Args:
        sites: by name.
        found: where it is counted.
        counts: how many of the first steps of a preparation are counts of sites, for masks.
    """

    def __init__(self, sites: Mapping[str, PreparedSite | MaskedSite], outcome: DryRun, counts: int) -> None:
        self.sites, self.outcome, self.counts = sites, outcome, counts

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {name: self.sites[name].answer(request) for name, request in requests.items()}
        first = next(iter(self.sites))
        if first in answers:
            self._count(first, requests[first], answers[first])
        return answers

    def _count(self, name: str, request: bytes, answer: bytes) -> None:
        head, tensors = decode(request)
        outcome, site = self.outcome, self.sites[name].site
        of_masks = head["kind"] in MASK_KINDS or (head["kind"] == "prepare" and head["step"] < self.counts)
        outcome.requests, outcome.masks = outcome.requests + 1, outcome.masks + of_masks
        outcome.bytes_to, outcome.bytes_from = outcome.bytes_to + len(request), outcome.bytes_from + len(answer)
        if head["kind"] == "round":
            outcome.rounds = max(outcome.rounds, head["round"])
        outcome.points += points_of(site.method, head, tensors) if site is not None else 0
