"""What sites were sent before a question, which their messages depend on: all must have been sent the same.

Two entries of ``masks`` say it, and so are part of what masks depend on:

- ``basis``: digest of the sums over all sites with which they began; a site computes by them;
- ``past``: digests of the rounds that were asked, one after the other, 32 hexadecimal digits each, "-" for none: by
  them a site's own values were made.

A site compares them with what it knows. Those that were sent something else refuse, or have other masks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole

from ..refusals import Refused
from ..wire import Unreadable
from .question import WHO, tensors_digest
from .streams import digest_of

#: of a folder of masks, at a site and at the server
PAST_FILE = "past.json"
#: hexadecimal digits of a round
DIGITS = 32
#: a round that was not asked
NONE = "-"


class Past:
    """Which rounds a site has answered, or a server has asked for: {number: digest}.

    Args:
        folder: of masks; the file is made with the first round.
        study: digest of the study.

    Raises:
        UserError: for a damaged file.
    """

    def __init__(self, folder: Path, study: str) -> None:
        self.path, self.study = folder / PAST_FILE, study
        self.rounds: dict[int, str] = {}
        if not self.path.is_file():
            return
        try:
            entries = json.loads(self.path.read_text("utf-8"))
            if entries["study"] == study:
                self.rounds = {int(number): str(digest) for number, digest in entries["rounds"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.path} is damaged: take it from a backup made today, or leave the study") from error

    def note(self, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Notes a round, on the disk before it returns; a no-op for other questions, and for what is noted.

        Args:
            head: of the request.
            tensors: that go with it.
        """
        if head["kind"] != "round":
            return
        number, digest = int(head["round"]), round_digest(head, tensors)
        if self.rounds.get(number) == digest:
            return
        self.rounds = {n: earlier for n, earlier in self.rounds.items() if n < number} | {number: digest}
        make_folder(self.path.parent)
        rounds = {str(n): earlier for n, earlier in sorted(self.rounds.items())}
        write_whole(self.path, json.dumps({"study": self.study, "rounds": rounds}).encode(), mode=0o600)

    def before(self, head: Mapping[str, Any]) -> str:
        """The entry ``past`` of a question: of the rounds before a round, and up to the one after which others are."""
        return " ".join(self.rounds.get(number, NONE) for number in range(1, _last(head) + 1))

    def check(self, head: Mapping[str, Any], masks: Mapping[str, Any], basis: str) -> None:
        """Compares a question with what a site was sent, and with the rounds that it has answered.

        Args:
            head: of the request.
            masks: its entry of that name.
            basis: digest of the sums with which this site began; empty where it has yet to.

        Raises:
            Unreadable: where it says nothing of rounds.
            Refused: "answered", where the site was sent something else.
        """
        if basis and head["kind"] != "prepare" and masks.get("basis") != basis:
            raise Refused("other sites began with other sums than this one", "answered")
        past = masks.get("past")
        digests = past.split() if isinstance(past, str) else []
        if not isinstance(past, str) or len(digests) != _last(head):
            raise Unreadable("it does not say which rounds were before")
        if any(digests[number - 1] != digest for number, digest in self.rounds.items() if number <= len(digests)):
            raise Refused("this site has answered another round than all others", "answered")


def round_digest(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """What names a round: the broadcast values, and who adds and trains."""
    return digest_of("round", [head.get(entry) for entry in WHO], tensors_digest(tensors))[:DIGITS]


def _last(head: Mapping[str, Any]) -> int:
    """The last round that a question depends on.

    Raises:
        Unreadable: where it has no number.
    """
    number = head.get("round")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise Unreadable("it has no number of a round")
    return number - (head["kind"] == "round" and number > 0)
