"""A study's server as an attacker writes it, against sites as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.sealed import open_reply, question_digest, seal_request
from hierfl.inference.engines.remote.wire import decode, encode, header

#: a request for round 1
ROUND = {"kind": "round", "round": 1, "reports": True}


COLUMNS = {
    "y": {"kind": "whole", "least": 0},
    "age": {"kind": "number", "least": 0, "most": 120},
    "stage": {"kind": "category", "levels": ["I", "II", "III", "IV"]},
}


def study_of_counts(folder: Path) -> FileStudy:
    """A study of counts at four sites, before its first question: a message shows more than a few fixed sums."""
    own = write_tables(patients(4, counts=True), folder / "data")
    return FileStudy(formula_study(folder, own, COLUMNS, family="poisson", rounds=6), own, folder)


class Server:
    """A study's server as an attacker writes it: it asks one site whatever it likes, and reads the answers.

    Args:
        file_study: the study.
        name: of the site.
    """

    def __init__(self, file_study: FileStudy, name: str = "h01") -> None:
        self.file_study, self.name, self.sequence = file_study, name, 0
        self.study = Study.read(file_study.study)
        self.asked: list[bytes] = []

    def sealed(self, head: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], **by: Any) -> bytes:
        """A signed request."""
        self.sequence += 1
        fields = {"handshake": self.study.handshake.table(), "client": self.name, "counted": 0, **head}
        self.asked.append(encode(fields, tensors))
        return seal_request(
            self.asked[-1], by.get("identity", self.file_study.parties.server), self.study.digest, self.sequence
        )

    def opened(self, reply: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What a site has answered to the last request."""
        parties, question = self.file_study.parties, question_digest(self.asked[-1])
        about = {"study": self.study.digest}
        return decode(open_reply(reply, parties.server, parties.cards[self.name], question, **about))

    def ask(self, head: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] = {}) -> str:
        """The class of a refusal, or nothing; what it holds is in ``said``."""
        self.reply = self.file_study.gates[self.name].answer(self.sealed(head, tensors))
        self.answer = self.opened(self.reply)
        assert header(self.reply)["refused"] == self.answer[0].get("refused", "")
        return str(header(self.reply)["refused"])

    def values(self, shift: float = 0.0) -> dict[str, torch.Tensor]:
        """Broadcast values of round 1; shifted ones are no honest server's."""
        site = self.file_study.sites[self.name].site
        assert site is not None
        return {k: v + shift if "point" in k else v.clone() for k, v in site.shared.items()}


def prepared(file_study: FileStudy) -> Server:
    """A server that has come as far as the first round."""

    class Enough(Exception):
        pass

    def stops(names: list[str]) -> None:
        if list((file_study.folder / "exchange" / "h01" / "requests").glob("000001-round-*")):
            raise Enough
        file_study.answers(names)

    with pytest.raises(Enough):
        file_study.serve(stops)
    return Server(file_study)
