"""A site's home after a study, as files: keys, an approval, an audit file, the study's folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hierfl.experiments.federate.guard.approval import Approval
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.home import Home
from hierfl.experiments.federate.guard.ledger import Charge, Ledger
from hierfl.experiments.federate.guard.policy import write_policy
from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.keys import Identity


@dataclass
class Kept:
    """A home with one study, and its account's ledger.

    Attributes:
        home: the site's own folder.
        folder: of the study in it.
        ledger: of the account.
        study: digest of the study.
    """

    home: Home
    folder: Path
    ledger: Ledger
    study: str


def home_after(place: Path, study: Path, client: str, state: Path, rows: int = 40) -> Kept:
    """A home with one study in it.

    Args:
        place: where the home and the ledger are made.
        study: study.toml.
        client: the site's name.
        state: what a site has left of the study, a folder that is copied.
        rows: of the site.
    """
    home, ledger = Home(place / "home"), Ledger(place / "ledger")
    Identity.make(client).save(home.folder)
    write_policy(home.folder)
    agreed = Study.read(study)
    data = ledger.add_rows({"y": np.arange(rows)}, lambda one, other: None)
    approval = Approval(
        agreed.digest, "r" * 16, agreed.loaded.digest, "c" * 16, "p" * 16, agreed.name, data, client, "Dr | North",
        "2026-01-02T03:04:05+00:00", ("exploration",), {"least_cell": "6 of 5 rows"}, "care <b>",
    )  # fmt: skip
    approval.write(home.folder)
    folder = home.folder_of(agreed)
    shutil.copytree(state, folder)
    (folder / "answers").mkdir()
    (folder / "answers/000001-round-x.reply").write_bytes(b"sealed")
    audit, points = Audit(home.folder), {"prepare": 0, "round": 3}
    said = [("prepare", 0, "", False), ("round", 1, "", False), ("round", 1, "", True), ("round", 2, "budget", False)]
    for number, (kind, at, refused, again) in enumerate(said):
        cost = 0 if refused or again else points[kind]
        audit.append({
            "study": agreed.digest, "client": client, "kind": kind, "round": at, "reply": f"{number}" * 64,
            "refused": refused, "again": again, "points": cost, "bytes": 100,
        })  # fmt: skip
        if cost:
            ledger.charge(Charge(data, agreed.digest, client, f"{kind} {at}", "q" * 64, 0, "v" * 64, cost), 10)
    return Kept(home, folder, ledger, agreed.digest)
