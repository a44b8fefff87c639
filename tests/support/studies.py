"""Studies of small sites: study.toml, a file for every site, and all of it in one process by way of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.parties import Parties

from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.gate import Gate
from hierfl.experiments.federate.guard.home import Home
from hierfl.experiments.federate.guard.ledger import Ledger
from hierfl.experiments.federate.guard.policy import POLICY, Policy
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.experiments.federate.server import serve
from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.files import FileCourier, answer_all
from hierfl.inference.engines.remote.keys import KEY_FILE, Identity
from hierfl.inference.engines.remote.preparation import PreparedSite

STAGES = ("I", "II", "III", "IV")
#: columns of :func:`patients`, as a study declares them
PATIENTS = {
    "y": {"kind": "number"},
    "age": {"kind": "number", "least": 0, "most": 120, "unit": "years"},
    "stage": {"kind": "category", "levels": list(STAGES)},
}
FORMULA = "y ~ center(age) + stage + (1 | site)"


def patients(sites: int, *, counts: bool = False, seed: int = 0) -> pd.DataFrame:
    """Sites of 5 to 40 patients: a third of them has seen no stage IV, and one stage I alone.

    Args:
        sites: how many.
        counts: whether the outcome is one, or else a number.
        seed: of all of it.
    """
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(sites), rng.integers(5, 41, sites))
    stage = rng.choice(4, len(site), p=[0.4, 0.3, 0.2, 0.1])
    stage = np.where(site == 0, 0, np.where((site < sites / 3) & (stage == 3), 1, stage))
    age = rng.normal(60, 12, len(site)).clip(20, 99).round(1)
    eta = 0.4 * stage + 0.02 * (age - 60) + rng.normal(0, 0.5, sites)[site]
    y = rng.poisson(np.exp(eta - 0.5)) if counts else eta + rng.normal(size=len(site))
    names = np.array([f"h{j:02d}" for j in range(sites)])
    return pd.DataFrame({"site": names[site], "stage": np.array(STAGES)[stage], "age": age, "y": y})


def write_tables(df: pd.DataFrame, folder: Path, column: str = "site") -> dict[str, Path]:
    """Every site's own csv file, by the site's name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, rows in df.groupby(column):
        paths[str(name)] = folder / f"{name}.csv"
        rows.drop(columns=column).to_csv(paths[str(name)], index=False)
    return paths


def formula_study(folder: Path, files: Mapping[str, Path], columns: Mapping[str, Any] = PATIENTS, **given: Any) -> Path:
    """study.toml of a mixed-effects model of :func:`patients`; with the cards of ``parties`` where they are given."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = folder / "sample.csv"
    pd.DataFrame({"y": [0.5, 1.5], "age": [50.5, 60.5], "stage": ["I", "II"]}).to_csv(sample, index=False)
    settings, parties = given.pop("settings", {"draws": 0}), given.pop("parties", None)
    options = {"formula": FORMULA, "rounds": 4, **given}
    return written(
        folder, draft(
            "mixed-effects", sample, list(files), "patients", options, settings,
            keys=parties.keys if parties else None, out=folder / "study.toml",
        ), columns,
    )  # fmt: skip


def written(folder: Path, text: str, columns: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """A draft, as people have edited it."""
    import tomllib

    import tomli_w

    table = tomllib.loads(text) | changes
    if columns is not None:
        table["columns"] = dict(columns)
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(table))
    return path


class FileStudy:
    """A server and its sites in this process, with requests and replies as files; each site has an account of its own.

    Args:
        study: study.toml.
        files: every site's own.
        folder: of all of them: ``exchange``, ``server``, ``accounts``, and a home for each site.
        parties: whose keys they have; new ones if None. The file gets their cards.
        policy: of every site; one that refuses nothing if not said.

    Attributes:
        asked: how many requests were answered.
        gates: what answers for each site.
        earlier: the server's keys before rotations.
        watch: sees every plain request and answer: name of the site, request, answer.
    """

    def __init__(
        self, study: Path, files: Mapping[str, Path], folder: Path, parties: Parties | None = None,
        policy: Policy = PERMISSIVE_POLICY,
    ) -> None:  # fmt: skip
        self.study, self.files, self.folder, self.policy, self.asked = study, dict(files), folder, policy, 0
        self.watch: Callable[[str, bytes, bytes], None] = lambda name, request, answer: None
        self.parties = parties or Parties.of(Study.read(study).clients)
        self.parties.put_into(study)
        self.gates: dict[str, Gate] = {}
        self.earlier: list[Identity] = []
        for name in files:
            self.restart(name)

    def home(self, name: str) -> Home:
        """A site's own folder."""
        return Home(self.folder / name)

    def ledger(self, name: str) -> Ledger:
        """Of a site's account."""
        return Ledger(self.account(name) / "ledger")

    def account(self, name: str) -> Path:
        """What hierfl remembers of the user of a site: HIERFL_STATE of its processes."""
        return self.folder / "accounts" / name

    def site_folder(self, name: str) -> Path:
        """The folder of the study at a site."""
        return self.home(name).folder_of(Study.read(self.study))

    def approve(self, name: str, **more: Any) -> None:
        """A site approves the study as it is now."""
        home = self.home(name)
        if not (home.folder / KEY_FILE).exists():
            self.parties.sites[name].save(home.folder)
        if not (home.folder / POLICY).exists():
            (home.folder / POLICY).write_text(self.policy.text())
        about = {"pins": [self.parties.server.card, *self.parties.cards.values()], "ledger": self.ledger(name), **more}
        propose(home, self.study, self.files[name], **about).record("Dr Test")

    def restart(self, name: str) -> None:
        """A site begins again, from its home; what has changed in the study is approved first."""
        study, home = Study.read(self.study), self.home(name)
        approved = home.approval_of(home.folder_of(study))
        if approved is None or approved.roster != study.roster:
            self.approve(name)
        self.gates[name] = Gate(home, home.folder_of(study), ledger=self.ledger(name))

    @property
    def sites(self) -> dict[str, PreparedSite]:
        """What answers plain requests, for each site."""
        return {name: gate.site for name, gate in self.gates.items()}

    def answers(self, names: list[str]) -> None:
        """Whoever is asked answers at once."""
        for name in names:
            if name in self.gates:
                self.asked += answer_all(self.folder / "exchange", name, self.answering(name))

    def answering(self, name: str) -> Callable[[bytes], bytes]:
        """A site's answers, as they are carried."""
        gate = self.gates[name]
        plain = type(gate.site).answer

        def watched(request: bytes) -> bytes:
            answer = plain(gate.site, request)
            self.watch(name, request, answer)
            return answer

        def answer(request: bytes) -> bytes:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(gate.site, "answer", watched)
                return gate.answer(request)

        return answer

    def serve(
        self, answers: Callable[[list[str]], None] | None = None, *, deadline: float = 0.0, resume: bool = False,
        restart: bool = False,
    ) -> dict:  # fmt: skip
        """The server's side."""
        study = Study.read(self.study)

        def courier(recorded: Any) -> FileCourier:
            def waiting(names: list[str]) -> None:
                recorded.waiting(names)
                (answers or self.answers)(names)

            return FileCourier(self.folder / "exchange", study.clients, deadline, waiting)

        return serve(
            study, self.folder / "server", courier, self.parties.server, earlier=self.earlier, resume=resume,
            restart=restart, progress=False,
        )  # fmt: skip
