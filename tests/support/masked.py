"""Studies with masks in this process, and what their server sees."""

from __future__ import annotations

import base64
import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from support.parties import Parties
from support.studies import FileStudy, formula_study, patients, write_tables, written

from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.masks.presence import TOLD_BYTES
from hierfl.inference.engines.remote.sealed import open_reply, open_request, question_digest, seal_request
from hierfl.inference.engines.remote.wire import decode, encode

#: what a site was asked, and what it has answered: its name, header and tensors of the request, and of the answer
Seen = tuple[str, dict[str, Any], dict[str, torch.Tensor], dict[str, Any], dict[str, torch.Tensor]]

#: header and tensors of what each site was asked
Asked = dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]]


def mixed(folder: Path, sites: int = 4, df: pd.DataFrame | None = None, **given: Any) -> FileStudy:
    """A mixed model of patients: sums of all sites alone."""
    own = write_tables(patients(sites) if df is None else df, folder / "data")
    parties = Parties.of(own)
    how = {"formula": "y ~ center(age) + (1 | site)", "rounds": 3, "masked": True, **given}
    return FileStudy(formula_study(folder, own, parties=parties, **how), own, folder, parties)


def networks(folder: Path, sites: int = 4, method: str = "fedavg", **given: Any) -> FileStudy:
    """A small network, whose rounds count without some sites."""
    rng, own = np.random.default_rng(0), {}
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"h{j:02d}" for j in range(sites)]
    for name in ("sample", *names):
        x = rng.normal(size=(12, 2)).round(2)
        y = np.where(x.sum(1) > 0, "b", "a")
        y[:2] = ["a", "b"]
        path = folder / f"{name}.csv"
        pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "y": y}).to_csv(path, index=False)
        own |= {name: path} if name != "sample" else {}
    settings = {
        "masked": True, "rounds": 2, "network": "mlp:3", "test_fraction": 0.0, "validation_fraction": 0.0,
        "evaluate_every": 2, **given,
    }  # fmt: skip
    parties, out = Parties.of(names), folder / "study.toml"
    text = draft(
        method, folder / "sample.csv", names, "networks", settings, {"epochs": 1}, keys=parties.keys, y="y", out=out
    )
    return FileStudy(written(folder, text), own, folder, parties)


def watched(file_study: FileStudy) -> list[Seen]:
    """All that a server sees of a study from now on, in its order."""
    seen: list[Seen] = []
    file_study.watch = lambda name, request, answer: seen.append((name, *decode(request), *decode(answer)))
    return seen


def rows(seen: list[Seen], kind: str, round: int | None = None) -> dict[str, np.ndarray]:
    """The first masked answer of each site to a kind of question, (size,) uint64."""
    by_site: dict[str, np.ndarray] = {}
    for name, head, _, _, answer in seen:
        if head["kind"] == kind and (round is None or head["round"] == round) and "masked" in answer:
            by_site.setdefault(name, answer["masked"].numpy().view(np.uint64))
    return by_site


def is_noise(row: np.ndarray) -> bool:
    """Whether numbers are as even as random ones: the eight bits at each place, and how often they are alike."""
    counts = np.bincount(row.view(np.uint8), minlength=256)
    n = counts.sum()
    chi = ((counts - n / 256) ** 2 / (n / 256)).sum()
    return bool(abs(chi - 255) < 6 * np.sqrt(2 * 255))


class Coordinator:
    """Whoever has the server's keys: asks any site what it likes.

    Args:
        file_study: the study.
    """

    def __init__(self, file_study: FileStudy) -> None:
        self.file_study, self.study, self.sequence = file_study, Study.read(file_study.study), 1000

    def ask(
        self, name: str, head: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None = None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Header and tensors of what a site answers."""
        header = {**head, "client": name, "handshake": self.study.handshake.table()}
        plain = encode(header, dict(tensors or {}))
        self.sequence += 1
        server = self.file_study.parties.server
        reply = self.file_study.gates[name].answer(seal_request(plain, server, self.study.digest, self.sequence))
        card, digest = self.file_study.parties.cards[name], question_digest(plain)
        return decode(open_reply(reply, server, card, digest, study=self.study.digest))

    def refused(self, name: str, head: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None = None) -> str:
        """The class of a refusal; empty for an answer."""
        return str(self.ask(name, head, tensors)[0].get("refused", ""))


def fewer(head: Mapping[str, Any], survivors: int) -> dict[str, Any]:
    """What asks the first site to sign a list of the first survivors alone, with what these have said to it."""
    masks = head["masks"]
    told = base64.b64decode(masks["told"])[: (survivors - 1) * TOLD_BYTES]
    listed = {**masks["list"], "survivors": masks["list"]["survivors"][:survivors]}
    return {**head, "masks": {**masks, "list": listed, "told": base64.b64encode(told).decode()}}


class Enough(Exception):
    """The server has come as far as it was to."""


class Snapshot:
    """A study as it is now, to which a test may go back.

    Args:
        file_study: the study; it is not used any more.
        asked: what its sites were asked last, of :func:`until`.
    """

    def __init__(self, file_study: FileStudy, asked: Asked) -> None:
        self.file_study, self._asked, self._kept = (
            file_study,
            asked,
            file_study.folder.with_name(f"{file_study.folder.name}-kept"),
        )
        shutil.copytree(file_study.folder, self._kept)

    @property
    def asked(self) -> Asked:
        """A copy, which a test may change."""
        return copy.deepcopy(self._asked)

    def restored(self) -> FileStudy:
        """The study as it was, begun again from what is on its disks."""
        file_study = self.file_study
        shutil.rmtree(file_study.folder)
        shutil.copytree(self._kept, file_study.folder)
        return FileStudy(file_study.study, file_study.files, file_study.folder, copy.deepcopy(file_study.parties))


def until(file_study: FileStudy, kind: str, round: int = 1) -> Asked:
    """An honest server works until it asks a question, which nobody has answered yet: header and tensors by site."""
    requests: Asked = {}

    def stops(names: list[str]) -> None:
        paths = list((file_study.folder / "exchange").glob(f"*/requests/{round:06d}-{kind}-*.request"))
        if paths:
            for path in paths:
                plain, _ = open_request(path.read_bytes(), file_study.parties.server.card)
                requests[path.parents[1].name] = decode(plain)
            raise Enough
        file_study.answers(names)

    try:
        file_study.serve(stops)
    except Enough:
        return requests
    raise AssertionError(f"no {kind} of round {round} was asked")
