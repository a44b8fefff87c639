"""What a table consists of, as its toml file says: methods x data x numbers of clients x conditions x seeds.

The papers' tables lie in ``definitions/``; a user's own table is a file of the same form. Entries:

    title, note                 in words
    published = {paper, table}  where its numbers are in published.csv
    data, clients, methods      the cells; without clients the data's own number
    seeds, first_seed           runs of each cell; the first one's seed, 0 by default
    headline                    methods that --budget takes first
    run, settings               run options of all cells; settings of all methods that have them
    [[condition]]               name, and by choice data, clients, methods, run, settings: of these cells alone
    [[where]]                   data, clients, condition, method (each a value or a list): run, settings, unreachable
                                (why such cells cannot be run), explained (why ours differs)
    [variant.NAME]              method, settings: a row that is another method with settings
    [metrics]                   PM, GM: which numbers of summary.json are the table's
    by = "domain"               a row for each domain of the clients
    claims = [[A, B], ...]      differences between methods, paired by seed; B = "*" is every other method
    [figure]                    kind: what is drawn of the runs
    [grid.METHOD]               values by setting, of runner = "search"
    runner                      an experiment that is no grid of runs, and its arguments under [arguments]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hierfl.data.datasets.registry import defaults


@dataclass(frozen=True)
class EntryKey:
    """One cell of a table, but for the seed; ``clients`` is 0 where the data have their own."""

    data: str
    clients: int
    condition: str
    method: str


@dataclass(frozen=True)
class Condition:
    """Cells that are run alike; what is empty is the table's."""

    name: str = ""
    data: tuple[str, ...] = ()
    clients: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """What is special of some cells; an empty tuple represents all."""

    data: tuple[str, ...] = ()
    clients: tuple[int, ...] = ()
    condition: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    unreachable: str = ""
    explained: str = ""

    def holds(self, entry: EntryKey) -> bool:
        """Whether it is of this cell."""
        return all(
            not wanted or value in wanted
            for wanted, value in (
                (self.data, entry.data), (self.clients, entry.clients), (self.condition, entry.condition),
                (self.method, entry.method),
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table: see the head of this file."""

    name: str
    title: str
    conditions: tuple[Condition, ...]
    methods: tuple[str, ...]
    seeds: int = 1
    note: str = ""
    paper: str = ""
    number: str = ""
    headline: tuple[str, ...] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    variants: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=lambda: {"PM": "pm_accuracy", "GM": "gm_accuracy"})
    by: str = ""
    claims: tuple[tuple[str, str], ...] = ()
    figure: Mapping[str, Any] = field(default_factory=dict)
    runner: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    first_seed: int = 0
    grid: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)

    @property
    def data(self) -> tuple[str, ...]:
        """All data sets, in order."""
        return tuple(dict.fromkeys(name for condition in self.conditions for name in condition.data))

    def rules_of(self, entry: EntryKey) -> list[Rule]:
        """What is special of a cell, in order."""
        return [rule for rule in self.rules if rule.holds(entry)]

    def remark(self, entry: EntryKey, what: str) -> str:
        """``unreachable`` or ``explained`` of a cell; empty where nothing is said."""
        return next((text for rule in self.rules_of(entry) if (text := getattr(rule, what))), "")

    def places(
        self,
        data: Sequence[str] | None = None,
        clients: Sequence[int] | None = None,
        methods: Sequence[str] | None = None,
        conditions: Sequence[str] | None = None,
    ) -> list[EntryKey]:
        """The cells, or a part of them, a condition after the other; numbers of clients may be others than its own."""
        return list(
            dict.fromkeys(
                EntryKey(d, j, c.name, m)
                for c in self.conditions
                if conditions is None or c.name in conditions
                for d in dict.fromkeys(data or c.data)
                if d in c.data
                for j in dict.fromkeys(clients or c.clients or (defaults(d).clients,))
                for m in dict.fromkeys(methods or c.methods)
                if m in c.methods
            )
        )

    def condition(self, entry: EntryKey) -> Condition:
        """The condition of a cell: of several of one name that which has its data, and its number of clients."""
        fit = [c for c in self.conditions if c.name == entry.condition and entry.data in c.data]
        return next((c for c in fit if entry.clients in c.clients), fit[0])
