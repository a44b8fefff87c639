"""Spellings of one name: names that differ in blanks, capitals, quotes, dashes, zeros or Unicode form alone.

``ward A`` and ``ward a `` are mostly one ward, and sometimes two (``Aa`` and ``aa`` are two genotypes). ``1``, ``01``
and ``1.0`` are one number, which a program has written in several ways, or three codes. Nothing in a table tells which.
So such names are refused by default, and the user says whether to join them or to keep them apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ..errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

#: what becomes of names that are spelled alike: the table is refused, they are made one, or they stay different
Spelling = Literal["refuse", "join", "keep"]
#: what a message calls the difference
DIFFERENCE = "in blanks, capitals, quotes, dashes, zeros or Unicode form alone"
#: how many pairs a message shows
PAIRS_SHOWN = 3
#: what word processors make of apostrophes, quotes and hyphens
_TYPED = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u2032`\u00b4", "'") | dict.fromkeys("\u201c\u201d\u201e", '"'))
_WHOLE = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")


def folded(name: str) -> str:
    """What all spellings of a name share.

    That is NFKC, case folded, with the keyboard's quotes and hyphens, single blanks inside, no blanks and quotes
    around, and nothing invisible. Of a whole number it is the number without zeros before or behind it.
    """
    # NFKC makes a blank and an accent of an acute accent that is alone.
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name.translate(_TYPED)).casefold())
    kinds = [(letter, unicodedata.category(letter)) for letter in text]
    typed = "".join("-" if kind == "Pd" or letter == "\u2212" else letter for letter, kind in kinds if kind != "Cf")
    plain = " ".join(typed.split())
    plain = plain.strip("\"' ") or plain
    number = _WHOLE.fullmatch(plain)
    return number[1] + number[2] if number else plain


def has_stray_quote(name: str) -> bool:
    """Whether a name has a quote without its other half; behind a digit it may be inches."""
    text = re.sub(r"\d\s*\"", "", name.translate(_TYPED).strip())
    return text.count('"') % 2 == 1 or (text.startswith("'") and not text.endswith("'"))


def alike(names: Iterable[str]) -> list[list[str]]:
    """Groups of different names that are spelled alike, in order, each with two names or more."""
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        groups.setdefault(folded(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True)
class Spellings:
    """What becomes of names that are spelled alike, column by column.

    Attributes:
        usual: of the columns that are not named.
        columns: of the others, {column: "refuse", "join" or "keep"}.
    """

    usual: Spelling = "refuse"
    columns: Mapping[str, Spelling] = field(default_factory=dict)

    @classmethod
    def from_choice(cls, choice: str | Mapping[str, str]) -> Spellings:
        """Reads the choice of a user.

        Args:
            choice: ``join`` for all columns, ``ward=join,gene=keep`` for some, or {"ward": "join", "gene": "keep"}.

        Raises:
            UserError: for anything else.
        """
        if isinstance(choice, str) and "=" in choice:
            parts = [part.rpartition("=") for part in choice.split(",")]
            choice = {name.strip(): value.strip() for name, _, value in parts}
        given = choice if isinstance(choice, Mapping) else {"": choice}
        for value in given.values():
            if value not in get_args(Spelling):
                raise unknown("value of spellings", value, [*get_args(Spelling), "COLUMN=join,COLUMN=keep"])
        if isinstance(choice, Mapping):
            return cls(columns=dict(choice))  # type: ignore[arg-type]
        return cls(choice)  # type: ignore[arg-type]

    def __getitem__(self, column: str) -> Spelling:
        """Returns what becomes of names in one column."""
        return self.columns.get(column, self.usual)


def joined(column: pd.Series, how: Spelling, chosen: Collection[str] = ()) -> pd.Series:
    """A column whose names are one spelling each; the column itself where there is nothing to join.

    Args:
        column: of any type; entries that are no text stay as they are.
        how: what becomes of names that are spelled alike.
        chosen: spellings that win, such as those of a formula. Else the most frequent one wins; of equally frequent
            ones the first in alphabetical order. Names without tabs and the like win over others.

    Raises:
        UserError: for such names, if ``how`` is "refuse".
    """
    if how == "keep" or column.dtype.kind in "biufcmM":
        return column
    try:
        counts = {name: int(count) for name, count in column.value_counts().items() if isinstance(name, str) and count}
    except TypeError:  # objects that are no names: anyone who reads the column refuses them
        return column
    groups = alike(counts)
    if how == "refuse" and groups:
        raise refused(f"column {str(column.name)!r}", groups)
    winners = _winners(counts, chosen)
    return _renamed(column, winners) if how == "join" and winners else column


def one_spelling(df: pd.DataFrame, columns: Collection[str], choice: str | Mapping[str, str]) -> pd.DataFrame:
    """A table with one spelling of each name in some columns.

    Columns that it lacks or has twice stay, and so does what is no table: anyone who reads them refuses them.

    Args:
        df: the table.
        columns: of names.
        choice: see :meth:`Spellings.from_choice`.

    Raises:
        UserError: for names that are spelled alike, where they are refused.
    """
    import pandas as pd

    how = Spellings.from_choice(choice)
    if not isinstance(df, pd.DataFrame):
        return df
    present = [name for name in dict.fromkeys(columns) if list(df.columns).count(name) == 1]
    return df.assign(**{name: joined(df[name], how[name]) for name in present})


def joined_inside(clients: np.ndarray, column: pd.Series, how: Spelling) -> pd.Series:
    """The same for groups inside clients: two clients may have groups that are spelled alike.

    Args:
        clients: of each row, (n,).
        column: each row's group, (n,).
        how: what becomes of names that are spelled alike.

    Raises:
        UserError: for such names, if ``how`` is "refuse".
    """
    if how == "keep" or column.dtype.kind in "biufcmM":
        return column
    counts = Counter(zip(clients.tolist(), column.tolist(), strict=True))
    names: dict[str, list[str]] = {}
    for client, name in counts:
        if isinstance(name, str):
            names.setdefault(client, []).append(name)
    winners: dict[tuple[str, str], str] = {}
    for client, of_client in names.items():
        groups = alike(of_client)
        if how == "refuse" and groups:
            raise refused(f"column {str(column.name)!r}", groups, f" of {client!r}")
        counts_of_client = {name: counts[client, name] for name in of_client}
        winners |= {(client, name): winner for name, winner in _winners(counts_of_client, ()).items()}
    if how == "refuse" or not winners:
        return column
    pairs = zip(clients.tolist(), column.tolist(), strict=True)
    values = np.array([winners.get(pair, pair[1]) for pair in pairs], dtype=object)
    return type(column)(values, index=column.index, name=column.name)


def as_known(names: np.ndarray, known_names: Collection[str], how: Spelling, what: str) -> np.ndarray:
    """Names of new rows in the spelling of those that are known, (n,); names that are not known stay.

    Args:
        names: of the rows, (n,).
        known_names: those of the fit.
        how: what becomes of names that are spelled alike; of the fit.
        what: what holds the names, for messages.

    Raises:
        UserError: for a name that is spelled like one of the fit, if ``how`` is "refuse".
    """
    strange = {name for name in set(names.tolist()) if isinstance(name, str)} - set(known_names)
    if how == "keep" or not strange:
        return names
    by_fold = {folded(name): name for name in known_names if isinstance(name, str)}
    near = {name: by_fold[folded(name)] for name in sorted(strange) if folded(name) in by_fold}
    if near and how == "refuse":
        (name, fitted), *_ = near.items()
        raise UserError(
            f"{what} holds {name!r}, which differs from {fitted!r} of the fit {DIFFERENCE}: write "
            f"{fitted!r}, or fit with spellings='join' (--spellings join), which takes them for one"
        )
    return np.array([near.get(name, name) for name in names.tolist()], dtype=object) if near else names


def refused(what: str, groups: list[list[str]], whose: str = "") -> UserError:
    """The error for names that are spelled alike.

    Args:
        what: what holds them.
        groups: of :func:`alike`.
        whose: the client of all of them, for the message.
    """
    shown = "; ".join(" and ".join(map(repr, group)) for group in groups[:PAIRS_SHOWN])
    more = f"; and {len(groups) - PAIRS_SHOWN} more" if len(groups) > PAIRS_SHOWN else ""
    return UserError(
        f"{what} holds {shown}{more}{whose}, which differ {DIFFERENCE}: --spellings join makes them one and "
        "--spellings keep leaves them apart; in Python spellings='join' or 'keep'"
    )


def _winners(counts: Mapping[str, int], chosen: Collection[str]) -> dict[str, str]:
    """The spelling that each name gets which is replaced.

    Args:
        counts: how often each name occurs.
        chosen: spellings that win, whether they occur or not.
    """
    shares = {folded(name) for name in counts}
    plain = {" ".join(name.split()) for name in counts if _has_control(name)}
    winners: dict[str, str] = {}
    for group in alike({*counts, *plain, *(name for name in chosen if folded(name) in shares)}):
        winner = min(group, key=lambda name: (name not in chosen, _has_control(name), -counts.get(name, 0), name))
        winners |= {name: winner for name in group if name != winner and name in counts}
    return winners


def _has_control(name: str) -> bool:
    return any(unicodedata.category(letter) == "Cc" for letter in name)


def _renamed(column: pd.Series, winners: Mapping[str, str]) -> pd.Series:
    """A column with some names replaced; of a category the order of the others stays."""
    import pandas as pd

    values = [winners.get(value, value) for value in column.tolist()]
    if isinstance(column.dtype, pd.CategoricalDtype):
        kept = list(dict.fromkeys(winners.get(level, level) for level in column.cat.categories))
        category = pd.Categorical(values, categories=kept, ordered=column.cat.ordered)
        return pd.Series(category, index=column.index, name=column.name)
    return pd.Series(values, index=column.index, name=column.name, dtype=column.dtype)
