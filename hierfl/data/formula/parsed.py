"""A formula that has passed the gate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...errors import UserError
from .smooth import Smooth

#: of the levels of grouping: the clients', groups of a client's rows, and groups of clients
CLIENT, INNER, OUTER = "client", "inner", "outer"
#: numbers of a response that have formulas of their own: the logarithm of its spread or size, the logit of p(zero)
OWN_FORMULAS = DISPERSION, ZERO_INFLATION = "dispersion", "zero_inflation"
#: the effect of each client on the logarithm of its residual's standard deviation, of ``dispersion ~ (1 | site)``
SPREAD = f"{DISPERSION}:Intercept"
#: levels inside a client, in the formula's order
INSIDE = (INNER, *(f"{INNER}_{k}" for k in range(2, 9)))
#: how many groups of each there are, in a summary's numbers
INSIDE_GROUPS = tuple(f"{kind}_groups" for kind in INSIDE)
#: levels whose effects all clients share: groups of clients or that cross them, and curves, in the design's order
ABOVE = (OUTER, *(f"{OUTER}_{k}" for k in range(2, 9)))
#: all, in the order of the design's columns
KINDS = (CLIENT, *INSIDE, *ABOVE)
#: between names of a group that several columns say
GROUP_SEPARATOR = ":"
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
        inside: those of groups inside a client, such as patients of a hospital, by kind, one of :data:`INSIDE`:
            ("school", "class") are classes of a school, which together say a group.
        outer: that of groups of clients, such as regions, or of a factor that crosses them, such as items; empty for
            none.
        crossed: whether the groups of ``outer`` cross the clients: a client has rows of many of them.
        terms: the random terms of each level that has some, the clients' first.
        smooths: smooth terms, whose effects are levels above, by kind, of :data:`ABOVE`.
        spread: whether each client has an effect on its residual's standard deviation, :data:`SPREAD`.
    """

    client: str
    inside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    outer: str = ""
    crossed: bool = False
    terms: Mapping[str, tuple[RandomTerm, ...]] = field(default_factory=dict)
    smooths: Mapping[str, Smooth] = field(default_factory=dict)
    spread: bool = False

    def factor(self, kind: str) -> str:
        """What a level inside a client is called, such as school:class; empty where there is none."""
        return GROUP_SEPARATOR.join(self.inside.get(kind, ()))

    @property
    def inner(self) -> str:
        """The first of them; empty for none."""
        return self.factor(INNER)

    @property
    def inner_columns(self) -> tuple[str, ...]:
        """All columns that say groups inside a client."""
        return tuple(dict.fromkeys(name for names in self.inside.values() for name in names))

    def of_clients(self, names: Iterable[str], blocks: Iterable[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """A client's effects, and how many each term has: those of columns, and that on its own spread."""
        more = int(self.spread)
        return (*names, *[SPREAD] * more), (*blocks, *[1] * more)

    def parents(self, kind: str) -> tuple[str, ...]:
        """The levels inside a client whose groups this one's lie in: school of school:class."""
        own = set(self.inside[kind])
        return tuple(name for name, names in self.inside.items() if set(names) < own)


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
        smooths: its smooth terms.
        own: right sides of the formulas of :data:`OWN_FORMULAS`, tokens that were understood.
        spread: whose effects the formula of dispersion has, as in ``dispersion ~ (1 | site)``; empty for no client's.
    """

    text: str
    safe: str
    response: frozenset[str] | None
    predictors: frozenset[str]
    random: tuple[RandomTerm, ...] = ()
    selections: tuple[str, ...] = ()
    orders: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    share: str = ""
    smooths: tuple[Smooth, ...] = ()
    own: Mapping[str, str] = field(default_factory=dict)
    spread: str = ""

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
        categories = {quoted or plain for quoted, plain in inside.findall(self.calls)}
        rest = inside.sub(" ", self.calls)
        return frozenset(categories) - self.places - {quoted or plain for quoted, plain in re.findall(named, rest)}

    @property
    def columns(self) -> frozenset[str]:
        """All of them."""
        return (self.response or frozenset()) | self.predictors | self.places

    def levels(self, client: str | None = None) -> Levels:
        """Which of the columns right of the bars are the clients', and which lie inside and above.

        Args:
            client: the clients' column; by default the outermost.

        Raises:
            UserError: without random terms, for one that is not the client's, inside it or above, or for more than one
                level above.
        """
        if not self.random:
            raise UserError(f"the formula {self.text!r} has no random term, such as (1 | {client or 'site'})")
        if self.smooths:
            return with_smooths(replace(self, smooths=()).levels(client), self.smooths)
        chain, beside = apart(self.random, client)
        if beside:
            return with_crossed(replace(self, random=chain).levels(client), beside)
        longest = tuple[str, ...]()  # b:a is a:b where there is a random term of a
        for term in sorted(self.random, key=lambda term: len(term.path)):
            longest += tuple(name for name in term.path if name not in longest)
        unit = client or longest[0]
        if unit not in longest:
            raise UserError(f"random terms belong to {':'.join(longest)!r}, and the clients are {client!r}")
        outer = longest[: longest.index(unit)]
        if self.spread and self.spread != unit:
            raise UserError(f"{DISPERSION} has effects of the clients alone: (1 | {unit}), not (1 | {self.spread})")
        own = {*outer, unit}
        if any(not own <= set(term.path) and set(term.path) != {*longest[: len(term.path)]} for term in self.random):
            places = ", ".join(sorted({":".join(term.path) for term in self.random}))
            joint = {name for term in self.random if len(term.path) > 1 for name in term.path} - {unit}
            if both := sorted(joint & {term.path[0] for term in self.random if len(term.path) == 1}):
                raise UserError(
                    f"{both[0]!r} crosses the clients in one random term and lies inside them ({unit!r}) in another: "
                    "one of the two is understood"
                )
            raise UserError(
                f"random terms belong to one column, the client's, and here to {places}; "
                "groups inside it are written (1 | site/patient)"
            )
        if len(outer) > 1:
            raise UserError(f"one level above the clients ({unit!r}) is understood, not {len(outer)}: {outer}")
        terms = {CLIENT: tuple(t for t in self.random if set(t.path) == own)}
        if not terms[CLIENT]:
            raise UserError(
                f"the clients have no random term: (1 | {'/'.join(longest)}) is a model with one; for groups inside "
                f"them alone, (1 | {':'.join(longest)}), make a column of pairs and write (1 | pair)"
            )
        inside: dict[tuple[str, ...], list[RandomTerm]] = {}
        for term in self.random:
            if tail := tuple(name for name in longest if name in term.path and name not in own):
                inside.setdefault(tail, []).append(term)
        if len(inside) > len(INSIDE):
            raise UserError(f"at most {len(INSIDE)} levels inside the clients are understood, not {len(inside)}")
        tails = dict(zip(INSIDE, sorted(inside, key=len), strict=False))
        terms |= {kind: tuple(inside[tail]) for kind, tail in tails.items()}
        terms[OUTER] = tuple(t for t in self.random if outer and set(t.path) == set(outer))
        terms |= {name: (RandomTerm(f"({right} | `{unit}`)", (unit,)),) for name, right in self.own.items()}
        # A level without terms of its own is no level: in (1 | region:site) regions only name the sites.
        kept = {k: v for k, v in terms.items() if v}
        if self.spread and OUTER in kept:
            raise UserError(f"{DISPERSION} has no effects of clients, (1 | {unit}), beside a level above them")
        if self.spread and len(tails) > 1:
            raise UserError(f"{DISPERSION} has no effects of clients, (1 | {unit}), beside several levels inside them")
        return Levels(unit, tails, "".join(outer) if terms[OUTER] else "", terms=kept, spread=bool(self.spread))


def apart(terms: tuple[RandomTerm, ...], client: str | None) -> tuple[tuple[RandomTerm, ...], tuple[RandomTerm, ...]]:
    """Terms of the clients and of groups that they lie in or that lie in them, and those of a factor that crosses them.

    Args:
        terms: of a formula.
        client: the clients' column; by default the outermost of terms of several columns, or the first that is written.
    """
    alone = {term.path for term in terms if len(term.path) == 1}
    nested = [term.path[0] for term in terms if len(term.path) > 1 and term.path[:1] in alone]
    unit = client or (nested or [terms[0].path[0]])[0]
    related = {name for term in terms if unit in term.path for name in term.path}
    beside = tuple(term for term in terms if len(term.path) == 1 and term.path[0] not in related)
    return (tuple(term for term in terms if term not in beside), beside) if related else (terms, ())


def with_crossed(levels: Levels, beside: tuple[RandomTerm, ...]) -> Levels:
    """Levels of grouping with those of a factor that crosses the clients.

    Raises:
        UserError: for more than one such factor, or for one beside groups of clients.
    """
    names = list(dict.fromkeys(term.path[0] for term in beside))
    if levels.spread:
        raise UserError(f"{DISPERSION} has no effects of clients beside a factor that crosses them, {names[0]!r}")
    if len(names) > 1:
        raise UserError(f"one factor that crosses the clients ({levels.client!r}) is understood, not {names}")
    if levels.outer:
        raise UserError(
            f"{names[0]!r} crosses the clients ({levels.client!r}), which lie in groups of {levels.outer!r}: one "
            "of the two is understood"
        )
    return replace(levels, outer=names[0], crossed=True, terms={**levels.terms, OUTER: beside})


def with_smooths(levels: Levels, smooths: tuple[Smooth, ...]) -> Levels:
    """Levels of grouping with the effects of smooth terms, behind those of a factor that crosses the clients.

    Raises:
        UserError: for one beside groups of clients.
    """
    if levels.spread:
        raise UserError(f"{DISPERSION} has no effects of clients beside a curve, {smooths[0].label}")
    if levels.outer and not levels.crossed:
        raise UserError(
            f"{smooths[0].label} is a curve of all clients ({levels.client!r}), which lie in groups of "
            f"{levels.outer!r}: one of the two is understood"
        )
    return replace(levels, smooths=dict(zip(ABOVE[1:] if levels.outer else ABOVE, smooths, strict=False)))
