"""What this user's account has answered about its data, whatever study, name or folder it was asked in.

A new home, a renamed study or a copied folder is the same account, and does not escape it. A charge is on the disk
before anything is computed: a question that fails has cost what it asked for.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from hierfl.errors import UserError
from hierfl.files import shown, write_whole
from hierfl.schema import read_json

from ...trust import state_folder
from ..contributions import now
from .lines import Lines, waiting_lock

#: of the account's state folder, and of the ledger's own
LEDGER, SECRET, ROWS, POINTS, HEADS = "ledger", "secret", "rows", "points.jsonl", "heads"
#: hashes of each row's value in each column
RowHashes = Mapping[str, NDArray[np.integer]]
#: whether two sets share so many rows that they have one budget
Same = Callable[[RowHashes, RowHashes], bool]


class OverBudget(UserError):
    """A question would cost more than is left."""


class AnsweredBefore(UserError):
    """Another question has this one's place in the study."""


@dataclass(frozen=True)
class Charge:
    """One question that a site takes up.

    Attributes:
        data: the row set that it is about, as :meth:`Ledger.add_rows` has named it.
        study: digest of the study.
        client: the site's name in it.
        slot: its place in the study: only one question has it.
        question: digest of the request.
        restart: the server's restart record, a number; 0 for none.
        values: digest of the broadcast values.
        points: evaluated, as asked for; what is charged may be fewer.
    """

    data: str
    study: str
    client: str
    slot: str
    question: str
    restart: int
    values: str
    points: int

    def is_of(self, study: str, client: str) -> bool:
        """Whether a site was asked it in a study."""
        return (self.study, self.client) == (study, client)


