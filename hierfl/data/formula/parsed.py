"""A formula that has passed the gate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import UserError

#: of the levels of grouping: the clients', groups of a client's rows, and groups of clients
CLIENT, INNER, OUTER = "client", "inner", "outer"
#: numbers of a response that have formulas of their own: the logarithm of its spread or size, the logit of p(zero)
OWN = DISPERSION, ZERO_INFLATION = "dispersion", "zero_inflation"
#: a category's, as a formula names it
Level = str | int | float | bool


@dataclass(frozen=True)
class RandomTerm:
    """A random term.

    Attributes:
        effects: what is left of the bar, as a term of one grouping factor, for formulae.
        path: columns of the groups that the effects differ between, from the outermost: ("site", "patient") are
            patients of a site, of whom another site may have some of the same name.
    """

    effects: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Levels:
    """Which columns say whose a row is.

    Attributes:
        client: the clients' column.
        inner: that of groups inside a client, such as patients of a hospital; empty for none.
        outer: that of groups of clients, such as regions; likewise.
        terms: the random terms of each level that has some, the clients' first.
    """

    client: str
    inner: str = ""
    outer: str = ""
    terms: Mapping[str, tuple[RandomTerm, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Formula:
    """A formula that has passed.

    Attributes:
        text: as it was written.
        safe: the tokens that were understood, for formulae, each random term with one grouping factor.
        response: columns of the response; None without one.
        predictors: columns on the right, but for those that are right of a bar alone.
        random: its random terms; ``(1 | a/b)`` is two, of a and of a:b.
        selections: conditions by which it treats some rows otherwise than others: its comparisons, and those that
            functions such as ``clip`` and ``sign`` make.
        orders: of categories whose levels it lists, as in ``C(g, levels=['b', 'a'])``, the levels by column.
        share: of a response that is written ``k / n``, the column n, which has to be the weights.
        own: right sides of the formulas of :data:`OWN`, tokens that were understood.
    """

    text: str
    safe: str
    response: frozenset[str] | None
    predictors: frozenset[str]
    random: tuple[RandomTerm, ...] = ()
    selections: tuple[str, ...] = ()
    orders: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    share: str = ""
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> str:
        """All tokens that were understood, for what looks for functions."""
        return "; ".join([self.safe, *self.own.values()])

    @property
    def places(self) -> frozenset[str]:
        """Columns right of a bar."""
        return frozenset(name for term in self.random for name in term.path)

    @property
    def split(self) -> frozenset[str]:
        """Columns that are categories because the formula says so, as in ``C(x)``, wherever it uses them."""
        named = r"(?:`([^`]+)`|([A-Za-z_]\w*))"
        inside = re.compile(rf"(?<![\w.`])[CST] ?\( ?{named} ?(?=[,)])")
        found = {quoted or plain for quoted, plain in inside.findall(self.calls)}
        rest = inside.sub(" ", self.calls)
        return frozenset(found) - self.places - {quoted or plain for quoted, plain in re.findall(named, rest)}

    @property
    def columns(self) -> frozenset[str]:
        """All of them."""
        return (self.response or frozenset()) | self.predictors | self.places

    def levels(self, client: str | None = None) -> Levels:
        """Which of the columns right of the bars are the clients', and which lie inside and above.

        Args:
            client: the clients' column; by default the outermost.

        Raises:
            UserError: without random terms, or for others than one level inside a client and one above.
        """
        if not self.random:
            raise UserError(f"the formula {self.text!r} has no random term, such as (1 | {client or 'site'})")
        longest = tuple[str, ...]()  # (b:a is a:b where there is a random term of a)
        for term in sorted(self.random, key=lambda term: len(term.path)):
            longest += tuple(name for name in term.path if name not in longest)
        if any(set(term.path) != {*longest[: len(term.path)]} for term in self.random):
            places = ", ".join(sorted({":".join(term.path) for term in self.random}))
            raise UserError(
                f"random terms belong to one column, the client's, and here to {places}; "
                "groups inside it are written (1 | site/patient)"
            )
        place = client or longest[0]
        if place not in longest:
            raise UserError(f"random terms belong to {':'.join(longest)!r}, and the clients are {client!r}")
        at = longest.index(place)
        inner, outer = longest[at + 1 :], longest[:at]
        for lies, found in (("inside", inner), ("above", outer)):
            if len(found) > 1:
                raise UserError(f"one level {lies} the clients ({place!r}) is understood, not {len(found)}: {found}")
        lengths = {CLIENT: at + 1, INNER: at + 2, OUTER: at}
        terms = {name: tuple(t for t in self.random if len(t.path) == n) for name, n in lengths.items()}
        if not terms[CLIENT]:
            raise UserError(f"the clients have no random term: write (1 | {'/'.join(longest)})")
        terms |= {name: (RandomTerm(f"({right} | `{place}`)", (place,)),) for name, right in self.own.items()}
        # (a level without terms of its own is no level: in (1 | region:site) regions only name the sites)
        return Levels(
            place, "".join(inner), "".join(outer) if terms[OUTER] else "", {k: v for k, v in terms.items() if v}
        )
