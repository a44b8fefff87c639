"""What this user's account has answered about its data, whatever study, name or folder it was asked in.

A new home, a renamed study or a copied folder is the same account, and does not escape it. A charge is on the disk
before anything is computed: a question that fails has cost what it asked for.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from hierfl.data.disclosure.shared_rows import share_rows
from hierfl.errors import UserError
from hierfl.files import shown, write_whole

from ...trust import state_folder
from ..contributions import now
from .lines import Lines, waiting_lock
from .row_sets import RowHashes, RowSetFiles

#: of the account's state folder, and of the ledger's own
LEDGER, SECRET, ROWS, POINTS = "ledger", "secret", "rows", "points.jsonl"
#: whether two sets share so many rows that they have one budget
Same = Callable[[RowHashes, RowHashes], bool]


class OverBudget(UserError):
    """A question would cost more than is left."""


class AnsweredBefore(UserError):
    """Another question has this one's position in the study."""


@dataclass(frozen=True)
class Charge:
    """One question that a site takes up.

    Attributes:
        data: the row set that it is about, as :meth:`Ledger.add_rows` has named it.
        study: digest of the study.
        client: the site's name in it.
        slot: its position in the study: only one question has it.
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
        self._asked: dict[tuple[str, str], list[Charge]] = defaultdict(list)
        self._points: Counter[str] = Counter()
        self._budgets: dict[str, list[str]] = {}
        self._shared: dict[tuple[str, str], bool] = {}

    @property
    def secret(self) -> bytes:
        """The key, 32 bytes, of row hashes; made when it is first needed.

        Raises:
            UserError: for a damaged one, and for one that is gone while there are row sets.
        """
        path = self.folder / SECRET
        with waiting_lock(self._lock):
            if not path.exists():
                if len(self.row_sets()):
                    lost = "is gone, and no row set beside it is recognised without it: take it from a backup"
                    raise UserError(f"{shown(path)} {lost}")
                write_whole(path, secrets.token_bytes(32), mode=0o600)
            key = path.read_bytes()
        if len(key) != 32:
            raise UserError(f"{shown(path)} is damaged: take it from a backup")
        return key

    # -- rows ---------------------------------------------------------------------------------------------------

    def row_sets(self) -> RowSetFiles:
        """Every row set that was selected for a study, by its name; each is read when it is looked at."""
        return RowSetFiles(self.folder / ROWS)

    def add_rows(self, hashes: RowHashes, same: Same) -> str:
        """Keeps a row set; its name, which is the same for the same hashes.

        Args:
            hashes: keyed hashes, (n,) of each column.
            same: says of two sets whether they have one budget.
        """
        name = name_of(hashes)
        path = self.row_sets().path_of(name)
        if not path.is_file():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            shared = self.budgets_shared(hashes, same) or [name]
            arrays = {k: np.ascontiguousarray(v) for k, v in hashes.items()}
            write_whole(path, save(arrays, {"budget": shared[0], "others": " ".join(shared[1:])}), mode=0o600)
        return name

    def budgets_shared(self, hashes: RowHashes, same: Same) -> list[str]:
        """The budgets of all row sets that have most of these rows, each once, in the order of the files."""
        return list(
            dict.fromkeys(
                self.budget_of(other) for other, other_hashes in self.row_sets().items() if same(hashes, other_hashes)
            )
        )

    def budget_of(self, data: str) -> str:
        """The budget that has a row set's name for others: that of the first that has most of its rows."""
        return self.budgets_of(data)[0]

    def budgets_of(self, data: str) -> list[str]:
        """All budgets that a row set uses: of each that had most of its rows when it came."""
        if data not in self._budgets:
            path = self.row_sets().path_of(data)
            if not path.is_file():
                return [data]
            raw = path.read_bytes()
            metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
            self._budgets[data] = [str(metadata["budget"]), *str(metadata.get("others", "")).split()]
        return self._budgets[data]

    def has_rows_of(self, data: str, other: str | RowHashes) -> bool:
        """Whether a row set has a row of another one, as far as columns tell.

        Args:
            data: as the ledger names it.
            other: likewise, or its hashes.
        """
        name = other if isinstance(other, str) else name_of(other)
        if self.budget_of(data) == self.budget_of(name):
            return True
        pair = min(data, name), max(data, name)
        if pair not in self._shared:
            sets = self.row_sets()
            hashes = sets.get(name) if isinstance(other, str) else other
            against = sets.get(data)
            self._shared[pair] = hashes is not None and against is not None and share_rows(hashes, against)
        return self._shared[pair]

    # -- points -------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        names = Charge.__dataclass_fields__
        for line in self._lines.catch_up():
            try:
                self._take(Charge(**{name: line[name] for name in names}))
            except KeyError as error:
                raise UserError(f"{shown(self._lines.path)} is damaged: a line lacks {error}") from error

    def _take(self, charge: Charge) -> None:
        self._charges.append(charge)
        self._asked[charge.study, charge.client].append(charge)
        self._points[charge.data] += charge.points

    @property
    def head(self) -> tuple[int, str]:
        """How many questions were charged, and the digest of the last one's line."""
        self._catch_up()
        return self._lines.head

    def charges(self) -> list[Charge]:
        """All that was ever charged, in its order."""
        self._catch_up()
        return list(self._charges)

    def asked(self, study: str, client: str) -> list[Charge]:
        """What a site was asked in a study, in its order."""
        self._catch_up()
        return list(self._asked.get((study, client), ()))

    def used(self, data: str) -> int:
        """Points that were evaluated on a row set, and on all others that share most of its rows."""
        return self.used_of(self.budgets_of(data))

    def used_of(self, budgets: Collection[str]) -> int:
        """Points that were evaluated on row sets that use any of these budgets."""
        self._catch_up()
        return sum(
            points for other, points in self._points.items() if not set(budgets).isdisjoint(self.budgets_of(other))
        )

    def restarts(self, study: str, client: str) -> int:
        """The highest restart record that a site has seen of a study."""
        return max((charge.restart for charge in self.asked(study, client)), default=0)

    def has(self, study: str, client: str, slot: str, question: str) -> bool:
        """Whether a question was taken up."""
        return any((charge.slot, charge.question) == (slot, question) for charge in self.asked(study, client))

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
            earlier = self.asked(asked.study, asked.client)
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
            self._take(replace(asked, points=points))
            return points

    def lock_of(self, study: str, client: str) -> Path:
        """The lock of the one process of this account that answers for a site in a study."""
        folder = self.folder / "locks"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{study}-{client}.lock"


def name_of(hashes: RowHashes) -> str:
    """The name of a row set, in whatever order its rows are."""
    digest, columns = hashlib.sha256(), sorted(hashes)
    order = np.lexsort([hashes[column] for column in columns])
    for column in columns:
        digest.update(f"{column}\n".encode() + hashes[column][order].tobytes())
    return digest.hexdigest()[:16]