class Ledger:
    """The ledger of an account.

    Args:
        folder: of it; None for that of the account that runs this process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder() / LEDGER
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lines = Lines(self.folder / POINTS)
        self._lock = self.folder / ".lock"
        self._charges: list[Charge] = []
        self._budgets: dict[str, str] = {}

    @property
    def secret(self) -> bytes:
        """The key, 32 bytes, of row hashes; made when it is first needed.

        Raises:
            UserError: for a damaged one.
        """
        path = self.folder / SECRET
        with waiting_lock(self._lock):
            if not path.exists():
                write_whole(path, secrets.token_bytes(32), mode=0o600)
            found = path.read_bytes()
        if len(found) != 32:
            raise UserError(f"{shown(path)} is damaged: take it from a backup")
        return found

    # -- rows ---------------------------------------------------------------------------------------------------

    def row_sets(self) -> dict[str, dict[str, NDArray[np.integer]]]:
        """Every row set that was selected for a study, by its name.

        Raises:
            UserError: for a damaged file.
        """
        found = {}
        for path in sorted((self.folder / ROWS).glob("*.safetensors")):
            try:
                found[path.stem] = load_file(path)
            except Exception as error:  # (whatever the parser raises of a damaged file)
                raise UserError(f"{shown(path)} is damaged: take it from a backup") from error
        return found

    def add_rows(self, hashes: RowHashes, same: Same) -> str:
        """Keeps a row set; its name, which is the same for the same hashes.

        Args:
            hashes: keyed hashes, (n,) of each column.
            same: says of two sets whether they have one budget.
        """
        name = name_of(hashes)
        path = self.folder / ROWS / f"{name}.safetensors"
        if not path.is_file():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            first = next((other for other, held in self.row_sets().items() if same(hashes, held)), name)
            data = save({k: np.ascontiguousarray(v) for k, v in hashes.items()}, {"budget": self.budget_of(first)})
            write_whole(path, data, mode=0o600)
        return name

    def budget_of(self, data: str) -> str:
        """Whose budget a row set uses: that of the first that has most of its rows."""
        if data not in self._budgets:
            path = self.folder / ROWS / f"{data}.safetensors"
            if not path.is_file():
                return data
            raw = path.read_bytes()
            table = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            self._budgets[data] = str(table["__metadata__"]["budget"])
        return self._budgets[data]

    # -- points -------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        names = Charge.__dataclass_fields__
        for line in self._lines.catch_up():
            try:
                self._charges.append(Charge(**{name: line[name] for name in names}))
            except KeyError as error:
                raise UserError(f"{shown(self._lines.path)} is damaged: a line lacks {error}") from error

    def charges(self) -> list[Charge]:
        """All that was ever charged, in its order."""
        self._catch_up()
        return list(self._charges)

    def used(self, data: str) -> int:
        """Points that were evaluated on a row set, or on another that has most of its rows."""
        budget = self.budget_of(data)
        return sum(charge.points for charge in self.charges() if self.budget_of(charge.data) == budget)

    def restarts(self, study: str, client: str) -> int:
        """The highest restart record that a site has seen of a study."""
        return max((c.restart for c in self.charges() if c.is_of(study, client)), default=0)

    def has(self, study: str, client: str, slot: str, question: str) -> bool:
        """Whether a question was taken up."""
        mine = [charge for charge in self.charges() if charge.is_of(study, client)]
        return any((charge.slot, charge.question) == (slot, question) for charge in mine)

    def charge(self, asked: Charge, budget: int, *, free: bool = False) -> int:
        """Takes up a question, once: the same question again costs nothing more.

        Args:
            asked: the question.
            budget: points that may be evaluated on its data, in all studies together.
            free: whether the same broadcast values cost nothing a second time.

        Returns:
            The points that it has cost now.

        Raises:
            AnsweredBefore: where another question has its slot, and there is no higher restart record.
            OverBudget: where less is left.
        """
        with waiting_lock(self._lock):
            earlier = [charge for charge in self.charges() if charge.is_of(asked.study, asked.client)]
            if any((charge.slot, charge.question) == (asked.slot, asked.question) for charge in earlier):
                return 0
            highest = max((charge.restart for charge in earlier), default=0)
            in_slot = [charge.restart for charge in earlier if charge.slot == asked.slot]
            if asked.restart < highest or (in_slot and asked.restart <= max(in_slot)):
                raise AnsweredBefore(f"{asked.slot} was answered to other values")
            points = 0 if free and any(charge.values == asked.values for charge in earlier) else asked.points
            if points and self.used(asked.data) + points > budget:
                raise OverBudget(
                    f"{self.used(asked.data)} of {budget} points are used, and {points} more are asked for"
                )
            line = {**asdict(asked), "points": points, "when": now()}
            self._lines.append(line)
            self._charges.append(Charge(**{name: line[name] for name in Charge.__dataclass_fields__}))
            return points

    # -- audit heads --------------------------------------------------------------------------------------------

    def seen(self, key: str) -> tuple[int, str] | None:
        """The head of an audit file that this account has last seen; None for none.

        Args:
            key: the fingerprint of the home's key.
        """
        path = self._head_of(key)
        if not path.is_file():
            return None
        held: dict[str, Any] = read_json(path, {"lines": int, "head": str})
        return held["lines"], held["head"]

    def see(self, key: str, head: tuple[int, str]) -> None:
        """Remembers a head; it is on the disk when this returns."""
        path = self._head_of(key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, json.dumps({"lines": head[0], "head": head[1]}).encode(), mode=0o600)

    def _head_of(self, key: str) -> Path:
        return self.folder / HEADS / f"{key.replace(' ', '')}.json"

    def lock_of(self, study: str, client: str) -> Path:
        """Of the one process of this account that answers for a site in a study."""
        folder = self.folder / "locks"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{study}-{client}.lock"


def name_of(hashes: RowHashes) -> str:
    """The name of a row set, in whatever order its rows are."""
    found, columns = hashlib.sha256(), sorted(hashes)
    order = np.lexsort([hashes[column] for column in columns])
    for column in columns:
        found.update(f"{column}\n".encode() + hashes[column][order].tobytes())
    return found.hexdigest()[:16]
